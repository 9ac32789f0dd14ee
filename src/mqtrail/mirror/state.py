"""The folder of a mirror: its state in mirror.json, which one can read, and a lock."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mqtrail.feed import FolderFiles

from .model import MirrorError

VERSION: Final = 1
MIRROR: Final = "mirror.json"
WRITER: Final = "`mqtrail mirror run`"
SKIPPED_COUNT: Final = 1_000  # messages that are listed of those left out by hand
FILES: Final = FolderFiles(VERSION, MirrorError, "mirror")


@dataclass(slots=True, kw_only=True)
class MirrorState:
    """Progress of one run after another. source, target: names of the clusters. Queues are TOPIC@BROKER/QUEUE.

    queues: by topic, its queues in the target. pairs: by source queue, its queue in the target. keyed: topics whose
    messages with a sharding key go by it, since the target has not as many queues. starts, next_offsets: by source
    queue, where it began, and the offset before which all is acknowledged or left out. ends: of the source queues, when
    last asked, at ends_ms. targets: by target queue, the offset before which there is no copy that next_offsets does
    not count; is_ended: nor is there one after it. counts: what became of messages. lost: by source queue, how many the
    source had deleted. away: brokers of the source that did not answer.
    """

    version: int = VERSION
    source: str
    target: str
    queues: dict[str, list[str]] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)
    keyed: list[str] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    next_offsets: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    ends_ms: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    is_ended: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    away: list[str] = field(default_factory=list)
    stored_ms: int = 0  # when the source stored the last message that is acknowledged
    saved_ms: int = 0
    started_ms: int = 0

    def lag(self) -> int | None:
        """Return how many offsets it is behind the ends of the source as of ends_ms; None: unknown."""
        if not self.ends_ms:
            return None
        return sum(max(0, end - self.next_offsets.get(queue, 0)) for queue, end in self.ends.items())


def read_mirror(folder: Path) -> MirrorState | None:
    """Return the state of a mirror; None: there is none. MirrorError: the file is damaged. OSError."""
    found = FILES.read(folder / MIRROR, WRITER)
    if found is None:
        return None
    with FILES.content_of(folder / MIRROR, WRITER):
        MirrorState(**found)  # TypeError: other fields
        return msgspec.convert(found, MirrorState)


def save_mirror(folder: Path, state: MirrorState) -> None:
    """Replace the file, durable. OSError."""
    FILES.save(folder / MIRROR, asdict(state))


def is_running(folder: Path) -> bool:
    """Return whether a mirror has the folder."""
    return FILES.is_running(folder)
