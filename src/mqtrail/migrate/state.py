"""The folder of a migration: files that one can read, and a lock.

bridge.json     how far the bridge is: what is acknowledged, so that a run continues there after any end
offsets.jsonl   the offset map
offsets-GROUP.json, compare.json    the last results, for the gate
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from mqtrail.net import hold_lock, is_lock_held, replace_file

from .model import MigrateError

VERSION: Final = 1
BRIDGE, MAP, COMPARE, LOCK = "bridge.json", "offsets.jsonl", "compare.json", "lock"
SKIPPED_COUNT: Final = 1_000  # records that a bridge may leave out


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


def read_json(path: Path, writer: str) -> dict[str, Any] | None:
    """Return the content of a file of this version; None: there is none. MigrateError. OSError."""
    try:
        found = json.loads(path.read_text("utf-8"))
        version = found.get("version")
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, type(error).__name__, writer) from None
    if version != VERSION:
        raise MigrateError(
            f"found a file of version {version} in {str(path)!r}, expected {VERSION}: use the version of mqtrail that "
            "wrote it, or a new --folder"
        )
    return dict(found)


@contextmanager
def content_of(path: Path, writer: str) -> Iterator[None]:
    """Use what `read_json` returned. MigrateError: a field is missing, or has a value of another type."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _damaged(path, "other fields", writer) from None


def _damaged(path: Path, what: str, writer: str) -> MigrateError:
    return MigrateError(
        f"found {what} in {str(path)!r}, expected a file of {writer}: restore it, or pass another --folder"
    )


def save_bridge(folder: Path, state: BridgeState) -> None:
    """Replace the file, durable. OSError."""
    save_json(folder / BRIDGE, asdict(state))


def save_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file, durable. OSError."""
    replace_file(path, json.dumps({"version": VERSION} | content, indent=1).encode(), 0o644)


def alone(folder: Path) -> AbstractContextManager[None]:
    """Keep other bridges from the folder, which is made if it is missing. MigrateError: one has it."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = MigrateError(
        f"found another bridge with the folder {str(folder)!r}, expected to be alone: stop it, or pass another --folder"
    )
    return hold_lock(folder / LOCK, taken)


def is_running(folder: Path) -> bool:
    """Return whether a bridge has the folder."""
    return is_lock_held(folder / LOCK)
