"""Store directories move between brokers: ours opens Apache's and the reverse, after a clean stop or a kill.

Segments and queue files are small, so that every directory here has rolled several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.driver import JavaClient
from interop.probe import request, wait_until

from mqtrail.client import QueueReader, SyncAdmin
from mqtrail.store import CommitLogConfig, CommitLogStore, PendingRecord, RealDisk
from mqtrail.wire import (
    Host,
    MessageExt,
    TopicConfig,
    body_crc,
    decode_records,
    encode_properties,
    tags_code,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

SEGMENT_SIZE = 1 << 20
QUEUE_ENTRIES = 100
QUEUE_COUNT = 4
TOPIC = "StoreTopic"
BODY_SIZE = 4000
COUNT = 600  # records of BODY_SIZE: three segments, and two files of each queue
QUERY_COUNT_MAX = 64
PEERS = [("5.3.3", "clean"), ("5.3.3", "killed"), ("4.9.7", "clean")]
BORN_HOST = Host("127.0.0.1", 40404)
START_MS = 1_700_000_000_000
SIZES = {
    "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
    "mappedFileSizeConsumeQueue": str(QUEUE_ENTRIES * 20),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "fileReservedTime": "1000000",  # the times in the fixtures are old
}


def our_config() -> CommitLogConfig:
    """Our store with the same sizes."""
    return CommitLogConfig(
        segment_size=SEGMENT_SIZE,
        queue_entries=QUEUE_ENTRIES,
        index_slots=5000,
        index_entries=20000,
        store_host=Host("127.0.0.1", 10911),
    )


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNameServer]:
    """A name server of 5.3.3 for all brokers of this module."""
    server = ApacheNameServer("5.3.3", tmp_path_factory.mktemp("namesrv")).start()
    yield server
    server.kill()


def apache_broker(version: str, folder: Path, namesrv: ApacheNameServer, store: Path) -> ApacheBroker:
    return ApacheBroker(version, folder, namesrv.address, name=f"store-{folder.name}", store=store, properties=SIZES)


@pytest.mark.parametrize(("version", "stop"), PEERS)
def test_apache_writes_ours_reads(version: str, stop: str, namesrv: ApacheNameServer, tmp_path: Path) -> None:
    """Every queue of a real broker's directory reads the same bytes through our store, and its index finds the same."""
    store = tmp_path / "store"
    broker = apache_broker(version, tmp_path / f"{version.replace('.', '')}{stop}", namesrv, store).start()
    try:
        with SyncAdmin(namesrv.address) as admin:
            admin.create_topic(TopicConfig(TOPIC, QUEUE_COUNT, QUEUE_COUNT), broker=broker.address)
            wait_until(lambda: _has_queues(namesrv.address, broker.name), "the route", 120)
        _send_with_java(namesrv.address, tmp_path / "java")
        wanted = _all_records(namesrv.address, broker.name)
        wait_until(lambda: _indexed(broker.address, wanted[0][-1]), "the index", 120)
    finally:
        if stop == "clean":
            broker.stop()
        else:
            broker.kill()
    _delete_route(namesrv.address, TOPIC)
    ours = CommitLogStore(RealDisk(store), our_config())
    try:
        assert ours.recovery.unclean == (stop == "killed")
        for queue_id, records in enumerate(wanted):
            assert (ours.min_offset(TOPIC, queue_id), ours.max_offset(TOPIC, queue_id)) == (0, len(records))
            assert _read_queue(ours, queue_id) == records
        for record in (wanted[0][0], wanted[1][99]):
            [message] = decode_records(record)
            for key in (message.msg_id, message.keys[0]):
                assert _query(ours, key) == [record], key
        assert len(_query(ours, "all")) == QUERY_COUNT_MAX
        # and it continues where Apache ended
        end = ours.end_offset
        [ticket] = ours.append([_pending(0, COUNT)], START_MS)
        assert ticket.physical_offset >= end
        assert ticket.queue_offset == len(wanted[COUNT % QUEUE_COUNT])
    finally:
        ours.close()


@pytest.mark.parametrize(("version", "stop"), PEERS)
def test_ours_writes_apache_reads(version: str, stop: str, namesrv: ApacheNameServer, tmp_path: Path) -> None:
    """Apache's broker starts on our directory, serves all of it and appends; ours then reads the records of both."""
    store = tmp_path / "store"
    ours = CommitLogStore(RealDisk(store), our_config())
    for first in range(0, COUNT, 50):
        ours.append([_pending(n // QUEUE_COUNT, n) for n in range(first, first + 50)], START_MS + first)
        ours.flush()
        ours.dispatch_index(10_000)
        ours.write_queues(sync=True)
    wanted = [_read_queue(ours, queue_id) for queue_id in range(QUEUE_COUNT)]
    if stop == "clean":
        ours.close()
    else:
        ours._disk.close()
    broker = apache_broker(version, tmp_path / f"{version.replace('.', '')}{stop}", namesrv, store).start()
    try:
        with SyncAdmin(namesrv.address) as admin:
            admin.create_topic(TopicConfig(TOPIC, QUEUE_COUNT, QUEUE_COUNT), broker=broker.address)
            wait_until(lambda: _has_queues(namesrv.address, broker.name), "the route", 120)
            assert _all_records(namesrv.address, broker.name) == wanted
            [message] = decode_records(wanted[2][7])
            assert [m.keys for m in admin.query(TOPIC, f"key-{7 * QUEUE_COUNT + 2}").messages] == [message.keys]
        with JavaClient("5.3.3", tmp_path / "java", namesrv.address) as java:
            java.consumer("c", group=f"Group{stop}{version.replace('.', '')}", topics={TOPIC: "*"})
            java.wait(lambda events: sum(e["event"] == "ended" for e in events) >= COUNT, "all consumed", 120)
            bodies = {event["bodyCRC"] for event in java.events("ended")}
            assert bodies == {body_crc(_body(n)) for n in range(COUNT)}
            java.producer("p", group="P")
            java.send("p", [{"topic": TOPIC, "body": f"theirs {i}", "keys": f"theirs-{i}"} for i in range(8)])
        wanted = _all_records(namesrv.address, broker.name)
        assert sum(map(len, wanted)) == COUNT + 8
    finally:
        broker.stop()
    _delete_route(namesrv.address, TOPIC)
    again = CommitLogStore(RealDisk(store), our_config())
    try:
        assert [_read_queue(again, queue_id) for queue_id in range(QUEUE_COUNT)] == wanted
        assert len(_query(again, "theirs-3")) == 1
        assert len(_query(again, "key-5")) == 1
    finally:
        again.close()


def _body(n: int) -> bytes:
    return f"body {n} ".encode().ljust(BODY_SIZE, b".")


def _pending(queue_place: int, n: int) -> PendingRecord:
    tag = f"Tag{n % 3}"
    properties = {"KEYS": f"key-{n} all", "TAGS": tag, "UNIQ_KEY": f"{n:032X}", "WAIT": "true"}
    return PendingRecord(
        TOPIC,
        n % QUEUE_COUNT,
        _body(n),
        encode_properties(properties).encode(),
        tags_code(tag),
        START_MS + queue_place,
        BORN_HOST.packed(),
    )


def _send_with_java(namesrv: str, folder: Path) -> None:
    with JavaClient("5.3.3", folder, namesrv) as java:
        java.producer("p", group="P", compressOver=1 << 20)
        for first in range(0, COUNT, 100):
            messages = [
                {"topic": TOPIC, "bodySize": BODY_SIZE, "keys": f"k{n} all", "tags": f"Tag{n % 3}"}
                for n in range(first, first + 100)
            ]
            results = java.send("p", messages, "async", timeoutMs=20_000)
            assert {result.get("status") for result in results} == {"SEND_OK"}
        [batch] = java.send("p", [{"topic": TOPIC, "body": f"{i}", "keys": f"b{i}"} for i in range(5)], "batch")
        assert batch["status"] == "SEND_OK"


def _has_queues(namesrv: str, broker_name: str) -> bool:
    with QueueReader(namesrv) as reader:
        return len([queue for queue in reader.queues(TOPIC) if queue.broker_name == broker_name]) == QUEUE_COUNT


def _all_records(namesrv: str, broker_name: str) -> list[list[bytes]]:
    """Every record of the topic as the broker delivers it, queue by queue."""
    with QueueReader(namesrv) as reader:
        queues = [queue for queue in reader.queues(TOPIC) if queue.broker_name == broker_name]
        return [
            [record for result in reader.read_range(queue, *reader.range(queue)) for record in result.records]
            for queue in queues
        ]


def _read_queue(store: CommitLogStore, queue_id: int) -> list[bytes]:
    records: list[bytes] = []
    position = store.min_offset(TOPIC, queue_id)
    while position < store.max_offset(TOPIC, queue_id):
        result = store.read(TOPIC, queue_id, position, 32, 1 << 20)
        assert result.records, result
        records += [bytes(record) for record in result.records]
        position = result.next_queue_offset
    return records


def _query(store: CommitLogStore, key: str) -> Sequence[bytes]:
    """The messages that the index finds, without hash collisions."""
    found = store.query(TOPIC, key, 64, 0, 1 << 62).records
    return [record for record in found if _carries(decode_records(record)[0], key)]


def _carries(message: MessageExt, key: str) -> bool:
    return key in (message.msg_id, *message.keys)


def _indexed(broker_address: str, record: bytes) -> bool:
    [message] = decode_records(record)
    ext = {"topic": TOPIC, "key": message.msg_id, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    header, _ = request(broker_address, 12, {**ext, "_UNIQUE_KEY_QUERY": "true"})
    return bool(header["code"] == 0)


def _delete_route(namesrv: str, topic: str) -> None:
    """Remove the topic from the name server, so that the next test has its own queues."""
    request(namesrv, 216, {"topic": topic})
