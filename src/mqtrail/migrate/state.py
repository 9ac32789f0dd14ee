"""The folder of a migration: files that one can read, and a lock.

bridge.json     how far the bridge is: what is acknowledged, so that a run continues there after any end
offsets.jsonl   the offset map
offsets-GROUP.json, compare.json, results.json    what the last commands found, for the gate
tee-SIDE.json   since when tees send to both sides with that side deciding
copies-*.jsonl  copies of tees that failed (copies.py)
underway-*.jsonl    copies of tees that are on their way (journal.py)
results-*.jsonl results of handlers (results.py)
back-GROUP.json the last `migrate back --apply` of a group of Kafka
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mqtrail.feed import FolderFiles

from .model import MigrateError

VERSION: Final = 1
BRIDGE, MAP, COMPARE, RESULTS = "bridge.json", "offsets.jsonl", "compare.json", "results.json"
SKIPPED_COUNT: Final = 1_000  # records that a bridge may leave out
FILES: Final = FolderFiles(VERSION, MigrateError, "bridge")
read_json, save_json, content_of = FILES.read, FILES.save, FILES.content_of
alone, is_running = FILES.alone, FILES.is_running


@dataclass(slots=True, kw_only=True)
class BridgeState:
    """Progress of one bridge after another. cluster: Kafka's id. topic: Kafka's; target: RocketMQ's.

    order, headers, queues: what must be the same in all runs. starts: by partition, where it began.
    next_offsets: by partition, all records before it are acknowledged. ends: Kafka's ends when they were last asked, at
    ends_ms. counts: the outcomes of records. skipped: records that --skip-record left out. lost: by partition, how many
    records Kafka had deleted before they were read. event_ms: time of the last acknowledged record.
    """

    version: int = VERSION
    cluster: str
    topic: str
    target: str
    order: str
    headers: str
    queues: list[str]
    starts: dict[str, int] = field(default_factory=dict)
    next_offsets: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    ends_ms: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    event_ms: int = 0
    saved_ms: int = 0
    started_ms: int = 0

    def lag(self) -> int | None:
        """Return how many offsets it is behind Kafka's ends as of ends_ms; None: unknown."""
        if not self.ends_ms:
            return None
        return sum(max(0, end - self.next_offsets.get(one, 0)) for one, end in self.ends.items())


def read_bridge(folder: Path) -> BridgeState | None:
    """Return the state of the bridge; None: there is none. MigrateError: the file is damaged. OSError."""
    found = read_json(folder / BRIDGE, "`mqtrail migrate bridge`")
    if found is None:
        return None
    with content_of(folder / BRIDGE, "`mqtrail migrate bridge`"):
        BridgeState(**found)  # TypeError: other fields
        state = msgspec.convert(found, BridgeState)
        for partition in (*state.starts, *state.next_offsets, *state.ends, *state.lost):
            int(partition)
        return state


def save_bridge(folder: Path, state: BridgeState) -> None:
    """Replace the file, durable. OSError."""
    save_json(folder / BRIDGE, asdict(state))


def tee_file(folder: Path, decides: str) -> Path:
    """Return the file that says since when a tee sends to both sides, with that side deciding."""
    return folder / f"tee-{decides}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeeState:
    """What is known of the tees with one side deciding. since_ms: of the first one.

    cluster, partition_count: of Kafka; queues: of RocketMQ, broker/queue. They are those that the last start found, so
    that a tee can start while the other side is away; "", 0 and none: an earlier version wrote the file.
    """

    version: int = VERSION
    topic: str
    target: str
    since_ms: int
    cluster: str = ""
    partition_count: int = 0
    queues: list[str] = field(default_factory=list)


def read_tee(folder: Path, decides: str) -> TeeState | None:
    """Return what is known of the tees with that side deciding; None: there was none. MigrateError, OSError."""
    path, writer = tee_file(folder, decides), "`mqtrail.migrate.TeeProducer`"
    found = read_json(path, writer)
    if found is None:
        return None
    with content_of(path, writer):
        return msgspec.convert(found, TeeState)


def save_tee(folder: Path, decides: str, state: TeeState) -> None:
    """Write that file, durable. OSError."""
    save_json(tee_file(folder, decides), asdict(state))
