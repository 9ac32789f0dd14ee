"""The client's pure parts: allocation, queue choice, fault table, process queue, routes, addresses, trace text."""

import inspect
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import parse_namesrv
from mqtrail.client.core.faults import FaultTable, QueueChooser
from mqtrail.client.core.outgoing import Outgoing, send_result
from mqtrail.client.core.routes import ROUTE_ADDRESSES_MAX, ROUTE_QUEUES_MAX, TopicRoute, queue_count, read_route
from mqtrail.client.delivery.process_queue import ProcessQueue
from mqtrail.client.trace import text
from mqtrail.wire import (
    BodyError,
    BrokerData,
    Host,
    MessageExt,
    MessageQueue,
    QueueData,
    RemotingCommand,
    TopicRouteData,
    decode_trace,
    encode_trace,
)


def queues(count: int, *brokers: str) -> list[MessageQueue]:
    return [MessageQueue("orders", broker, number) for broker in brokers or ("broker-a",) for number in range(count)]


def test_the_chooser_goes_round_and_avoids_the_last_broker() -> None:
    """First attempts go round robin; a retry uses another broker unless there is none."""
    chooser = QueueChooser(5)
    both = queues(2, "broker-a", "broker-b")
    assert len({chooser.next(both) for _ in range(4)}) == 4
    assert {chooser.next(both, "broker-a").broker_name for _ in range(8)} == {"broker-b"}
    assert chooser.next(queues(2), "broker-a").broker_name == "broker-a"


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(549, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10000), (15000, 30000), (99999, 30000)],
)
def test_slow_brokers_are_avoided_for_a_while(latency_ms: int, avoided_ms: int) -> None:
    """The table of 5.x, entry by entry."""
    faults = FaultTable()
    faults.update("b", latency_ms, 1_000, isolate=False, reachable=True)
    assert faults.is_available("b", 1_000 + avoided_ms)
    assert not avoided_ms or not faults.is_available("b", 999 + avoided_ms)


def test_a_failure_isolates_and_a_success_makes_reachable_again() -> None:
    """Isolation counts as ten seconds and is not shortened by a later success."""
    faults = FaultTable()
    faults.update("b", 3, 0, isolate=True, reachable=False)
    assert not faults.is_available("b", 9_999)
    assert not faults.is_reachable("b")
    faults.update("b", 3, 1_000, isolate=False, reachable=True)
    assert not faults.is_available("b", 9_999)
    assert faults.is_reachable("b")
    assert faults.is_available("b", 10_000)
    chooser = QueueChooser(0)
    faults.update("broker-a", 3, 0, isolate=True, reachable=True)
    chosen = {chooser.next(queues(2, "broker-a", "broker-b"), None, faults, 5).broker_name for _ in range(6)}
    assert chosen == {"broker-b"}
    faults.forget("broker-a")
    assert faults.is_available("broker-a", 5)


def route_of(*counts: tuple[int, int], conf: str | None = None, addresses: int = 1) -> bytes:
    datas = tuple(QueueData(f"b{number}", *pair) for number, pair in enumerate(counts))
    brokers = tuple(BrokerData(f"b{number}", {0: "h:1"}) for number in range(addresses))
    return TopicRouteData(datas, brokers, conf).encode(strict=True)


@pytest.mark.parametrize(
    "data",
    [
        route_of((1 << 62, 4)),
        route_of((4, 1 << 31)),
        route_of((ROUTE_QUEUES_MAX, 0), (1, 0)),
        route_of((-1, 4)),
        route_of((4, 4), conf="b0:999999999"),
        route_of((4, 4), addresses=ROUTE_ADDRESSES_MAX + 1),
    ],
)
def test_a_route_that_claims_too_much_is_refused(data: bytes) -> None:
    """A short reply of a name server must not create millions of queues or connections to thousands of hosts."""
    with pytest.raises(BodyError, match="found a route with"):
        read_route(data)


def test_queues_are_counted_as_they_are_built() -> None:
    """Those of an order configuration too: more than AT_ONCE_MAX are built in a thread."""
    for data in (route_of((2, 3), (5, 0)), route_of(conf="b0:7;b1:2"), route_of((3, 3), conf="b0:4")):
        route = read_route(data)
        built = TopicRoute.build("T", route)
        assert queue_count(route) >= len(built.publish_queues) + len(built.subscribe_queues) > 0


def test_routes_of_any_shape_are_built() -> None:
    """Invalid parts of order configurations and brokers listed twice give each queue once, without an error."""
    data = read_route(route_of((2, 2), (3, 3), conf="b0:²;b1:2;:3;b1;b1:x;;b0:" + "9" * 5_000, addresses=2))
    assert [queue.queue_id for queue in TopicRoute.build("T", data).publish_queues] == [0, 1]
    twice = TopicRouteData((QueueData("b", 2, 2), QueueData("b", 2, 2)), (BrokerData("b", {0: "h:1"}),))
    assert TopicRoute.build("T", twice).subscribe_queues == (MessageQueue("T", "b", 0), MessageQueue("T", "b", 1))


@pytest.mark.parametrize("odd", ["9" * 400, "9223372036854775808", "x", "", "1.5", "٣"])
def test_a_stored_message_stays_stored_whatever_the_numbers(odd: str) -> None:
    """A success with impossible numbers is still a success; unknown numbers are -1."""
    queue = MessageQueue("T", "b", 3)
    found = send_result(Outgoing("T", b"", "", "ID"), queue, RemotingCommand(0, {"queueId": "1", "queueOffset": odd}))
    assert found is not None
    assert (found.queue, found.queue_offset) == ((queue, -1) if odd != "٣" else (MessageQueue("T", "b", 1), 3))


def message(offset: int, body: bytes = b"12345") -> MessageExt:
    host = Host("127.0.0.1", 1)
    return MessageExt("orders", body, 0, {}, 0, offset, offset, 0, 0, host, 0, host, 0, 0, 0, 0)


@given(st.lists(st.integers(0, 30), unique=True, max_size=20).map(sorted), st.randoms(use_true_random=False))
def test_the_commit_offset_is_the_lowest_unsettled(offsets: list[int], random: Random) -> None:
    """In whatever order messages are settled, exactly those below the commit offset are done."""
    held = ProcessQueue(queues(1)[0])
    held.put((message(offset) for offset in offsets), 31)
    assert held.size == 5 * len(offsets)
    left = list(offsets)
    random.shuffle(left)
    while left:
        offset = left.pop()
        assert held.remove(offset) == (min(left) if left else 31)
        assert held.remove(offset) is None
        assert held.count == len(left)
    assert (held.size, held.span, held.first_offset) == (0, 0, None)


def test_a_pull_that_comes_twice_is_taken_once() -> None:
    """Known messages are not new, also after they were settled."""
    held = ProcessQueue(queues(1)[0])
    assert len(held.put([message(3), message(4)], 5)) == 2
    held.remove(3)
    assert [one.queue_offset for one in held.put([message(3), message(4), message(5)], 6)] == [5]


def test_routes_need_rights_and_a_master() -> None:
    """Writable queues need WRITE and a master, readable ones only READ; a slave may be read instead."""
    data = TopicRouteData(
        (QueueData("a", 2, 1, 6), QueueData("b", 1, 1, 4), QueueData("c", 1, 1, 2), QueueData("d", 1, 1, 6)),
        (
            BrokerData("a", {0: "a:1", 1: "a:2"}, "C"),
            BrokerData("b", {0: "b:1"}, "C"),
            BrokerData("c", {0: "c:1"}, "C"),
            BrokerData("d", {1: "d:2"}, "C"),
        ),
    )
    route = TopicRoute.build("orders", data)
    assert [(queue.broker_name, queue.queue_id) for queue in route.publish_queues] == [("a", 0), ("c", 0)]
    assert [(queue.broker_name, queue.queue_id) for queue in route.subscribe_queues] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("d", 0),
    ]
    assert (route.master("d"), route.address("d"), route.address("a", 1)) == (None, "d:2", "a:2")
    assert (route.address("nobody"), route.address("a", 7)) == (None, "a:1")
    ordered = TopicRoute.build("orders", TopicRouteData(data.queue_datas, data.broker_datas, "a:2;broken;c:1"))
    assert [(queue.broker_name, queue.queue_id) for queue in ordered.publish_queues] == [("a", 0), ("a", 1), ("c", 0)]
    young = TopicRoute.from_template_route("young", data, 4)
    assert [(queue.topic, queue.broker_name) for queue in young.publish_queues] == [("young", "a")] * 2 + [
        ("young", "c")
    ]


def test_name_server_addresses() -> None:
    """Lists are split, cleaned and checked."""
    assert parse_namesrv(" a:1 ; b:2;a:1;") == ("a:1", "b:2")
    assert parse_namesrv(["[::1]:9876"]) == ("[::1]:9876",)
    assert [parse_namesrv(text, required=False) for text in ("", " ; ", "a:1")] == [(), (), ("a:1",)]
    for bad in ("", ";", "host", "host:", ":1", "host:x", "host:0", "host:99999"):
        with pytest.raises(ValueError, match=r"host:port"):
            parse_namesrv(bad)


def test_trace_text_is_what_the_wire_writes() -> None:
    """The hot path's records equal those of wire.trace_text field by field, decoded and encoded."""
    written = "".join(
        [
            text.trace_batch("ip@1#2", "start", 3, 1_700_000_000_000, 4),
            text.trace_loss("ip@1#2", "start", 1, 2, 3, "memory\x01 full"),
            text.trace_end(1, "CG", "ip@1#2", "start"),
            text.pub(1, "R", "PG", "T", "ID", "", "k1 k2", "h:1", 11, 7, 3, "OFF", True),
            text.pub_attempt(1, "", "PG", "T", "ID", "", "", "", -1, "SEND", 0, 3, "NOT_SENT", None, 9, True, "c", 5),
            text.pub_attempt(1, "R", "PG", "T", "ID", "k", "h:1", "b", 2, "SEND", 1, 3, "ERROR", 2, 9, False, "c", 5),
            text.sub_before(1, "R", "CG", "REQ", "ID", 2, "null"),
            text.sub_after("REQ", "ID", 15, False, "k1", 4, 1_700_000_000_230, "CG"),
            text.sub_result(
                "REQ", "ID", "CG", "T", "b", 1, 41, 2, "EXCEPTION", 15, 9, "c", text.detail(ValueError("\x02"))
            ),
            text.offset_commit(5, "CG", "T", "b", 1, 42, "c"),
        ]
    )
    records, rejects = decode_trace(written)
    assert not rejects
    names = [type(record).__name__ for record in records]
    assert names == [
        "TraceBatch",
        "TraceLoss",
        "TraceEnd",
        "Pub",
        "PubAttempt",
        "PubAttempt",
        "SubBefore",
        "SubAfter",
        "SubResult",
        "OffsetCommit",
    ]
    assert encode_trace(records) == written


@pytest.mark.parametrize(
    "write",
    [
        text.trace_batch,
        text.trace_loss,
        text.trace_end,
        text.pub,
        text.pub_attempt,
        text.sub_before,
        text.sub_after,
        text.sub_result,
        text.offset_commit,
    ],
)
@pytest.mark.parametrize("hostile", ["a\x01b", "\x02Pub\x011", "a\x01\x02b\x02", "\x01\x01\x01"])
def test_no_value_shifts_the_fields_of_a_record(write: Callable[..., str], hostile: str) -> None:
    """Any text of any record may contain separators: only they are removed, and the other fields stay."""
    kinds = {name: str(one.annotation) for name, one in inspect.signature(write).parameters.items()}
    good: dict[str, Any] = {
        name: True if "bool" in kind else 3 if "int" in kind else "value" for name, kind in kinds.items()
    }
    [expected], _ = decode_trace(write(**good))
    cleaned = hostile.replace("\x01", "").replace("\x02", "")
    for name, kind in kinds.items():
        if "str" not in kind:
            continue
        [record], rejects = decode_trace(write(**good | {name: hostile}))
        assert not rejects
        names = record.__struct_fields__
        [changed] = [name for name in names if getattr(record, name) != getattr(expected, name)]
        assert getattr(record, changed) == (cleaned or None)
        assert write(*(good | {name: hostile}).values()) == write(**good | {name: hostile})


def test_the_trace_of_the_reference_example() -> None:
    """Example 1 of the trace reference, which the Java encoder wrote."""
    msg_id = "C0A8010904D218B4AAC22F1C0A7B0000"
    written = text.pub(
        1700000000123, "DefaultRegion", "PG_demo", "TopicTest", msg_id, "TagA", "order-1 user-9",
        "192.168.1.1:10911", 11, 7, 0, "C0A8010100002A9F000000000003A2B1", True,
    )  # fmt: skip
    assert written == (
        "Pub\x011700000000123\x01DefaultRegion\x01PG_demo\x01TopicTest\x01" + msg_id + "\x01TagA\x01order-1 user-9"
        "\x01192.168.1.1:10911\x0111\x017\x010\x01C0A8010100002A9F000000000003A2B1\x01true\x02"
    )
