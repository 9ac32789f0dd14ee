"""The position of a lake that an earlier version filled with streams of Spark.

<lake>/_checkpoints/<stream>/id        name of the stream in commits
<lake>/_checkpoints/<stream>/spark/    Spark's files: it wrote offsets/<batch> before a batch and commits/<batch> after

A batch that Spark did not record is read again. Files that a crash left of it in some tables are removed.
"""

from __future__ import annotations

import json
import re

from mqtrail import trail
from mqtrail.lake import DataFile, Lake, LakePath

from .config import JobFailed
from .offsets import QueueOffsets, offsets_from_json

CHECKPOINTS = "_checkpoints"
STREAMS = ("trace", "messages")
_ID = re.compile(r"[\w.-]+")
_TABLES = (trail.TRACE_EVENTS, trail.TRACE_REJECTS, trail.MESSAGE_META, trail.GAPS)


def spark_offsets(lake: Lake) -> tuple[QueueOffsets, dict[str, list[DataFile]]]:
    """Return the offset that streams of Spark reached in each queue, and the files of an unfinished batch to remove.

    Both are empty for a lake without such streams. JobFailed: their files are damaged.
    """
    offsets: QueueOffsets = {}
    removed: dict[str, list[DataFile]] = {}
    for stream in STREAMS:
        folder = lake.path / CHECKPOINTS / stream
        committed, planned = _last(folder / "spark" / "commits"), _last(folder / "spark" / "offsets")
        if planned is None:
            continue
        app = _app(folder)
        if planned != committed and lake[trail.ATTEMPTS.name].is_committed(app, planned):
            committed = planned
        elif planned != committed:
            for relation in _TABLES:
                files = lake[relation.name].files()
                if found := [file for file in files if file.path.startswith(f"batch={app}-{planned}/")]:
                    removed.setdefault(relation.name, []).extend(found)
        if committed is not None:
            offsets |= _offsets(folder, committed)
    return offsets, removed


def _app(folder: LakePath) -> str:
    file = folder / "id"
    text = file.read_text(errors="replace") if file.exists() else ""
    if not _ID.fullmatch(text):
        raise JobFailed(
            f"{file}: found {text[:80]!r}, expected the name of this checkpoint: restore it from a copy, or remove "
            f"{folder} to read again what the cluster still has"
        )
    return text


def _offsets(folder: LakePath, batch: int) -> QueueOffsets:
    file = folder / "spark" / "offsets" / str(batch)
    try:
        # The lines are a version, the batch's metadata, and the offsets of each source.
        return offsets_from_json(json.loads(file.read_text().splitlines()[2]))
    except (OSError, ValueError, IndexError, RecursionError) as error:
        raise JobFailed(
            f"{file} contains no offsets of this source ({error}): remove {folder} to read again what the cluster "
            "still has"
        ) from None


def _last(folder: LakePath) -> int | None:
    names = [file.name for file in folder.glob("*")]
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)
