"""The sender of trace messages follows a fail-over: it asks for the route again after each failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqtrail.client.core import ClientInstance, TraceConfig
from mqtrail.client.trace.dispatcher import TraceRefused
from mqtrail.client.trace.spool import SpooledMessage
from mqtrail.client.trace.tracer import TraceSender
from mqtrail.net import NetError
from mqtrail.wire import TRACE_TOPIC, MessageQueue, MQError, RemotingCommand, ResponseCode

OLD, NEW = "10.0.0.1:10911", "10.0.0.2:10911"
MESSAGE = SpooledMessage(TRACE_TOPIC, "", b"Pub", 1, "start", TRACE_TOPIC)


class Failed:
    """A client whose cached route names a master that failed. A name server knows the new one."""

    def __init__(self, failure: Exception | RemotingCommand) -> None:
        self.failure = failure
        self.cached = OLD
        self.asked: list[str] = []
        self.fetched = 0
        self.config = SimpleNamespace()
        self.pool = self

    async def route(self, topic: str, template: object) -> Any:
        return SimpleNamespace(publish_queues=[MessageQueue(topic, "broker-a", 0)], address=self.cached)

    async def fetch_route(self, topic: str, template: object) -> None:
        self.fetched += 1
        self.cached = NEW
        raise MQError("the name server does not answer; the sender goes on")

    def master(self, broker_name: str, route: Any) -> str:
        return str(route.address)

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        self.asked.append(address)
        if address == NEW:
            ext = {"msgId": "0A00000200002A9F0000000000000000", "queueId": "0", "queueOffset": "1"}
            return RemotingCommand(ResponseCode.SUCCESS, ext)
        if isinstance(self.failure, Exception):
            raise self.failure
        return self.failure


def sender_of(client: Failed) -> TraceSender:
    return TraceSender(cast(ClientInstance, client), "group", TraceConfig())


@pytest.mark.parametrize(
    "failure",
    [NetError("closed"), RemotingCommand(ResponseCode.SYSTEM_BUSY, remark="found a slave, expected the master")],
    ids=["killed", "deposed"],
)
async def test_the_next_attempt_goes_to_the_new_master(failure: Exception | RemotingCommand) -> None:
    """Without this, the records of up to 30 s wait for the periodic refresh of routes."""
    client = Failed(failure)
    sender = sender_of(client)
    with pytest.raises(MQError):
        await sender.send(MESSAGE)
    await sender.send(MESSAGE)
    assert (client.asked, client.fetched) == ([OLD, NEW], 1)


async def test_a_refused_message_needs_no_route() -> None:
    """The broker answered: another one would refuse it too."""
    client = Failed(RemotingCommand(ResponseCode.MESSAGE_ILLEGAL, remark="the message is too large"))
    with pytest.raises(TraceRefused):
        await sender_of(client).send(MESSAGE)
    assert client.fetched == 0
