"""Which consumers are asked whether they consume in order, and how often."""

from __future__ import annotations

from typing import cast

import pytest

from mqtrail.client import SyncAdmin
from mqtrail.pipeline.orders import ASK_AGAIN_MS, RETRY_MS, ConsumeOrders
from mqtrail.wire import ClientConnection, ConsumeMsgTimeout, ConsumerConnections, ConsumerRunningInfo, MQError


class Asked:
    """Consumers by id: what each answers; None: the broker says that it did not."""

    def __init__(self, **answers: str | MQError) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def running_info(self, group: str, client_id: str, address: str, *, timeout_ms: int) -> ConsumerRunningInfo:
        self.asked.append(client_id)
        answer = self.answers[client_id]
        if isinstance(answer, MQError):
            raise answer
        return ConsumerRunningInfo({"PROP_CONSUMEORDERLY": answer})


def connections(*names: str, kind: str = "CONSUME_PASSIVELY", model: str = "CLUSTERING") -> ConsumerConnections:
    clients = tuple(ClientConnection(name) for name in names)
    return ConsumerConnections(clients, consume_type=kind, message_model=model)


def test_a_consumer_is_asked_once() -> None:
    """Until its answer is old; the answer belongs to its group."""
    orders, asked = ConsumeOrders(), Asked(a="true", b="false")
    admin = cast(SyncAdmin, asked)
    for at_ms in (0, 5, ASK_AGAIN_MS - 1):
        assert orders.of_clients(admin, "g", connections("a", "b"), "1", at_ms) == {"a": "true", "b": "false"}
    assert asked.asked == ["a", "b"]
    orders.of_clients(admin, "h", connections("a"), "1", 5)
    asked.answers["a"] = "false"
    assert orders.of_clients(admin, "g", connections("a"), "1", ASK_AGAIN_MS) == {"a": "false"}
    assert asked.asked == ["a", "b", "a", "a"]


def test_a_silent_consumer_holds_up_one_sample() -> None:
    """The next one is not asked in that sample. What a consumer said before is kept if it is silent later."""
    orders, asked = ConsumeOrders(), Asked(a=MQError("timed out"), b="true")
    admin, both = cast(SyncAdmin, asked), connections("a", "b")
    assert orders.of_clients(admin, "g", both, "1", 1) == {"a": "", "b": ""}
    assert orders.of_clients(admin, "g", both, "1", 2) == {"a": "", "b": "true"}
    assert asked.asked == ["a", "b"]
    asked.answers |= {"a": "true", "b": ConsumeMsgTimeout("busy")}
    assert orders.of_clients(admin, "g", both, "1", 1 + RETRY_MS) == {"a": "true", "b": "true"}
    assert orders.of_clients(admin, "g", both, "1", 2 + ASK_AGAIN_MS)["b"] == "true"
    assert asked.asked == ["a", "b", "a", "b"]


@pytest.mark.parametrize(("kind", "model"), [("CONSUME_ACTIVELY", "CLUSTERING"), ("CONSUME_PASSIVELY", "BROADCASTING")])
def test_others_have_no_order(kind: str, model: str) -> None:
    """Lite pull and broadcasting consumers are not asked."""
    admin = cast(SyncAdmin, Asked())
    assert ConsumeOrders().of_clients(admin, "g", connections("a", kind=kind, model=model), "1", 1) == {}
