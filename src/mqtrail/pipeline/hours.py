"""The publish hours that are due for a judgement: those with new attempts, and those with open states.

They are kept in one small file beside the checkpoints, which is replaced as a whole. After a crash it can name too many
hours, never too few.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock


class JudgedHours:
    """pending: hours with attempts that were not judged. open: hours where a later judgement may differ."""

    def __init__(self, file: Path, every: Callable[[], Iterable[int]] = tuple) -> None:
        """every: all hours with attempts. All of them are due if the file is damaged."""
        self._file = file
        self._lock = Lock()
        self._open: set[int] = set()
        self.is_rebuilt = False
        try:
            kept = json.loads(file.read_bytes()) if file.exists() else {"pending": (), "open": ()}
            self._pending = {int(hour) for hour in kept["pending"]}
            self._open = {int(hour) for hour in kept["open"]}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self._pending, self._open = set(every()), set()
            self.is_rebuilt = True

    @property
    def due(self) -> set[int]:
        """The hours to judge now."""
        with self._lock:
            return self._pending | self._open

    def add_pending(self, hours: Iterable[int]) -> None:
        """Note hours that get new attempts, before these are committed."""
        with self._lock:
            self._pending |= set(hours)
            self._save()

    def judged(self, hours: Iterable[int], still_open: Iterable[int]) -> None:
        """Note that hours were judged, and which of them have open states. Call it after the judgement's commit."""
        with self._lock:
            self._pending -= set(hours)
            self._open = (self._open - set(hours)) | set(still_open)
            self._save()

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(".tmp")
        written.write_text(json.dumps({"pending": sorted(self._pending), "open": sorted(self._open)}))
        os.replace(written, self._file)
