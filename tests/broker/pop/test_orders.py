"""Ordered pops: blocked queues, repeated attempts, counts; and the file that Apache's broker also reads."""

from typing import Any

import pytest

from mqtrail.broker.pop.orders import OrderTable
from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.wire import (
    ORDERLY_REVIVE_QUEUE,
    BatchAck,
    BatchAckBody,
    RequestCode,
    ResponseCode,
    TopicConfig,
    decode_order_counts,
    dumps_fastjson,
)

from ..helpers import OTHER, Bench
from .helpers import INVISIBLE_MS, ack, ask_pop, bodies, hide, hold_pop, pop, popped_of, send

QUEUE = ("orders", "g", 2)
START_MS = 1_700_000_000_123


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    send(bench, "a", "b", "c", queue_id=1)
    return bench


def test_counts_and_file_as_apache() -> None:
    """Texts, return values and JSON over the life of one queue equal those of 5.3.3's ConsumerOrderInfoManager."""
    disk = MemoryDisk()
    orders = OrderTable(ConfigFileStore(disk))
    assert orders.popped(QUEUE, "att-1", 60_000, [41, 42, 45], START_MS) == ({}, 0)
    counts, least = orders.popped(QUEUE, "att-2", 60_000, [41, 42, 45], START_MS + 1_000)
    assert (counts, least) == ({41: 1, 42: 1, 45: 1}, 1)
    orders.hide(QUEUE, 42, START_MS + 1_000, 1_700_000_099_000)
    assert orders.ack(QUEUE, 41, START_MS + 1_000) == 42
    bench = Bench()
    bench.send()
    bench.broker.topics.create_own("%RETRY%x", 1, 6, bench.now_ms)
    bench.broker.groups.find("g", bench.now_ms)
    orders.save(bench.broker.topics, bench.broker.groups, START_MS + 1_000)
    assert disk.read("config/consumerOrderInfo.json") == (
        b'{"table":{"orders@g":{2:{"a":"att-2","cm":1,"i":60000,"l":1700000001123,"o":[41,1,4],'
        b'"oc":{41:1,42:1,45:1},"ot":{42:1700000099000},"popTime":1700000001123}}}}'
    )
    orders = OrderTable(ConfigFileStore(disk))
    assert orders.popped(QUEUE, None, 60_000, [42, 45, 46], START_MS + 2_000) == ({42: 2, 45: 2}, 0)
    assert orders.ack(QUEUE, 46, START_MS + 2_000) == 42
    assert orders.ack(QUEUE, 42, START_MS + 2_000) == 45
    with pytest.raises(KeyError):
        orders.ack(QUEUE, 99, START_MS + 2_000)
    assert orders.ack(QUEUE, 45, 1) is None
    assert orders.ack(QUEUE, 45, START_MS + 2_000) == 47


def test_a_save_encodes_what_changed_and_not_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The saving thread encodes the changed entries, not the event loop. The file equals one of the whole table,
    without outdated entries."""
    disk = MemoryDisk()
    bench = Bench()
    topics, groups = bench.broker.topics, bench.broker.groups
    topics.update(TopicConfig("orders", 500, 500), START_MS)
    groups.require("g", START_MS)
    files = ConfigFileStore(disk, gathers=True)
    orders = OrderTable(files)
    encoded: list[object] = []
    monkeypatch.setattr(
        "mqtrail.broker.pop.orders.dumps_fastjson", lambda value: encoded.append(value) or dumps_fastjson(value)
    )

    def save(now_ms: int) -> int:
        """Save; return the number of entries that were encoded."""
        encoded.clear()
        orders.save(topics, groups, now_ms)
        assert encoded == []
        if (job := files.begin_save()) is not None:
            orders.popped(("orders", "g", 0), None, 60_000, [7], now_ms)  # while the thread works
            job()
            files.end_save()
        return len(encoded)

    def saved() -> dict[str, Any]:
        document = ConfigFileStore(disk).load("consumerOrderInfo.json")
        assert document is not None
        assert disk.read("config/consumerOrderInfo.json") == dumps_fastjson(document)
        table: dict[str, Any] = document["table"]
        return table

    for queue_id in range(1, 500):
        orders.popped(("orders", "g", queue_id), None, 60_000, [1, 2], START_MS)
    assert save(START_MS) == 499
    assert list(saved()["orders@g"]) == list(range(1, 500))
    orders.ack(("orders", "g", 5), 1, START_MS)
    assert save(START_MS) == 2
    assert saved()["orders@g"][5]["cm"] == 1
    assert saved()["orders@g"][0]["o"] == [7]
    orders.clear(("orders", "g", 5))
    assert save(START_MS) == 1
    assert 5 not in saved()["orders@g"]
    groups.delete("g", START_MS)
    assert save(START_MS) == 0
    assert saved() == {}


def test_closed_until_acknowledged(bench: Bench) -> None:
    """The queue is blocked until all popped messages are acknowledged; the next pop continues after them."""
    reply = ask_pop(bench, order=True, max_msg_nums=2)
    assert reply.ext["reviveQid"] == str(ORDERLY_REVIVE_QUEUE)
    assert reply.ext["orderCountInfo"] == "0 1 0"
    a, b = popped_of(reply)
    assert pop(bench, order=True) == []
    ack(bench, a)
    assert pop(bench, order=True) == []
    assert bench.broker.offsets.get("g", "orders", 1) == 1
    ack(bench, b)
    assert bodies(pop(bench, order=True)) == ["c"]


def test_other_queues_stay_open(bench: Bench) -> None:
    pop(bench, order=True, queue_id=1)
    send(bench, "x", queue_id=0)
    assert bodies(pop(bench, order=True)) == ["x"]


def test_opens_when_its_time_is_up(bench: Bench) -> None:
    """After the invisible time the messages from the first unacknowledged one on are redelivered and counted, without a
    retry topic."""
    a, _, _ = pop(bench, order=True)
    ack(bench, a)
    bench.advance(INVISIBLE_MS)
    reply = ask_pop(bench, order=True)
    assert bodies(popped_of(reply)) == ["b", "c"]
    counts = decode_order_counts(reply.ext["orderCountInfo"])
    assert counts.messages == {("0", 1, 1): 1, ("0", 1, 2): 1}
    assert counts.queues == {("0", 1): 1}
    assert "%RETRY%g_orders" not in bench.broker.topics


def test_a_long_attempt_id_is_refused(bench: Bench) -> None:
    """It is kept for its queue, of which there may be 200,000, and saved."""
    assert ask_pop(bench, order=True, attempt_id="x" * 256).code == ResponseCode.INVALID_PARAMETER
    assert bodies(pop(bench, order=True, attempt_id="x" * 255)) == ["a", "b", "c"]


def test_attempt_id(bench: Bench) -> None:
    """A client that lost the reply repeats the pop with the same attempt id: it gets the same messages, and the attempt
    is not counted."""
    for _ in range(2):
        reply = ask_pop(bench, order=True, attempt_id="one")
        assert bodies(popped_of(reply)) == ["a", "b", "c"]
        assert reply.ext["orderCountInfo"] == "0 1 0"
    assert pop(bench, order=True, attempt_id="two") == []


def test_late_and_wrong_acks(bench: Bench) -> None:
    """An ack of an earlier pop has no effect; one of a message that was not popped is refused with 13; a repeated one
    is accepted."""
    a, b, _ = pop(bench, order=True)
    bench.advance(INVISIBLE_MS)
    again = pop(bench, order=True, max_msg_nums=1)
    assert ack(bench, b).code == ResponseCode.SUCCESS
    assert bench.broker.offsets.get("g", "orders", 1) == 0
    wrong = again[0]
    wrong.message = b.message
    assert ack(bench, wrong).code == ResponseCode.MESSAGE_ILLEGAL
    wrong.message = a.message
    assert ack(bench, wrong).code == ResponseCode.SUCCESS
    assert ack(bench, wrong).code == ResponseCode.SUCCESS
    assert bench.broker.offsets.get("g", "orders", 1) == 1


def test_batch_ack(bench: Bench) -> None:
    a, _, _ = pop(bench, order=True)
    body = BatchAck("g", "orders", "0", 0, 1, 999, a.handle.pop_time_ms, INVISIBLE_MS, BatchAck.pack([0, 1, 2]))
    assert bench.ask(RequestCode.BATCH_ACK_MESSAGE, body=BatchAckBody("broker-a", (body,)).encode()).code == 0
    assert bench.broker.offsets.get("g", "orders", 1) == 3


def test_change_invisible(bench: Bench) -> None:
    """A client can extend or shorten the time for which a message blocks its queue."""
    a, b, c = pop(bench, order=True)
    bench.advance(1_000)
    reply = hide(bench, a, 500)
    assert (reply.ext["popTime"], reply.ext["invisibleTime"], reply.ext["reviveQid"]) == (
        str(a.handle.pop_time_ms),
        "1500",
        "999",
    )
    hide(bench, b, 500)
    hide(bench, c, 500)
    assert pop(bench, order=True) == []
    bench.advance(500)
    assert bodies(pop(bench, order=True)) == ["a", "b", "c"]


def test_held_pop_is_woken_by_an_ack(bench: Bench) -> None:
    """A pop that waits for a blocked queue is answered by the ack that unblocks it, in the same call."""
    a, b, _ = pop(bench, order=True)
    ack(bench, a)
    ack(bench, b)
    hold_pop(bench, peer=OTHER, order=True)
    send(bench, "d", queue_id=1)
    popped = pop(bench, order=True, attempt_id="x")
    assert popped == []
    bench.advance(INVISIBLE_MS - 1)
    assert len(bench.broker.writer.watched) > 0
    [reply] = bench.advance(1)
    assert bodies(popped_of(reply.command)) == ["c", "d"]


def test_held_pop_is_woken_when_all_is_acknowledged(bench: Bench) -> None:
    taken = pop(bench, order=True, max_msg_nums=1)
    hold_pop(bench, peer=OTHER, order=True)
    replies = bench.tell(
        RequestCode.ACK_MESSAGE,
        {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": "1",
            "extraInfo": taken[0].handle.encode(),
            "offset": "0",
        },
    )
    assert [send_.peer for send_ in replies] == [1, OTHER.id]
    assert bodies(popped_of(replies[1].command)) == ["b", "c"]


def test_reset_opens(bench: Bench) -> None:
    """An administrator's reset also applies to a blocked queue."""
    pop(bench, order=True)
    bench.broker.offsets.reset("g", "orders", 1, 1)
    assert bodies(pop(bench, order=True)) == ["b", "c"]


def test_forgotten_after_a_day(bench: Bench) -> None:
    """Queues unused for a day are left out of the file."""
    pop(bench, order=True)
    bench.now_ms += 25 * 3_600_000
    send(bench, "x", queue_id=0)
    pop(bench, order=True, queue_id=0)
    bench.broker.save(bench.now_ms)
    saved = bench.files.load("consumerOrderInfo.json")
    assert saved is not None
    assert list(saved["table"]["orders@g"]) == [0]


def test_many_queues_that_open_at_once_are_taken_in_slices() -> None:
    """The cost is linear in the number of queues: each is read once."""
    orders = OrderTable(ConfigFileStore(MemoryDisk()))
    for queue_id in range(1_000):
        orders.popped(("orders", "g", queue_id), None, 60_000, [1, 2], START_MS)
    taken = []
    while (next_ms := orders.next_open_ms()) is not None and next_ms <= START_MS + 60_000:
        taken.append(orders.take_open(START_MS + 60_000))
    assert [len(some) for some in taken] == [256, 256, 256, 232]
    assert len({queue for some in taken for queue in some}) == 1_000


def test_queues_popped_in_order_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue above the limit is refused with an error text; queues already in the table continue."""
    monkeypatch.setattr("mqtrail.broker.pop.orders.ORDERS_MAX", 1)
    send(bench, "x", queue_id=2)
    assert bodies(pop(bench, queue_id=1, order=True)) == ["a", "b", "c"]
    refused = ask_pop(bench, queue_id=2, order=True)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "pop fewer queues in order" in (refused.remark or "")
    bench.advance(INVISIBLE_MS)
    assert bodies(pop(bench, queue_id=1, order=True)) == ["a", "b", "c"]
