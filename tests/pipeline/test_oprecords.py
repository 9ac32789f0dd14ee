"""Op records of transactions: from the queue offsets in their bodies to rows with the ids of half messages."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.test_ingest import LocalPulls, Reader

from mqtrail import trail
from mqtrail.pipeline import named, oprecords
from mqtrail.pipeline.ingest import Counts, ReadCluster
from mqtrail.wire import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, MessageQueue, MessageSysFlag

from .conftest import FolderCluster

HALF, OP, GIVEN_UP, ORDERS = (
    MessageQueue(topic, "broker-a", 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, "orders")
)

OP_MS = 1_700_000_000_100


@pytest.fixture
def reader(tmp_path: Path, cluster: Any) -> Reader:
    return Reader(tmp_path, cluster, LocalPulls())


def run(reader: Reader, *topics: str) -> Counts:
    read = ReadCluster("c", (), (*topics, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC), (1_000,))
    return reader.ingest.run(read, fail_on_data_loss=True)


def half(cluster: FolderCluster, *names: str) -> None:
    for name in names:
        cluster.append(HALF, b"body", properties={"UNIQ_KEY": name, "REAL_TOPIC": "orders", "TAGS": "A"})


def op(cluster: FolderCluster, *bodies: bytes, tags: str = "d") -> None:
    cluster.append(OP, *bodies, properties={"TAGS": tags}, store_timestamp_ms=OP_MS)


def kinds(reader: Reader) -> list[tuple[Any, ...]]:
    rows = reader.rows(trail.MESSAGE_META, "own_unique_key, stored_kind, real_topic, queue_offset")
    return [row[:3] if row[1] != "OP" else row for row in rows]


def test_each_ended_half_message_has_a_row(reader: Reader, cluster: FolderCluster) -> None:
    """A record has one offset (4.9) or several (5.x); a half message is identified by its offset id."""
    half(cluster, "a", "b", "c", "d")
    op(cluster, b"0", b"2,3,")
    run(reader, "orders")
    halves = [(name, "HALF_READ", "orders") for name in "abcd"]
    ends = [("a", "OP", "orders", 0), ("c", "OP", "orders", 1), ("d", "OP", "orders", 1)]
    assert kinds(reader) == sorted([*halves, *ends], key=repr)
    offset_ids = dict(
        reader.rows(trail.MESSAGE_META, "CASE stored_kind WHEN 'HALF_READ' THEN own_unique_key END, offset_msg_id")
    )
    origins = dict(reader.rows(trail.MESSAGE_META, "CASE stored_kind WHEN 'OP' THEN own_unique_key END, origin_msg_id"))
    assert all(origins[name] == offset_ids[name] for name in "acd")
    attempts = reader.rows(trail.ATTEMPTS, "msg_id, stored_kind, topic")
    assert [row for row in attempts if row[1] == "OP"] == [(name, "OP", "orders") for name in "acd"]


def test_a_half_message_is_read_alone_if_its_topic_is_not_read(reader: Reader, cluster: FolderCluster) -> None:
    """Its topic is not read, so its commit could be missed."""
    half(cluster, "a")
    run(reader, "payments")
    assert kinds(reader) == [("a", "HALF", "orders")]


def test_a_half_message_from_before_its_topic_was_read_proves_nothing(reader: Reader, cluster: FolderCluster) -> None:
    """The topic is read since its latest messages, but the half topic from its first message on."""
    cluster.append(ORDERS, *[b"x"] * 3)
    cluster.expire(ORDERS, 2)
    run(reader, "orders")
    half(cluster, "a")
    run(reader, "orders")
    half(cluster, "b")
    run(reader, "orders")
    assert [row for row in kinds(reader) if row[0] in "ab"] == [("a", "HALF", "orders"), ("b", "HALF_READ", "orders")]


def test_half_messages_that_are_gone_have_no_row(reader: Reader, cluster: FolderCluster) -> None:
    """An op record of expired, later or unreadable half messages still ends the others."""
    half(cluster, "a", "b", "c", "d")
    cluster.damage(HALF, 2)
    cluster.expire(HALF, 1)
    op(cluster, b"0,1,2,3,9,9999999999999999")
    reader.ingest.run(ReadCluster("c", (), ("orders", OP_HALF_TOPIC), (1_000,)), fail_on_data_loss=False)
    assert kinds(reader) == [("b", "OP", "orders", 0), ("d", "OP", "orders", 0)]


def test_an_op_record_does_not_end_a_later_half_message(reader: Reader, cluster: FolderCluster) -> None:
    """The broker lost its store, so queue offsets begin at 0 again."""
    half(cluster, "a")
    op(cluster, b"0")
    cluster.recreate(HALF)
    cluster.append(HALF, b"body", properties={"UNIQ_KEY": "b"}, store_timestamp_ms=OP_MS + 1)
    reader.ingest.run(ReadCluster("c", (), ("orders", OP_HALF_TOPIC), (1_000,)), fail_on_data_loss=False)
    assert kinds(reader) == []


@pytest.mark.parametrize("body", [b"", b",", b"one", b"-1", b"0x0", b"\xff\xfe", "٣".encode(), b"9" * 40])
def test_bodies_without_offsets_end_nothing(reader: Reader, cluster: FolderCluster, body: bytes) -> None:
    """A broker never writes them; they do not stop the reading."""
    half(cluster, "a")
    op(cluster, body)
    run(reader, "orders")
    assert kinds(reader) == [("a", "HALF_READ", "orders")]


def test_only_records_with_the_tag_of_ends_count(reader: Reader, cluster: FolderCluster) -> None:
    """The broker's own check loop reads them in the same way."""
    half(cluster, "a")
    op(cluster, b"0", tags="x")
    run(reader, "orders")
    assert kinds(reader) == [("a", "HALF_READ", "orders")]


def test_many_ends_are_read_in_pieces(reader: Reader, cluster: FolderCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece reads its own half messages; holes between them are skipped or read."""
    monkeypatch.setattr(oprecords, "ENDS_MAX", 3)
    monkeypatch.setattr(named, "HOLE_MAX", 1)
    half(cluster, *(f"h{number}" for number in range(20)))
    op(cluster, b"0,1,3,7,", b"19,8,0,")
    run(reader, "orders")
    ended = sorted((row[0], row[3]) for row in kinds(reader) if row[1] == "OP")
    assert ended == [("h0", 0), ("h0", 1), ("h1", 0), ("h19", 1), ("h3", 0), ("h7", 0), ("h8", 1)]


def test_commits_and_given_up_half_messages_are_known(reader: Reader, cluster: FolderCluster) -> None:
    """A commit is known by its flag, a given-up half message by the topic that holds it."""
    cluster.append(ORDERS, b"x", properties={"UNIQ_KEY": "a"}, sys_flag=MessageSysFlag.TRANSACTION_COMMIT)
    cluster.append(GIVEN_UP, b"x", properties={"UNIQ_KEY": "b", "REAL_TOPIC": "orders"})
    run(reader, "orders")
    assert kinds(reader) == [("a", "COMMIT", ""), ("b", "CHECK_MAX", "orders")]
