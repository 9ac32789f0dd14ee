"""The files of a run: JSON that one can read, each with a version, and a lock."""

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
    """Reads and writes the files of runs. version: of each file. error: to raise. runs: what has the files.

    option: how an operator names the folder, or the file. mode: of a file.
    """

    version: int
    error: type[MQError]
    runs: str
    option: str = "--folder"
    mode: int = 0o644

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
                f"mqtrail that wrote it, or a new {self.option}"
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
            f"found {what} in {str(path)!r}, expected a file of {writer}: restore it, or pass another {self.option}"
        )

    def save(self, path: Path, content: dict[str, Any]) -> None:
        """Replace a file, durable. OSError."""
        replace_file(path, json.dumps({"version": self.version} | content, indent=1).encode(), self.mode)

    def alone(self, folder: Path) -> AbstractContextManager[None]:
        """Keep other runs from the folder, which is made if it is missing. The error: one has it."""
        folder.mkdir(parents=True, exist_ok=True)
        return self.alone_with(folder, folder / LOCK)

    def alone_with(self, place: Path, lock: Path) -> AbstractContextManager[None]:
        """Keep other runs from a file, or a folder, by this lock. The error: one has it."""
        taken = self.error(
            f"found another {self.runs} with {str(place)!r}, expected to be alone: stop it, or pass another "
            f"{self.option}"
        )
        return hold_lock(lock, taken)

    @staticmethod
    def is_running(folder: Path) -> bool:
        """Return whether a run has the folder."""
        return is_lock_held(folder / LOCK)
