"""Spark's checkpoints, as far as the job looks into them.

<lake>/_checkpoints/<stream>/id        what the stream's commits are known by
<lake>/_checkpoints/<stream>/spark/    Spark's own: offsets/<batch> is written before a batch, commits/<batch> after
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path

from mqtrail.pipeline.config import JobFailed
from mqtrail.pipeline.offsets import QueueOffsets, offsets_from_json

_ID = re.compile(r"[\w.-]+")


class Checkpoint:
    """One stream's checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def spark(self) -> Path:
        """What Spark is given as checkpointLocation."""
        return self._folder / "spark"

    def id(self) -> str:
        """The name of this checkpoint in app transactions and in paths. A new checkpoint counts its batches from 0
        again, so that without a new name all it does would be taken for done."""
        file = self._folder / "id"
        text = file.read_text(errors="replace") if file.exists() else ""
        if _ID.fullmatch(text):
            return text
        if _batches(self.spark / "commits"):
            raise JobFailed(
                f"{file}: found {text[:80]!r}, expected the name of this checkpoint: restore it from a copy, or remove "
                f"{self._folder} to read anew what the cluster still has"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".tmp")
        written.write_text(f"{self._folder.name}-{uuid.uuid4().hex[:12]}")
        os.replace(written, file)
        return file.read_text()

    def offsets(self) -> QueueOffsets:
        """Where the stream goes on: the end of its last committed batch; nothing before the first."""
        committed = _batches(self.spark / "commits")
        offsets = _batches(self.spark / "offsets")
        if not committed or committed[-1] not in offsets:
            return {}
        file = self.spark / "offsets" / str(committed[-1])
        try:
            # A version, the batch's metadata, then one line a source.
            return offsets_from_json(json.loads(file.read_text().splitlines()[2]))
        except (ValueError, IndexError) as error:
            raise JobFailed(
                f"{file} contains no offsets of this source ({error}): remove {self._folder} to start again"
            ) from None


def _batches(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in folder.glob("*") if file.name.isdigit()) if folder.is_dir() else []
