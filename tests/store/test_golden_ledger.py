"""The folder of a DLedger member of Apache's: opened, and written again byte for byte."""

import struct

from mqtrail.store import MemoryDisk
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import LEDGER_HEAD_SIZE, check_record, decode_properties, tags_code
from tests.wire.test_ledger import STORE, stored

FOLDER = "dledger-n0"
TOPIC = "TopicTest"
SIZES = {"segment_size": STORE["segment_size"], "index_units": STORE["index_units"]}


def apaches_disk() -> MemoryDisk:
    disk = MemoryDisk()
    for path, file in STORE["files"].items():
        if path.startswith((f"{FOLDER}/data", f"{FOLDER}/index")):
            data = stored(path)
            disk.open(path, file["size"]).data[: len(data)] = data
        elif path.startswith(FOLDER):
            disk.replace(path, stored(path))
    return disk


def test_apaches_folder_opens() -> None:
    """All entries, what is committed, term and vote; nothing of it changes."""
    disk = apaches_disk()
    log = LedgerLog(disk, "n0", **SIZES)
    assert (log.begin_index, log.end_index, log.end_position) == (0, STORE["end_index"], STORE["end_position"])
    assert (log.start.wiped_size, log.start.rebuilt_units) == (0, 0)
    assert log.committed_index == log.end_index
    assert (log.term, log.voted) == (3, "n2")
    for path in STORE["files"]:
        data = stored(path)
        if path in disk.files:
            assert bytes(disk.files[path].data[: len(data) + 100]) == data + bytes(
                min(100, len(disk.files[path].data) - len(data))
            )


def test_our_folder_has_the_same_bytes() -> None:
    """A member of ours that got the same entries has the same files."""
    log = LedgerLog(apaches_disk(), "n0", **SIZES)
    disk = MemoryDisk()
    ours = LedgerLog(disk, "n0", **SIZES)
    ours.set_term(3, "n2")
    ours.append(log.entries(0, 1_000, 1 << 30))
    ours.close(committed_index=log.end_index)
    for path, file in STORE["files"].items():
        if path.startswith(FOLDER):
            assert disk.size(path) == file["size"]
            data = stored(path)
            found = disk.read(path) if path in disk.small else bytes(disk.files[path].data[: len(data)])
            assert found == data, path


def test_consume_queues_point_behind_the_heads() -> None:
    """The entries of Apache's ConsumeQueues are the records' places: 48 bytes behind those of the entries."""
    log = LedgerLog(apaches_disk(), "n0", **SIZES)
    queues: dict[int, bytes] = {}
    for entry in log.entries(0, 1_000, 1 << 30):
        head = check_record(entry.body)
        if head.topic == TOPIC:
            properties = decode_properties(entry.body[head.properties_start : head.properties_end])
            place = entry.position + LEDGER_HEAD_SIZE
            unit = struct.pack(">qiq", place, len(entry.body), tags_code(properties.get("TAGS", "")))
            queues[head.queue_id] = queues.get(head.queue_id, b"") + unit
    assert len(queues) == 4
    for queue_id, units in queues.items():
        assert stored(f"consumequeue/{TOPIC}/{queue_id}/00000000000000000000").rstrip(b"\0") == units.rstrip(b"\0")
