"""The folder of a run: JSON files that one can read, each with a version, and a lock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqtrail.net import hold_lock, is_lock_held, replace_file
from mqtrail.wire import MQError

LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Reads and writes the files of folders. version: of each file. error: to raise. runs: what has the folder."""

    version: int
    error: type[MQError]
    runs: str

    def read(self, path: Path, writer: str) -> dict[str, Any] | None:
        """Return the content of a file of this version; None: there is none. The error; OSError."""
        try:
            found = json.loads(path.read_text("utf-8"))
            version = found.get("version")
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError, RecursionError) as error:
            raise self._damaged(path, type(error).__name__, writer) from None
        if version != self.version:
            raise self.error(
                f"found a file of version {version} in {str(path)!r}, expected {self.version}: use the version of "
                "mqtrail that wrote it, or a new --folder"
            )
        return dict(found)

    @contextmanager
    def content_of(self, path: Path, writer: str) -> Iterator[None]:
        """Use what `read` returned. The error: a field is missing, or has a value of another type."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError):
            raise self._damaged(path, "other fields", writer) from None

    def _damaged(self, path: Path, what: str, writer: str) -> MQError:
        return self.error(
            f"found {what} in {str(path)!r}, expected a file of {writer}: restore it, or pass another --folder"
        )

    def save(self, path: Path, content: dict[str, Any]) -> None:
        """Replace a file, durable. OSError."""
        replace_file(path, json.dumps({"version": self.version} | content, indent=1).encode(), 0o644)

    def alone(self, folder: Path) -> AbstractContextManager[None]:
        """Keep other runs from the folder, which is made if it is missing. The error: one has it."""
        folder.mkdir(parents=True, exist_ok=True)
        taken = self.error(
            f"found another {self.runs} with the folder {str(folder)!r}, expected to be alone: stop it, or pass "
            "another --folder"
        )
        return hold_lock(folder / LOCK, taken)

    @staticmethod
    def is_running(folder: Path) -> bool:
        """Return whether a run has the folder."""
        return is_lock_held(folder / LOCK)
