"""The state file: what is acknowledged, so that the next run continues there, however the last one ended."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from mqtrail.feed import FolderFiles
from mqtrail.net import is_lock_held

from .model import BinlogError, BinlogPlace

VERSION: Final = 1
WRITER: Final = "`mqtrail binlog run`"
FILES: Final = FolderFiles(VERSION, BinlogError, "run", option="--state", mode=0o600)


@dataclass(slots=True, kw_only=True)
class BinlogState:
    """Progress of one run after another. source: what tells the server from others. wish: topic and filters.

    tables: of each table with a complete snapshot, the place of that snapshot, or of its first try if that was
    interrupted. begun: the same of tables whose snapshot is not complete. place: all transactions before it are
    acknowledged; "" before the first snapshot. done: how many messages of the next one are.
    gtids: the last GTID of each domain before place.
    """

    version: int = VERSION
    source: str
    wish: dict[str, Any]
    queues: list[str]
    tables: dict[str, str] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)
    is_snapshot_done: bool = False
    place: str = ""
    done: int = 0
    gtids: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    event_ms: int = 0  # binlog time of the last transaction
    idle_ms: int = 0  # when the server last had nothing new
    saved_ms: int = 0
    started_ms: int = 0

    def lag_ms(self, now_ms: int) -> int | None:
        """Return how far it is behind in the binlog's time; 0: it has everything. None: it has read nothing yet.

        What the server wrote since is not known: the lag grows from when the server last had nothing new.
        """
        known_ms = max(self.event_ms, self.idle_ms)
        if not known_ms:
            return None
        lag_ms = max(0, now_ms - known_ms)
        return 0 if self.idle_ms == known_ms and lag_ms <= IDLE_KNOWN_MS else lag_ms


IDLE_KNOWN_MS: Final = 5_000  # how long "nothing new" stays true without a further word


def place_of_text(text: str) -> BinlogPlace:
    """Return the place of file:position."""
    file, _, position = text.rpartition(":")
    return BinlogPlace(file, int(position))


def with_gtid(gtids: str, gtid: str) -> str:
    """Return the GTIDs after one more: the last one of each domain."""
    found = {one.partition("-")[0]: one for one in gtids.split(",") if one}
    found[gtid.partition("-")[0]] = gtid
    return ",".join(sorted(found.values()))


def read_state(path: Path) -> BinlogState | None:
    """Return the state; None: there is no file. BinlogError: it is none. OSError."""
    found = FILES.read(path, WRITER)
    if found is None:
        return None
    with FILES.content_of(path, WRITER):
        BinlogState(**found)  # TypeError: other fields
        state = msgspec.convert(found, BinlogState)
        for text in filter(None, (state.place, *state.tables.values(), *state.begun.values())):
            place_of_text(text)
        return state


def save_state(path: Path, state: BinlogState) -> None:
    """Replace the file, durable. OSError."""
    FILES.save(path, asdict(state))


def alone(path: Path) -> AbstractContextManager[None]:
    """Keep other processes from the state file. BinlogError: one has it."""
    return FILES.alone_with(path, _lock_file(path))


def is_running(path: Path) -> bool:
    """Return whether a process has the state file."""
    return is_lock_held(_lock_file(path))


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
