"""Popping, acknowledging, and redelivery."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mqtrail.wire import (
    BatchAck,
    BatchAckBody,
    PopCheckPoint,
    PopHandle,
    PopResponseHeader,
    RequestCode,
    ResponseCode,
)

from ..helpers import PEER, Bench
from .helpers import (
    INVISIBLE_MS,
    RETRY,
    REVIVE_TOPIC,
    SETTLED_MS,
    TIMER_TOPIC,
    Popped,
    ack,
    ask_pop,
    bodies,
    hide,
    hold_pop,
    pop,
    send,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_pop_takes_from_all_queues(bench: Bench) -> None:
    """Queue -1 means all queues; popped messages are not delivered to the next pop."""
    for queue_id in range(3):
        send(bench, f"m{queue_id}", queue_id=queue_id)
    assert sorted(bodies(pop(bench))) == ["m0", "m1", "m2"]
    assert pop(bench) == []


def test_answer_header(bench: Bench) -> None:
    """The reply has the pop time, the invisible time, the queues, and the number of remaining messages."""
    send(bench, "a", "b", "c", queue_id=2)
    reply = ask_pop(bench, max_msg_nums=2)
    header = PopResponseHeader.from_ext(reply.ext)
    assert (header.pop_time, header.invisible_time, header.rest_num) == (bench.now_ms, INVISIBLE_MS, 1)
    assert 0 <= header.revive_qid < 8
    assert (header.start_offset_info, header.msg_offset_info) == ("0 2 0", "0 2 0,1")
    assert (reply.remark, header.order_count_info) == ("FOUND", None)


def test_nothing_found(bench: Bench) -> None:
    """An empty pop is answered with code 210 and all header fields."""
    send(bench, "a")
    pop(bench)
    reply = ask_pop(bench)
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert reply.ext["startOffsetInfo"] == reply.ext["msgOffsetInfo"] == ""


def test_check_point_as_apache_writes_it(bench: Bench) -> None:
    """The check point is stored in the timer topic, addressed to its revive queue, with the bytes and properties of
    5.3.3."""
    send(bench, "a", "b", queue_id=1)
    [first, _] = pop(bench)
    [stored] = bench.messages(TIMER_TOPIC)
    assert stored.body.decode() == (
        f'{{"bm":0,"bn":"broker-a","c":"g","d":[0,1],"it":10000,"n":2,"pt":{bench.now_ms},"q":1,'
        f'"reviveTime":{bench.now_ms + 10_000},"ro":0,"so":0,"t":"orders"}}'
    )
    assert stored.tags == "ck"
    assert stored.properties["UNIQ_KEY"] == f"orders@1@0@g@{bench.now_ms}@broker-a@ck"
    assert stored.properties["TIMER_DELIVER_MS"] == str(bench.now_ms + 9_000)
    assert stored.properties["REAL_TOPIC"] == REVIVE_TOPIC
    assert stored.properties["REAL_QID"] == str(first.handle.revive_queue_id)


def test_ack_as_apache_writes_it(bench: Bench) -> None:
    send(bench, "a", "b")
    [_, second] = pop(bench)
    assert ack(bench, second).code == ResponseCode.SUCCESS
    stored = bench.messages(TIMER_TOPIC)[-1]
    assert stored.body.decode() == (f'{{"ao":1,"bn":"broker-a","c":"g","pt":{bench.now_ms},"q":0,"so":0,"t":"orders"}}')
    assert stored.tags == "ack"
    assert stored.properties["UNIQ_KEY"] == f"orders@0@1@g@{bench.now_ms}@broker-a@ack"
    assert stored.properties["TIMER_DELIVER_MS"] == str(bench.now_ms + INVISIBLE_MS)


def test_an_unacknowledged_message_is_redelivered(bench: Bench) -> None:
    """Unacknowledged messages return to the retry topic, keep their own topic name, and count one more attempt."""
    send(bench, "a", "b", "c", TAGS="red", KEYS="k")
    taken = pop(bench)
    popped_ms = bench.now_ms
    ack(bench, taken[1])
    bench.advance(INVISIBLE_MS)
    assert pop(bench) == []
    bench.advance(SETTLED_MS)
    again = pop(bench)
    assert bodies(again) == ["a", "c"]
    for one in again:
        assert (one.message.topic, one.topic, one.message.reconsume_times) == ("orders", RETRY, 1)
        assert one.message.properties["1ST_POP_TIME"] == str(popped_ms)
        assert (one.message.tags, one.message.keys) == ("red", ("k",))
        assert one.handle.marker == "1"
        ack(bench, one)
    bench.advance(10 * INVISIBLE_MS)
    assert pop(bench) == []


def test_a_message_is_redelivered_again_and_again(bench: Bench) -> None:
    """The broker does not limit the number of attempts; that is the client's decision. The first pop time is kept."""
    send(bench, "a")
    first_ms = bench.now_ms
    for attempt in range(5):
        [one] = pop(bench)
        assert (one.message.reconsume_times, one.handle.marker) == (attempt, "1" if attempt else "0")
        assert one.message.properties.get("1ST_POP_TIME", str(first_ms)) == str(first_ms)
        bench.advance(INVISIBLE_MS + SETTLED_MS)


def test_retry_topic_v2(bench: Bench) -> None:
    """With V2, retries use the other topic name and marker 2; messages stored earlier under V1 are still delivered."""
    send(bench, "old", "new")
    bench = _restarted(bench, retry_topic_v2=False)
    pop(bench, max_msg_nums=1)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    bench = _restarted(bench, retry_topic_v2=True)
    pop(bench, queue_id=0, max_msg_nums=1)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert [message.body for message in bench.messages("%RETRY%g+orders")] == [b"new"]
    found = [one for _ in range(4) for one in pop(bench)]
    assert sorted((one.body, one.handle.marker) for one in found) == [("new", "2"), ("old", "1")]


def _restarted(bench: Bench, **settings: Any) -> Bench:
    bench.config = replace(bench.config, **settings)
    bench.restart()
    return bench


def test_actual_retry_topic(bench: Bench) -> None:
    """popResponseReturnActualRetryTopic: retries keep their topic, and clients make the handle themselves."""
    bench = Bench(pop_actual_retry_topic=True)
    send(bench, "a")
    pop(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    [one] = pop(bench)
    assert one.message.topic == RETRY
    assert "POP_CK" not in one.message.properties


def test_batch_ack(bench: Bench) -> None:
    """One request acknowledges several messages of one pop; offsets that the queue does not have are ignored."""
    send(bench, *"abcd")
    taken = pop(bench)
    handle = taken[0].handle
    done = BatchAck(
        "g", "orders", "0", 0, 0, handle.revive_queue_id, handle.pop_time_ms, INVISIBLE_MS, BatchAck.pack([0, 2, 9])
    )
    assert bench.ask(RequestCode.BATCH_ACK_MESSAGE, body=BatchAckBody("broker-a", (done,)).encode()).code == 0
    stored = bench.messages(TIMER_TOPIC)[-1]
    assert stored.tags == "bAck"
    assert stored.body.decode() == (
        f'{{"ao":-1,"aol":[0,2],"bn":"broker-a","c":"g","pt":{bench.now_ms},"q":0,"so":0,"t":"orders"}}'
    )
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(pop(bench)) == ["b", "d"]
    assert bench.ask(RequestCode.BATCH_ACK_MESSAGE).code == ResponseCode.NO_MESSAGE


def test_change_invisible(bench: Bench) -> None:
    """A message can stay invisible for longer or shorter; it gets a new handle, and only that handle acknowledges
    it."""
    send(bench, "longer", "shorter", "acked")
    longer, shorter, acked = pop(bench)
    bench.advance(1_000)
    reply = hide(bench, longer, 60_000)
    assert (reply.ext["popTime"], reply.ext["invisibleTime"]) == (str(bench.now_ms), "60000")
    assert reply.ext["reviveQid"] == str(longer.handle.revive_queue_id)
    hide(bench, shorter, 2_000)
    reply = hide(bench, acked, 3_000)
    renewed = PopHandle(
        acked.message.queue_offset,
        int(reply.ext["popTime"]),
        int(reply.ext["invisibleTime"]),
        int(reply.ext["reviveQid"]),
        "0",
        "broker-a",
        0,
        acked.message.queue_offset,
    )
    ack(bench, Popped(acked.message, renewed, "orders"))
    bench.advance(2_000 + SETTLED_MS)
    assert bodies(pop(bench, invisible_time=600_000)) == ["shorter"]
    bench.advance(50_000)
    assert pop(bench) == []
    bench.advance(10_000)
    assert bodies(pop(bench)) == ["longer"]


def test_a_pop_right_after_the_clock_was_set_back(bench: Bench) -> None:
    """Messages become visible after their invisible time, not after the jump, though no tick has seen the new time."""
    bench.now_ms += 86_400_000
    send(bench, "a")
    bench.broker.tick(bench.now_ms)
    bench.now_ms -= 86_400_000
    assert bodies(pop(bench)) == ["a"]
    bench.broker.next_tick_ms()
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(pop(bench)) == ["a"]


def test_late_ack(bench: Bench) -> None:
    """An ack that arrives within a second after the invisible time still counts: revival starts after that second."""
    send(bench, "a")
    [one] = pop(bench)
    bench.advance(INVISIBLE_MS + 900)
    assert ack(bench, one).code == ResponseCode.SUCCESS
    bench.advance(60_000)
    assert pop(bench) == []


def test_group_without_offset(bench: Bench) -> None:
    """A new group begins at the queue's start or at its last message; at 0 if the queue still has its first message."""
    send(bench, "a", "b")
    assert bodies(pop(bench, consumer_group="min", init_mode=0)) == ["a", "b"]
    assert bodies(pop(bench, consumer_group="young", init_mode=1)) == ["a", "b"]
    bench = Bench(young_queue_size=-1)
    send(bench, "a", "b")
    assert bodies(pop(bench, init_mode=1)) == ["b"]


@pytest.mark.parametrize("begin", [pop, hold_pop], ids=["answered", "held"])
@pytest.mark.parametrize("queue_id", [-1, 2])
def test_a_new_group_gets_the_first_messages_of_an_empty_queue(begin: Callable[..., Any], queue_id: int) -> None:
    """Its first pop found a queue that never held a message: initMode 1 (the end) is then its start, for good."""
    bench = Bench(young_queue_size=-1)
    bench.broker.topics.create_own("orders", 4, 6, bench.now_ms)
    assert begin(bench, init_mode=1, queue_id=queue_id) == []
    bench.broker.disconnected(PEER.id)
    send(bench, "a", "b", queue_id=2)
    assert bodies(pop(bench, init_mode=1, queue_id=queue_id)) == ["a", "b"]


def test_tags(bench: Bench) -> None:
    """Messages that the tag expression excludes are skipped, in the retry topic too."""
    send(bench, "r1", "r2", TAGS="red")
    send(bench, "b1", TAGS="blue")
    assert bodies(pop(bench, exp="blue")) == ["b1"]
    assert pop(bench, exp="red") == []
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert pop(bench, exp="red") == []
    assert bench.broker.offsets.get("g", RETRY, 0) == 1


def test_sql(bench: Bench) -> None:
    """A pop request carries its own SQL92 expression; an invalid one is refused with 23."""
    send(bench, "one", n="1")
    send(bench, "two", n="2")
    assert bodies(pop(bench, exp="n > 1", exp_type="SQL92")) == ["two"]
    reply = ask_pop(bench, exp="n >", exp_type="SQL92")
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


REFUSED: list[tuple[dict[str, Any], ResponseCode]] = [
    ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
    ({"queue_id": 8}, ResponseCode.INVALID_PARAMETER),
    ({"topic": "nobody"}, ResponseCode.TOPIC_NOT_EXIST),
    ({"born_time": 1}, ResponseCode.POLLING_TIMEOUT),
]


@pytest.mark.parametrize(("fields", "code"), REFUSED)
def test_refused_pops(bench: Bench, fields: dict[str, Any], code: ResponseCode) -> None:
    """The codes are those of 5.3.3; the remark names the invalid value."""
    send(bench, "a")
    reply = ask_pop(bench, **fields)
    assert reply.code == code
    assert "found" in (reply.remark or "") or "not exist" in (reply.remark or "") or "[8]" in (reply.remark or "")


def test_refused_groups() -> None:
    """A group that may not be created automatically is refused with 26, one that may not consume with 16."""
    bench = Bench(auto_create_group=False)
    send(bench, "a")
    assert ask_pop(bench).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_refused_acks(bench: Bench) -> None:
    """An unknown topic is 17, an unknown queue 13, an unknown message 208, and an invalid handle 1."""
    send(bench, "a")
    [one] = pop(bench)
    handle = one.handle
    cases = [
        ("nobody", 0, 0, handle.encode(), ResponseCode.TOPIC_NOT_EXIST),
        ("orders", 9, 0, handle.encode(), ResponseCode.MESSAGE_ILLEGAL),
        ("orders", 0, 7, handle.encode(), ResponseCode.NO_MESSAGE),
        ("orders", 0, 0, "1 2 3", ResponseCode.SYSTEM_ERROR),
        ("orders", 0, 0, handle._replace(revive_queue_id=8).encode(), ResponseCode.SYSTEM_ERROR),
    ]
    for topic, queue_id, offset, text, code in cases:
        ext = {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "extraInfo": text, "offset": str(offset)}
        assert bench.ask(RequestCode.ACK_MESSAGE, ext).code == code
        ext["invisibleTime"] = "1000"
        assert bench.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext).code == code


def test_rate_of_a_group() -> None:
    """A group that reached its limit of messages per second gets no more by popping either: code 215."""
    bench = Bench(group_pull_rate_max=2, rate_burst_s=1)
    send(bench, *"abcde")
    assert bodies(pop(bench)) == ["a", "b"]
    assert ask_pop(bench).code == ResponseCode.FLOW_CONTROL
    bench.advance(1_000)
    assert bodies(pop(bench)) == ["c", "d"]


def test_lost_offset(bench: Bench) -> None:
    """From an offset past the queue's end a pop continues at the end, from one before its start at the start."""
    send(bench, "a")
    bench.broker.offsets.commit("g", "orders", 0, 77)
    assert pop(bench, queue_id=0) == []
    assert bench.broker.offsets.get("g", "orders", 0) == 1


def test_reset(bench: Bench) -> None:
    """The next pop begins at the offset that an administrator reset."""
    send(bench, "a", "b")
    for one in pop(bench):
        ack(bench, one)
    bench.broker.offsets.reset("g", "orders", 0, 1)
    assert bodies(pop(bench)) == ["b"]


def test_peek(bench: Bench) -> None:
    """A peek removes no message; an empty queue is code 19."""
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": "10"}
    send(bench, "a", "b")
    for _ in range(2):
        reply = bench.ask(RequestCode.PEEK_MESSAGE, ext)
        assert (reply.code, reply.ext["restNum"]) == (ResponseCode.SUCCESS, "2")
    pop(bench)
    assert bench.ask(RequestCode.PEEK_MESSAGE, ext).code == ResponseCode.PULL_NOT_FOUND


def test_statistics(bench: Bench) -> None:
    """Popped messages, check points and acks are counted under Apache's names."""
    send(bench, "a", "b")
    for one in pop(bench):
        ack(bench, one)
    stats = bench.broker.stats
    assert stats is not None
    bench.advance(10_000)
    bench.advance(10_000)
    for name, key in (("GROUP_ACK_NUMS", "orders@g"), ("BROKER_ACK_NUMS", "DefaultCluster")):
        window = stats.windows(name, key)
        assert window is not None
        assert window[0].sum == 2
    assert stats.windows("GROUP_CK_NUMS", "orders@g") is not None


def test_deleted_with_its_retry_topics(bench: Bench) -> None:
    """Deleting a topic also deletes the retry topics of the groups that popped from it."""
    send(bench, "a")
    pop(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert RETRY in bench.broker.topics
    assert bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == ResponseCode.SUCCESS
    assert RETRY not in bench.broker.topics
    assert bench.broker.offsets.get("g", RETRY, 0) is None


def test_deleted_topic_is_not_revived(bench: Bench) -> None:
    """The check points of a deleted topic or group are skipped."""
    send(bench, "a")
    pop(bench)
    bench.broker.topics.delete("orders", bench.now_ms)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert RETRY not in bench.broker.topics
    assert bench.broker.pop.revive.behind_count() == 0


def test_check_point_offsets_in_log(bench: Bench) -> None:
    """Check points and acks are processed in the order of the revive log; the committed offset is that of the last
    one."""
    send(bench, "a", "b")
    taken = pop(bench)
    ack(bench, taken[0])
    queue_id = taken[0].handle.revive_queue_id
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    log = bench.messages(REVIVE_TOPIC, queue_id)
    assert [message.tags for message in log] == ["ck", "ack"]
    assert PopCheckPoint.decode(log[0].body).queue_offsets() == (0, 1)
    assert bench.broker.offsets.get("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, queue_id) == 1
