"""What the job reads of Spark's checkpoints.

<lake>/_checkpoints/<stream>/id        name of the stream in commits
<lake>/_checkpoints/<stream>/spark/    Spark's files: it writes offsets/<batch> before a batch and commits/<batch> after
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path

from .config import JobFailed
from .offsets import QueueOffsets, offsets_from_json

_ID = re.compile(r"[\w.-]+")


class Checkpoint:
    """One stream's checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def spark(self) -> Path:
        """The checkpointLocation for Spark."""
        return self._folder / "spark"

    def id(self) -> str:
        """The name of this checkpoint in app transactions and in paths.

        A new checkpoint numbers its batches from 0, so it needs a new name: else its batches count as committed.
        """
        file = self._folder / "id"
        text = file.read_text(errors="replace") if file.exists() else ""
        if _ID.fullmatch(text):
            return text
        if _batches(self.spark / "commits"):
            raise JobFailed(
                f"{file}: found {text[:80]!r}, expected the name of this checkpoint: restore it from a copy, or remove "
                f"{self._folder} to read again what the cluster still has"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".tmp")
        written.write_text(f"{self._folder.name}-{uuid.uuid4().hex[:12]}")
        os.replace(written, file)
        return file.read_text()

    def offsets(self) -> QueueOffsets:
        """Where the stream continues: the end of its last committed batch; empty before the first one."""
        committed = _batches(self.spark / "commits")
        offsets = _batches(self.spark / "offsets")
        if not committed or committed[-1] not in offsets:
            return {}
        file = self.spark / "offsets" / str(committed[-1])
        try:
            # The lines are a version, the batch's metadata, and the offsets of each source.
            return offsets_from_json(json.loads(file.read_text().splitlines()[2]))
        except (ValueError, IndexError, RecursionError) as error:
            raise JobFailed(
                f"{file} contains no offsets of this source ({error}): remove {self._folder} to start again"
            ) from None


def _batches(folder: Path) -> list[int]:
    names = [file.name for file in folder.glob("*")] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())
