"""One writer per lake: a lock on `<lake>/_lock`, held during each write; a pipeline holds it from start to end.

In an object store the lock is a lease (`lease`). In a folder it is a flock, which the operating system releases when
the process ends, so a crash leaves no lock. On a mounted folder it works between hosts if the file system supports that
(NFS 4 and SMB do). The file names the holder, for the error message of other processes. It is not deleted; a holder
whose file was deleted by others commits nothing more.
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

from .errors import LakeBusy, LakeLost, LakeUnreadable, LakeUnsupported
from .lease import FOLDER as LEASE_FOLDER
from .lease import Lease, named_holder
from .places import LakePath
from .storeerrors import ObjectStoreError

LOCK_FILE = "_lock"
_HOLDER_SIZE_MAX = 4096


class WriteLock:
    """The lock of one lake. `held` is reentrant, from any thread."""

    def __init__(self, folder: LakePath) -> None:
        self._folder = folder
        self._taken: FileLock | Lease | None = None
        self._depth = 0
        self._guard = Lock()

    @property
    def taken(self) -> FileLock | Lease | None:
        """The lock held now, a new object each time it is taken; None: not held."""
        return self._taken

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock while the block runs; yield whether it was free before.

        LakeBusy: another process, or another Lake object, holds it; LakeLost: another one took it from this one.
        """
        with self._guard:
            is_new = self._taken is None
            if self._taken is None:
                self._taken = _take(self._folder)
            self._taken.check()
            self._depth += 1
        try:
            yield is_new
        finally:
            with self._guard:
                self._depth -= 1
                if self._depth == 0 and self._taken is not None:
                    taken, self._taken = self._taken, None
                    taken.release()


def _take(folder: LakePath) -> FileLock | Lease:
    """Take the lock of a lake. LakeBusy, LakeUnsupported, LakeUnreadable."""
    holder: dict[str, object] = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if isinstance(folder, Path):
        return FileLock(folder, holder)
    try:
        return Lease(folder / LEASE_FOLDER, holder)
    except ObjectStoreError as error:
        raise LakeUnreadable(str(error)) from None


class FileLock:
    """A flock that is held."""

    def __init__(self, folder: Path, holder: dict[str, object]) -> None:
        """Take it. LakeBusy, LakeUnsupported."""
        self._folder = folder
        self._file = self._take(holder)

    def check(self) -> None:
        """LakeLost: the file is not there any more, so another process may hold the lock of a new one."""
        path = self._folder / LOCK_FILE
        try:
            is_own = os.path.samestat(os.fstat(self._file), path.stat())
        except FileNotFoundError:
            is_own = False
        if not is_own:
            raise LakeLost(
                f"{path}: found this lock file removed or replaced, expected it to stay while this process writes to "
                "the lake: start this command again, and do not delete the file (it blocks nothing when its process "
                "has ended)"
            )

    def release(self) -> None:
        """Give it back."""
        os.ftruncate(self._file, 0)
        os.close(self._file)

    def _take(self, holder: dict[str, object]) -> int:
        path = self._folder / LOCK_FILE
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            with _without_room():
                os.pwrite(file, json.dumps(holder).encode(), 0)
        except BlockingIOError:
            holder_text = named_holder(os.pread(file, _HOLDER_SIZE_MAX, 0))
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
