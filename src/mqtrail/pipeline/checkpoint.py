"""Spark's checkpoints, as far as the job looks into them.

<lake>/_checkpoints/<stream>/id        what the stream's commits are known by
<lake>/_checkpoints/<stream>/spark/    Spark's own: offsets/<batch> is written before a batch, commits/<batch> after
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from mqtrail.pipeline.config import JobFailed
from mqtrail.pipeline.offsets import QueueOffsets, offsets_from_json


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
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{self._folder.name}-{uuid.uuid4().hex[:12]}")
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
                f"{file} holds no offsets of this source ({error}): remove {self._folder} to start anew"
            ) from None


def _batches(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in folder.glob("*") if file.name.isdigit()) if folder.is_dir() else []
