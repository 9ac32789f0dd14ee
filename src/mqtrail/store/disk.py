"""The disk, as far as a store needs one: a handful of methods, so that a test can break each of them.

`RealDisk` is the only place of the store that touches the operating system. Offsets and sizes are bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Protocol

from mqtrail.store.base import StoreError, StoreFull


class File(Protocol):
    """One file of a fixed size. Reads beyond what was written give zeros."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return size bytes from offset on, fewer at the file's end."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes without copying them; valid until close. They follow later writes."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of data, or raise: StoreFull when there is no room, OSError else."""

    def sync(self) -> None:
        """Make what was written survive power loss. May be called from another thread."""

    def close(self) -> None:
        """Give the file back; what was written stays."""


class Disk(Protocol):
    """Files and folders under one root. Paths are relative to it, with "/"."""

    def open(self, path: str, size: int, *, reserve: bool = False) -> File:
        """Open a file of exactly size bytes, making it and its folder when absent. reserve: take its room now, so that
        later writes cannot meet a full disk (StoreFull when there is not enough)."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none when it does not exist."""

    def size(self, path: str) -> int | None:
        """Return a file's size, None when there is none."""

    def modified_ms(self, path: str) -> int:
        """Return when a file was last written (ms since 1970)."""

    def read(self, path: str) -> bytes | None:
        """Return a small file's content, None when there is none."""

    def replace(self, path: str, data: bytes) -> None:
        """Put data in a file's place, durably: after a crash the old or the new content is there, whole."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with what is in it; nothing when it is not there."""

    def lock(self, path: str) -> None:
        """Take a file's lock until close. StoreError when another process has it."""

    def usage(self) -> float:
        """Return how full the partition is, 0 to 1."""

    def close(self) -> None:
        """Give back the locks."""


class RealFile:
    """A file that is written by pwrite and viewed through a mapping made when first asked for."""

    def __init__(self, path: Path, size: int, *, reserve: bool) -> None:
        self._path = path
        self._size = size
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        try:
            if os.fstat(self._fd).st_size < size:
                self._grow(reserve)
        except BaseException:
            os.close(self._fd)
            raise

    def _grow(self, reserve: bool) -> None:
        try:
            if reserve:
                os.posix_fallocate(self._fd, 0, self._size)
            else:
                os.ftruncate(self._fd, self._size)
        except OSError as error:
            os.ftruncate(self._fd, 0)
            raise _full_or_same(error, f"{self._size} bytes for {self._path}") from error

    def read_at(self, offset: int, size: int) -> bytes:
        """Return size bytes from offset on, fewer at the file's end."""
        return os.pread(self._fd, size, offset)

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes without copying them."""
        if self._view is None:
            self._map = mmap.mmap(self._fd, self._size, access=mmap.ACCESS_READ)
            self._view = memoryview(self._map)
        return self._view[offset : offset + size]

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of data, or raise."""
        try:
            done = os.pwrite(self._fd, data, offset)
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            raise _full_or_same(error, f"{len(data)} bytes in {self._path}") from error

    def sync(self) -> None:
        """fdatasync; it lets other threads run, which a mapping's flush does not."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close. A view that is still held keeps the mapping until it is dropped."""
        if self._view is not None and self._map is not None:
            self._view.release()
            with contextlib.suppress(BufferError):  # a reply still being written holds a slice
                self._map.close()
            self._view = self._map = None
        os.close(self._fd)


def _full_or_same(error: OSError, what: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(
            f"found no room for {what} ({error.strerror}), nothing of this request was stored: "
            "free space on that disk, or lower fileReservedTime; sends succeed again once there is room"
        )
    return error


class RealDisk:
    """The operating system's files under a root folder, which is made (mode 0700) when absent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks: list[int] = []
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the data folder {root}: {error}; choose another with --data") from error

    def open(self, path: str, size: int, *, reserve: bool = False) -> RealFile:
        """Open a file of exactly size bytes, making it when absent."""
        full = self._root / path
        new = not full.exists()
        full.parent.mkdir(parents=True, exist_ok=True)
        file = RealFile(full, size, reserve=reserve)
        if new:
            self._sync_folder(full.parent)
        return file

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        try:
            return sorted(os.listdir(self._root / folder))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int | None:
        """Return a file's size, None when there is none."""
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return None

    def modified_ms(self, path: str) -> int:
        """Return when a file was last written."""
        return (self._root / path).stat().st_mtime_ns // 1_000_000

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        """Write beside, sync, rename, sync the folder."""
        full = self._root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        beside = full.with_name(full.name + ".tmp")
        try:
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, full)
        except OSError as error:
            raise _full_or_same(error, f"{len(data)} bytes in {full}") from error
        self._sync_folder(full.parent)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with what is in it."""
        full = self._root / path
        if full.is_dir():
            for name in os.listdir(full):
                self.remove(f"{path}/{name}")
            full.rmdir()
        else:
            full.unlink(missing_ok=True)

    def lock(self, path: str) -> None:
        """Lock byte 0 exclusively, as Apache's broker does, so that neither starts beside the other."""
        full = self._root / path
        fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(fd)
            raise StoreError(
                f"found {full} locked by another process, expected this folder to be free: "
                "stop the broker that runs on it, or choose another folder with --data"
            ) from error
        os.pwrite(fd, b"lock", 0)
        self._locks.append(fd)

    def usage(self) -> float:
        """Return how full the partition is."""
        stat = os.statvfs(self._root)
        used = stat.f_blocks - stat.f_bfree
        return used / max(1, used + stat.f_bavail)

    def close(self) -> None:
        """Give back the locks."""
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()

    def _sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
