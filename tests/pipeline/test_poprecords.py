"""Records of POP: from the queue offsets in their bodies to rows with the ids of popped messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.test_ingest import LocalPulls, Reader

from mqtrail import trail
from mqtrail.pipeline import poprecords
from mqtrail.pipeline.ingest import ReadCluster
from mqtrail.wire import TIMER_TOPIC, MessageQueue, PopAck, PopCheckPoint

from .conftest import FolderCluster

TIMERS, ORDERS, RETRIES = (MessageQueue(topic, "broker-a", 0) for topic in (TIMER_TOPIC, "orders", "%RETRY%CG+orders"))
REVIVE = "rmq_sys_REVIVE_LOG_c"
POP_MS, INVISIBLE_MS = 1_700_000_000_100, 60_000
UNTIL_MS = POP_MS + INVISIBLE_MS


@pytest.fixture
def reader(tmp_path: Path, cluster: Any) -> Reader:
    return Reader(tmp_path, cluster, LocalPulls())


def rows(reader: Reader) -> list[tuple[Any, ...]]:
    """Run the ingest; return the rows about pops."""
    reader.ingest.run(ReadCluster("c", (), (TIMER_TOPIC,), (1_000,)), fail_on_data_loss=False)
    columns = "stored_kind, own_unique_key, group_name, retry_topic, reconsume_times, born_ms, due_ms"
    return reader.rows(trail.MESSAGE_META, columns)


def record(cluster: FolderCluster, body: bytes, tag: str, key: str = "orders@0@0@CG@1@broker-a@") -> None:
    properties = {"TAGS": tag, "UNIQ_KEY": key + tag, "REAL_TOPIC": REVIVE, "TIMER_OUT_MS": str(UNTIL_MS)}
    cluster.append(TIMERS, body, properties=properties, store_timestamp_ms=POP_MS)


def check_point(cluster: FolderCluster, *diffs: int, topic: str = "orders", **values: Any) -> None:
    point = PopCheckPoint(
        start_offset=0, pop_time_ms=POP_MS, invisible_ms=INVISIBLE_MS, count=len(diffs), topic=topic, group="CG",
        diffs=diffs, broker_name="broker-a",
    )  # fmt: skip
    record(cluster, json.dumps(json.loads(point.encode()) | values).encode(), "ck")


def ack(cluster: FolderCluster, *offsets: int, tag: str = "ack", topic: str = "orders") -> None:
    """Apache's broker gives the key of a single acknowledgement to one of several messages, too."""
    body = PopAck(
        offset=-1 if tag == "bAck" else offsets[0], group="CG", topic=topic, pop_time_ms=POP_MS,
        broker_name="broker-a", offsets=offsets if tag == "bAck" else None,
    ).encode()  # fmt: skip
    record(cluster, body, tag, key="orders@0@0@CG@1@broker-a@ack@" if tag == "bAck" else "orders@0@0@CG@1@broker-a@")


def row(kind: str, name: str, times: int = 0) -> tuple[Any, ...]:
    return (kind, name, "CG", "orders", times, POP_MS, UNTIL_MS)


def test_each_popped_message_has_a_row(reader: Reader, cluster: FolderCluster) -> None:
    """A check point has several offsets, an acknowledgement one or several."""
    cluster.append(ORDERS, *[b"x"] * 4)
    check_point(cluster, 0, 1, 3)
    ack(cluster, 0)
    ack(cluster, 1, 3, tag="bAck")
    expected = [row("POP_CK", f"orders-0-{offset}") for offset in (0, 1, 3)]
    expected += [row("POP_ACK", f"orders-0-{offset}") for offset in (0, 1, 3)]
    assert sorted(rows(reader)) == sorted(expected)
    attempts = reader.rows(trail.ATTEMPTS, "msg_id, stored_kind, topic, group_name, request_id, born_ms")
    assert ("orders-0-3", "POP_ACK", "orders", "CG", str(POP_MS), None) in attempts


def test_copies_in_a_retry_topic_keep_their_topic_and_attempts(reader: Reader, cluster: FolderCluster) -> None:
    """The topic of the pop is the retry topic, that of the message is not."""
    cluster.append(RETRIES, b"x", properties={"UNIQ_KEY": "a"}, reconsume_times=2)
    check_point(cluster, 0, topic=RETRIES.topic)
    assert rows(reader) == [row("POP_CK", "a", 2)]


@pytest.mark.parametrize("topic", ["orders", "gone"])
def test_records_about_messages_that_are_gone_stay_without_ids(
    reader: Reader, cluster: FolderCluster, topic: str
) -> None:
    """The message expired, or its topic was deleted."""
    cluster.append(ORDERS, b"x", b"y")
    cluster.expire(ORDERS, 2)
    check_point(cluster, 1, topic=topic)
    [(kind, _, group, *_)] = rows(reader)
    assert (kind, group) == ("POP_LOG", "")
    assert reader.rows(trail.ATTEMPTS, "msg_id") == []


def test_a_later_message_in_the_place_of_a_popped_one_is_not_the_popped_one(
    reader: Reader, cluster: FolderCluster
) -> None:
    """The topic was deleted and created again, so its queue offsets begin at 0 again."""
    cluster.append(ORDERS, b"old", b"old")
    check_point(cluster, 0, 1)
    ack(cluster, 0)
    cluster.recreate(ORDERS)
    cluster.append(ORDERS, b"new", properties={"UNIQ_KEY": "new"}, store_timestamp_ms=POP_MS + 1)
    assert [(kind, group) for kind, _, group, *_ in rows(reader)] == [("POP_LOG", ""), ("POP_LOG", "")]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"\xff", b'{"so":"x"}', b'{"n":1}', b'{"pt":-1,"c":"CG","t":"orders","n":1}', b"{"]
)
@pytest.mark.parametrize("tag", ["ck", "ack"])
def test_unreadable_records_say_nothing(reader: Reader, cluster: FolderCluster, body: bytes, tag: str) -> None:
    """They do not stop the reading."""
    cluster.append(ORDERS, b"x")
    record(cluster, body, tag)
    assert [kind for kind, *_ in rows(reader)] == ["POP_LOG"]


def test_timer_messages_of_applications_are_no_records_of_pop(reader: Reader, cluster: FolderCluster) -> None:
    """Whatever their ids, tags and bodies are."""
    cluster.append(ORDERS, b"x")
    body = PopAck(offset=0, group="CG", topic="orders", pop_time_ms=POP_MS).encode()
    names = {"TAGS": "ack", "ORIGIN_MESSAGE_ID": "b", "REAL_TOPIC": "orders", "mqtrail.pop_group": "CG"}
    for key in ("a", "a@ack"):
        cluster.append(TIMERS, body, properties={**names, "UNIQ_KEY": key})
    assert [(kind, key, group) for kind, key, group, *_ in rows(reader)] == [
        ("DELAY_WAIT", key, "") for key in ("a", "a@ack")
    ]


def test_many_pops_are_read_in_pieces(reader: Reader, cluster: FolderCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose messages are in two pieces has a row for each."""
    monkeypatch.setattr(poprecords, "POPS_MAX", 3)
    cluster.append(ORDERS, *[b"x"] * 10)
    check_point(cluster, *range(10))
    ack(cluster, 9)
    assert sorted(key for _, key, *_ in rows(reader)) == sorted([*(f"orders-0-{n}" for n in range(10)), "orders-0-9"])
