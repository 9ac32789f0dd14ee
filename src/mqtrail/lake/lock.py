"""One writer per lake: a lock on `<lake>/_lock`, held during each write; a pipeline holds it from start to end.

The lock is a flock, which the operating system releases when the process ends, so a crash leaves no lock. On a mounted
folder it works between hosts if the file system supports that (NFS 4 and SMB do). The file names the holder, for the
error message of other processes. It is not deleted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from .errors import LakeBusy, LakeUnsupported

LOCK_FILE = "_lock"
_HOLDER_SIZE_MAX = 4096


class WriteLock:
    """The lock of one lake. `held` is reentrant, from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._depth = 0
        self._guard = Lock()

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock while the block runs; yield whether it was free before.

        LakeBusy: another process, or another Lake object, holds it.
        """
        with self._guard:
            is_new = self._file is None
            if self._file is None:
                self._file = self._take()
            self._depth += 1
        try:
            yield is_new
        finally:
            with self._guard:
                self._depth -= 1
                if self._depth == 0 and self._file is not None:
                    os.ftruncate(self._file, 0)
                    os.close(self._file)
                    self._file = None

    def _take(self) -> int:
        path = self._folder / LOCK_FILE
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            os.ftruncate(file, 0)
            with _without_room():
                os.pwrite(file, json.dumps(holder).encode(), 0)
        except BlockingIOError:
            holder_text = _holder(os.pread(file, _HOLDER_SIZE_MAX, 0))
            os.close(file)
            raise LakeBusy(
                f"{self._folder}: found {holder_text} writing to this lake, expected one writer: wait until it ends, "
                "stop it, or use another --lake folder"
            ) from None
        except OSError as error:
            os.close(file)
            raise LakeUnsupported(
                f"{path}: found a file system without locks ({error.strerror}), expected one with flock: put the lake "
                "on a local disk, or mount it with locks"
            ) from error
        return file


@contextmanager
def _without_room() -> Iterator[None]:
    """Ignore a full disk: the lock holds without the holder's name, and what is written next reports the disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _holder(text: bytes) -> str:
    """Return the holder that the lock file names."""
    try:
        found = json.loads(text)
        return f"process {found['pid']} on host {found['host']} (since {found['since']})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"
