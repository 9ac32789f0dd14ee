"""Content of a store's folder that this version does not support. Such a folder is refused at the start and not
changed.

Source of the names: StorePathConfigHelper, TopicQueueMappingManager, RocksDBConsumeQueueStore, apache/rocketmq store/,
broker/; DLedgerConfig, openmessaging/dledger.
"""

from __future__ import annotations

from mqtrail.wire import BodyError, MessageIllegal, loads_file

from ..disk import Disk
from ..errors import StoreError
from .log import FOLDER

FOREIGN_FOLDERS = {
    "batchconsumequeue": "BatchCQ topics",
    "consumequeue_ext": "extended ConsumeQueues (enableConsumeQueueExt)",
    "consumequeue_rocksdb": "ConsumeQueues in RocksDB (storeType=defaultRocksDB)",
    "consumequeue_r": "ConsumeQueues in RocksDB (rocksdbCQDoubleWriteEnable)",
}
TABLES_FILE = "mqtrail-tables"  # of a store on tables
STATIC_TOPICS_FILE = "config/topicQueueMapping.json"


def refuse_foreign(disk: Disk, own_ledger: str = "") -> None:
    """Raise StoreError if the folder has such content. own_ledger: the folder of a DLedger member, which opens it."""
    remedy = "this version does not read them; open the folder with Apache RocketMQ"
    for folder, what in FOREIGN_FOLDERS.items():
        if disk.list(folder):
            raise StoreError(f"found {folder}/, that is {what}, expected plain ConsumeQueues only: {remedy}")
    for name in disk.list(""):
        if name.startswith("dledger-") and not own_ledger:
            raise StoreError(
                f"found {name}/, a DLedger CommitLog, expected commitlog/ only: set enableDLegerCommitLog and the "
                "other settings of its group, or name another folder"
            )
    if own_ledger and any(disk.size(f"{FOLDER}/{name}") for name in disk.list(FOLDER)):
        raise StoreError(
            f"found files in {FOLDER}/, expected {own_ledger}/ only: a plain CommitLog in front of DLedger's is not "
            "supported; start with an empty folder, or without enableDLegerCommitLog"
        )
    if disk.size(TABLES_FILE) is not None:
        raise StoreError(
            "found a folder whose messages are in tables of a database, expected a CommitLog: pass --store with the "
            "database's URL, or name another --data"
        )
    data = disk.read(STATIC_TOPICS_FILE)
    if data:
        try:
            tables = loads_file(data)
        except BodyError:
            return  # Apache's own reader starts without it as well
        if isinstance(tables, dict) and any(tables.get(name) for name in ("topicQueueMappingInfoMap", "mapping")):
            raise StoreError(f"found static topics in {STATIC_TOPICS_FILE}, expected none: {remedy}")


def refuse_bad_name(topic: str) -> None:
    """Raise MessageIllegal if a topic cannot be the name of a folder, or is too long for a record."""
    size = len(topic.encode())
    if not 1 <= size <= 255 or topic in (".", "..") or "/" in topic or "\0" in topic:
        raise MessageIllegal(
            f"found topic {topic[:40]!r} of {size} bytes, expected 1 to 255 bytes and a valid folder name"
        )
