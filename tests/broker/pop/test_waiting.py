"""Held pops and notifications: what wakes them, and the limits on their number."""

import pytest

from mqtrail.broker.pop import held_pops, notices, pops
from mqtrail.wire import RequestCode, ResponseCode, Send, SendMessageHeader, encode_properties

from ..helpers import OTHER, PEER, Bench
from .helpers import INVISIBLE_MS, SETTLED_MS, ask_pop, bodies, hold_pop, pop, popped_of, send


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_held_pop_is_woken(bench: Bench) -> None:
    """A message wakes one held pop; the others continue to wait."""
    send(bench, "a")
    pop(bench)
    assert hold_pop(bench) == []
    assert hold_pop(bench, peer=OTHER) == []
    assert bench.ask(RequestCode.POLLING_INFO, {"consumerGroup": "g", "topic": "orders", "queueId": "-1"}).ext == {
        "pollingNum": "2"
    }
    [reply] = [one for one in _tell_send(bench, "b") if "msgOffsetInfo" in one.command.ext]
    assert reply.peer == PEER.id
    assert bodies(popped_of(reply.command)) == ["b"]


def _tell_send(bench: Bench, body: str, queue_id: int = 0, **properties: str) -> list[Send]:
    header = SendMessageHeader("pg", "orders", queue_id=queue_id, properties=encode_properties(properties))
    return bench.tell(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body.encode())


def test_left_over_wakes_the_next(bench: Bench) -> None:
    """A pop that leaves messages wakes the next held pop."""
    send(bench, "a")
    pop(bench)
    hold_pop(bench, max_msg_nums=1)
    hold_pop(bench, peer=OTHER, max_msg_nums=1)
    bench.broker.offsets.commit("g", "orders", 0, 0)
    replies = [one for one in _tell_send(bench, "b", queue_id=1) if "msgOffsetInfo" in one.command.ext]
    assert {one.peer for one in replies} == {PEER.id, OTHER.id}
    assert sorted(body for one in replies for body in bodies(popped_of(one.command))) == ["a", "b"]


def test_held_pop_of_one_queue(bench: Bench) -> None:
    """A pop of one queue is not woken by another's message."""
    send(bench, "a")
    pop(bench)
    hold_pop(bench, queue_id=3)
    assert len(_tell_send(bench, "b", queue_id=2)) == 1
    assert len(_tell_send(bench, "c", queue_id=3)) == 2


def test_held_pop_with_tags(bench: Bench) -> None:
    """A message that the tags exclude does not wake the pop; at its deadline the group's offset is past that
    message."""
    send(bench, "a")
    pop(bench)
    hold_pop(bench, exp="red")
    assert len(_tell_send(bench, "b", TAGS="blue")) == 1
    assert len(_tell_send(bench, "c", TAGS="red")) == 2
    hold_pop(bench, exp="red")
    _tell_send(bench, "d", TAGS="blue")
    [send_] = bench.advance(10_000)
    assert send_.command.code == ResponseCode.POLLING_TIMEOUT
    assert bench.broker.offsets.get("g", "orders", 0) == 4


def test_retry_wakes(bench: Bench) -> None:
    """A redelivered message wakes a pop that waits on any queue of the topic."""
    send(bench, "a")
    pop(bench)
    hold_pop(bench, queue_id=3, poll_time=100_000)
    [reply] = bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(popped_of(reply.command)) == ["a"]


def test_time_is_up(bench: Bench) -> None:
    send(bench, "a")
    pop(bench)
    hold_pop(bench)
    assert bench.advance(9_999) == []
    [reply] = bench.advance(1)
    assert reply.command.code == ResponseCode.POLLING_TIMEOUT
    assert bench.broker.pop.next_due_ms() is not None


def test_too_many_wait() -> None:
    """The limits on all held pops and on those of one queue are reported with 209."""
    bench = Bench(held_pops_max=2)
    send(bench, "a")
    pop(bench)
    assert [len(hold_pop(bench)) for _ in range(3)] == [0, 0, 1]
    assert ask_pop(bench, poll_time=1_000).code == ResponseCode.POLLING_FULL
    bench.broker.disconnected(PEER.id)
    assert hold_pop(bench) == []


def test_notification(bench: Bench) -> None:
    """A notification is answered at once or when a message arrives; it removes no message."""
    ext = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "-1",
        "pollTime": "10000",
        "bornTime": str(bench.now_ms),
    }
    send(bench, "a")
    assert bench.ask(RequestCode.NOTIFICATION, dict(ext)).ext == {"hasMsg": "true", "pollingFull": "false"}
    pop(bench)
    assert bench.tell(RequestCode.NOTIFICATION, dict(ext)) == []
    fields = [one.command.ext for one in _tell_send(bench, "b")]
    assert {"hasMsg": "true", "pollingFull": "false"} in fields
    assert bodies(pop(bench)) == ["b"]
    assert bench.tell(RequestCode.NOTIFICATION, dict(ext)) == []
    [reply] = bench.advance(10_000)
    assert reply.command.ext["hasMsg"] == "false"


def many_queues(bench: Bench, monkeypatch: pytest.MonkeyPatch, queues: int = 10) -> None:
    """Limit a pop to four queues of a topic that has more."""
    monkeypatch.setattr(pops, "QUEUES_A_POP", 4)
    monkeypatch.setattr(notices, "QUEUES_A_POP", 4)
    bench.broker.topics.create_own("orders", queues, 6, bench.now_ms)
    bench.heartbeat(topics={"orders": "*"})


def test_a_pop_of_many_queues_looks_at_some(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop that may not wait leaves the remaining queues to the next pop; every queue gets its turn."""
    many_queues(bench, monkeypatch)
    for queue_id in (0, 5, 9):
        send(bench, str(queue_id), queue_id=queue_id)
    assert [bodies(pop(bench)) for _ in range(3)] == [["0"], ["5"], ["9"]]
    assert [bodies(pop(bench)) for _ in range(3)] == [[], [], []]


def test_a_pop_that_waits_looks_at_all_queues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pop reads a few queues per tick; then it waits, and starts again when a message arrives."""
    many_queues(bench, monkeypatch)
    looked: list[int] = []
    max_offset = bench.store.max_offset

    def counting(topic: str, queue_id: int) -> int:
        if topic == "orders":
            looked.append(queue_id)
        return max_offset(topic, queue_id)

    monkeypatch.setattr(bench.store, "max_offset", counting)
    assert hold_pop(bench) == []
    while bench.broker.next_tick_ms() <= bench.now_ms:
        looked.clear()
        assert bench.broker.tick(bench.now_ms) == []
        assert len(looked) <= 8, "each queue is asked for its end once or twice"
    for queue_id in (9, 1):
        sends = _tell_send(bench, "late", queue_id=queue_id)
        while bench.broker.next_tick_ms() <= bench.now_ms:
            sends += bench.broker.tick(bench.now_ms)
        (reply,) = [one for one in sends if "msgOffsetInfo" in one.command.ext]
        assert bodies(popped_of(reply.command)) == ["late"]
        assert hold_pop(bench) == []
    (over,) = [one for one in bench.advance(10_000) if one.command.is_response]
    assert over.command.code == ResponseCode.POLLING_TIMEOUT


def test_pops_that_end_together_are_answered_in_slices(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice answers the pops that together read a fixed number of queues."""
    monkeypatch.setattr(held_pops, "QUEUES_A_SLICE", 20)
    send(bench, "a")
    pop(bench)
    for _ in range(9):
        assert hold_pop(bench) == []
    bench.now_ms += 10_000
    answered = []
    while bench.broker.next_tick_ms() <= bench.now_ms:
        answered.append(len([one for one in bench.broker.tick(bench.now_ms) if one.command.is_response]))
    assert answered == [5, 4], "there are four queues"


def notification(bench: Bench, poll_ms: int) -> list[Send]:
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "pollTime": str(poll_ms)}
    return bench.tell(RequestCode.NOTIFICATION, ext | {"bornTime": str(bench.now_ms)})


def looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the id of each queue that a notification looks at."""
    looked: list[int] = []
    find = bench.broker.pop.positions.find

    def finding(group: str, topic: str, queue_id: int) -> int:
        looked.append(queue_id)
        return find(group, topic, queue_id)

    monkeypatch.setattr(bench.broker.pop.positions, "find", finding)
    return looked


@pytest.mark.parametrize(("queue_id", "has_message"), [(9, "true"), (None, "false")])
@pytest.mark.parametrize("poll_ms", [0, 10_000])
def test_a_notification_of_many_queues_looks_at_some(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, queue_id: int | None, has_message: str, poll_ms: int
) -> None:
    """The remaining queues are read in the next ticks, each once, until a message is found or the time is up."""
    many_queues(bench, monkeypatch)
    if queue_id is not None:
        send(bench, "a", queue_id=queue_id)
    looked = looked_at(bench, monkeypatch)
    assert notification(bench, poll_ms) == []
    assert looked == [0, 1, 2, 3]
    assert bench.broker.next_tick_ms() <= bench.now_ms
    replies: list[Send] = []
    while bench.broker.next_tick_ms() <= bench.now_ms:
        before = len(looked)
        replies += bench.broker.tick(bench.now_ms)
        assert len(looked) - before <= 4
    assert looked == list(range(10))
    if has_message == "false" and poll_ms:
        replies += bench.advance(poll_ms)
    assert [reply.command.ext["hasMsg"] for reply in replies] == [has_message]


def test_a_message_in_a_queue_that_a_notification_has_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that arrives in a queue already read is not missed, and the client is notified once."""
    many_queues(bench, monkeypatch)
    assert notification(bench, 10_000) == []
    flags = [one.command.ext["hasMsg"] for one in _tell_send(bench, "b", queue_id=1) if "hasMsg" in one.command.ext]
    assert flags == ["true"]
    assert [one for one in bench.advance(20_000) if "hasMsg" in one.command.ext] == []


def test_a_peek_of_many_queues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests are served between the slices of a peek; the reply is the same."""
    bench.broker.topics.create_own("orders", 500, 6, bench.now_ms)
    bench.heartbeat(topics={"orders": "*"})
    send(bench, "a", queue_id=499)
    looked = looked_at(bench, monkeypatch)
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": "8"}
    assert bench.tell(RequestCode.PEEK_MESSAGE, ext) == []
    replies: list[Send] = []
    while not replies:
        before = len(looked)
        replies = bench.broker.tick(bench.now_ms)
        assert len(looked) - before <= 200
    assert replies[0].command.code == ResponseCode.SUCCESS
    assert len(replies[0].command.body) > 0


@pytest.mark.parametrize("text", ["x", "9" * 5_000, "٣", "-1"])
def test_a_count_of_queues_that_a_client_made_up(bench: Bench, text: str) -> None:
    """A client cannot set the broker's internal field of held requests."""
    send(bench, "a")
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "pollTime": "0", "bornTime": str(bench.now_ms)}
    assert bench.ask(RequestCode.NOTIFICATION, ext | {"queuesSeen": text}).ext["hasMsg"] == "true"
