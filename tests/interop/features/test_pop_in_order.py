"""Ordered POP (order=true), which only clients in other languages than Java use: plain requests to both servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from interop.driver import Json
from interop.pops import Popper, ask
from interop.probe import wait_until
from interop.stage import Stage

from mqtrail.wire import CreateTopicHeader, MessageExt, PopHandle, RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC, GROUP = "PopInOrder", "pop_in_order"
LONG_MS, SHORT_MS = 60_000, 2_000
WAIT_S = 30.0

Popped = list[tuple[MessageExt, PopHandle]]


def bodies(popped: Popped) -> list[str]:
    return [message.body.decode() for message, _ in popped]


class Line:
    """One queue that is popped in order, and the observations of it."""

    def __init__(self, address: str, queue_id: int) -> None:
        self.popper = Popper(address, TOPIC, GROUP)
        self.queue_id = queue_id

    def pop(self, invisible_ms: int = LONG_MS, *, count: int = 2, attempt_id: str | None = None) -> Popped:
        return self.popper.pop(
            invisible_ms, order=True, queue_id=self.queue_id, count=count, attempt_id=attempt_id or str(uuid4())
        )

    def pop_until(self, invisible_ms: int = LONG_MS, *, count: int = 2) -> Popped:
        """Pop until there is a message: a broker may deliver a sent or redelivered message a moment later."""
        popped: Popped = []
        wait_until(lambda: bool(popped.extend(self.pop(invisible_ms, count=count)) or popped), "a message", WAIT_S, 0.2)
        return popped

    def send(self, *names: str) -> None:
        self.popper.send(*names, queue_id=self.queue_id)

    @property
    def committed(self) -> str:
        place = {"topic": TOPIC, "consumerGroup": GROUP, "queueId": str(self.queue_id)}
        return self.popper.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)[0]["offset"]


def closed_until_acknowledged(line: Line) -> Json:
    """Two messages are popped; the queue is blocked until both are acknowledged, in any order."""
    line.send("a", "b", "c", "d", "e")
    first = line.pop_until()
    reported: Json = {"first": bodies(first), "while both are open": bodies(line.pop())}
    reported["ack of the second"] = line.popper.ack(*first[1])
    reported["while the first is open"] = bodies(line.pop())
    reported["committed"] = [line.committed]
    reported["ack of the first"] = line.popper.ack(*first[0])
    reported["committed"].append(line.committed)
    second = line.pop_until()
    reported["second"] = bodies(second)
    reported["acks"] = [line.popper.ack(*one) for one in second]
    reported["ack again"] = line.popper.ack(*second[0])
    third = line.pop_until()
    reported["third"] = bodies(third), line.popper.ack(*third[0])
    reported["committed"].append(line.committed)
    reported["at the end"] = bodies(line.pop())
    return reported


def comes_again_in_order(line: Line) -> Json:
    """A message that is not acknowledged in time is redelivered first; of two, an acknowledged one is not."""
    line.send("a", "b", "c")
    first = line.pop_until(SHORT_MS)
    reported: Json = {"first": bodies(first), "ack of the first": line.popper.ack(*first[0])}
    again = line.pop_until(SHORT_MS)
    reported["again"] = bodies(again)
    reported["ack with the handle of the first time"] = line.popper.ack(*first[1])
    reported["committed"] = line.committed
    reported["acks"] = [line.popper.ack(*one) for one in again]
    rest = line.pop()
    reported["rest"] = bodies(rest), [line.popper.ack(*one) for one in rest]
    reported["committed at the end"] = line.committed
    return reported


def hidden_for_longer(line: Line) -> Json:
    """A longer invisible time keeps the queue blocked; with a short one the message is redelivered at once."""
    line.send("a", "b")
    [first] = line.pop_until(SHORT_MS, count=1)
    code, handle = line.popper.hide(*first, LONG_MS)
    reported: Json = {"hide": code, "closed": bodies(line.pop())}
    code, handle = line.popper.hide(first[0], handle, 1_000)
    reported["hide for a second"] = code
    again = line.pop_until(count=1)
    reported["again"] = bodies(again), [line.popper.ack(*one) for one in again]
    rest = line.pop_until(count=1)
    reported["rest"] = bodies(rest), [line.popper.ack(*one) for one in rest]
    return reported


def the_same_attempt(line: Line) -> Json:
    """A second pop with the same attempt id gets the same messages; another attempt id gets nothing."""
    line.send("a", "b")
    reported: Json = {}
    popped: Popped = []
    wait_until(lambda: bool(popped.extend(line.pop(attempt_id="one")) or popped), "a message", WAIT_S, 0.2)
    reported["one"] = bodies(popped)
    reported["another"] = bodies(line.pop(attempt_id="another"))
    again = line.pop(attempt_id="one")
    reported["one again"] = bodies(again)
    reported["acks"] = [line.popper.ack(*one) for one in again]
    return reported


SCENES = (closed_until_acknowledged, comes_again_in_order, hidden_for_longer, the_same_attempt)


def test_pop_in_order(stage: Stage) -> None:
    """Both brokers answer alike; each scene has its own queue."""
    addresses = [server.broker_address for server in stage.servers.values()]
    for address in addresses:
        ask(
            address, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC, len(SCENES), len(SCENES), 6).to_ext()
        )

    def play(address: str) -> Json:
        return {scene.__name__: scene(Line(address, number)) for number, scene in enumerate(SCENES)}

    with ThreadPoolExecutor(len(addresses)) as threads:
        ours, apache = threads.map(play, addresses)
    assert ours == apache
    assert ours["closed_until_acknowledged"]["first"] == ["a", "b"]
    assert ours["closed_until_acknowledged"]["while the first is open"] == []
    assert ours["comes_again_in_order"]["again"] == ["b", "c"]
    assert ours["hidden_for_longer"]["closed"] == []
    assert ours["the_same_attempt"]["one again"] == ["a", "b"]
