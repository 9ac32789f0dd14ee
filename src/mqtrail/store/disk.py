"""The disk as a store uses it: a few methods, so that a test can let each of them fail.

`RealDisk` is the only place of the store that touches the operating system. Offsets and sizes are bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .errors import StoreError, StoreFull

MIB = 1024 * 1024
MAPPED_WRITE_MAX = 8 * 1024  # bytes; larger writes use pwrite: page faults on fresh pages cost more than a call
OPEN_FILES_MAX = 256  # open sparse files; the usual limit of a process is 1024 descriptors
FREED_APART_SIZE = 16 * MIB  # bytes of a removed file from which on another thread frees them
UNCLEAN_FILE = "abort"  # a clean stop removes it
SECTOR_SIZE = 512  # a power loss leaves a sector old or new, never in part
STAT_BLOCK_SIZE = 512  # bytes of a block that stat counts

_LOCKED: set[tuple[int, int]] = set()  # (device, inode) of the lock files this process holds


class File(Protocol):
    """One file of a fixed size. Reads beyond what was written give zeros."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return size bytes from offset on, fewer at the file's end."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes without copying them; valid until close. They follow later writes."""

    def next_data(self, offset: int) -> int | None:
        """Return the first position at or after offset that may not be zero; None: all is zero."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of data, or raise: StoreFull without space, otherwise OSError."""

    def sync(self) -> None:
        """Make what was written survive power loss. May be called from another thread."""

    def close(self) -> None:
        """Close the file; what was written stays."""


class Disk(Protocol):
    """Files and folders under one root. Paths are relative to it, with "/"."""

    def open(self, path: str, size: int, *, reserve: bool = False) -> File:
        """Open a file of exactly size bytes; make it and its folder if they are missing. reserve: allocate its space
        now, so that no later write fails on a full disk (StoreFull: there is not enough)."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if it does not exist."""

    def size(self, path: str) -> int | None:
        """Return a file's size, None when there is none."""

    def modified_ms(self, path: str) -> int:
        """Return when a file was last written (ms since 1970)."""

    def read(self, path: str) -> bytes | None:
        """Return a small file's content, None when there is none."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file's content durably: after a crash the file has the whole old or the whole new content."""

    def keep(self, path: str, as_path: str) -> None:
        """Let as_path keep the present content of path when path is replaced later. Both are in one folder.

        The next `replace` in that folder makes it durable. At any time as_path has its old or its new content."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content; do nothing if it is missing."""

    def lock(self, path: str) -> None:
        """Take a file's lock and keep it until `close`. StoreError: another process has it."""

    def usage(self) -> float:
        """Return how full the partition is, 0 to 1."""

    def capacity(self) -> tuple[int, int]:
        """Return the partition's bytes, and how many of them are free; (0, 0) if there is no partition."""

    def close(self) -> None:
        """Release the locks and descriptors."""


class ReservedFile:
    """A file whose space is reserved when it is made, so that it may be written through a mapping.

    A few bytes are written through the mapping (no system call), many by pwrite (no page faults on fresh pages); both
    use the same page cache. The descriptor stays open as long as the file object is referenced: a reader's cache of
    open files may drop it while the writer or a sync in another thread still uses it.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._view: memoryview | None = None
        self._size = size
        if os.fstat(self._fd).st_size < size:
            try:
                _reserve(self._fd, size)
                os.fsync(self._fd)
            except OSError as error:
                raise _full_or_same(error, f"{size} bytes for {path}") from error

    def _mapped(self) -> memoryview:
        self._view = memoryview(mmap.mmap(self._fd, self._size))
        return self._view

    def read_at(self, offset: int, size: int) -> bytes:
        """Return size bytes from offset on, fewer at the file's end."""
        return read_whole(lambda at, left: os.pread(self._fd, left, at), offset, size)

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes without copying them."""
        return (self._view or self._mapped())[offset : offset + size].toreadonly()

    def next_data(self, offset: int) -> int | None:
        """Return the first position that may hold data; reserved space that was never written holds none."""
        return _next_data(self._fd, offset)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of data, or raise."""
        if len(data) <= MAPPED_WRITE_MAX:
            (self._view or self._mapped())[offset : offset + len(data)] = data
        else:
            _write_all(self._fd, offset, data, self._path)

    def sync(self) -> None:
        """fdatasync; it lets other threads run, which a mapping's flush does not."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Drop the mapping; a slice that is still held, such as a reply being written, keeps it until then."""
        self._view = None

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", -1)) >= 0:
            os.close(fd)


class SparseFile:
    """A sparse file, written by pwrite only. Its disk gives it a descriptor when it needs one."""

    def __init__(self, path: Path, size: int, descriptors: Descriptors) -> None:
        self._path = path
        self._size = size
        self._descriptors = descriptors
        fd = descriptors.of(path)
        if os.fstat(fd).st_size < size:
            try:
                os.ftruncate(fd, size)
            except OSError as error:
                raise _full_or_same(error, f"{size} bytes for {path}") from error

    def read_at(self, offset: int, size: int) -> bytes:
        """Return size bytes from offset on, fewer at the file's end."""
        return read_whole(lambda at, left: os.pread(self._descriptors.of(self._path), left, at), offset, size)

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes; a copy, as such files are small or rarely read."""
        return memoryview(self.read_at(offset, size))

    def next_data(self, offset: int) -> int | None:
        """Return the first position at or after offset that may hold data; None: there is none."""
        return _next_data(self._descriptors.of(self._path), offset)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of data, or raise."""
        _write_all(self._descriptors.of(self._path), offset, data, self._path)

    def sync(self) -> None:
        """Call fdatasync on a separate descriptor: another thread may close the shared one meanwhile."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # its topic was deleted, or it expired
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the descriptor."""
        self._descriptors.drop(self._path)


class Descriptors:
    """Descriptors of the files used last, at most OPEN_FILES_MAX: a broker may have thousands of queues."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def of(self, path: Path) -> int:
        """Return a descriptor of the file, valid until the next call; make the file if it is missing."""
        fd = self._open.pop(path, -1)
        if fd < 0:
            if len(self._open) >= OPEN_FILES_MAX:
                self.drop(next(iter(self._open)))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._open[path] = fd
        return fd

    def drop(self, path: Path) -> None:
        """Close the file's descriptor, if it has one."""
        if (fd := self._open.pop(path, -1)) >= 0:
            os.close(fd)

    def drop_all(self) -> None:
        """Close them all."""
        while self._open:
            os.close(self._open.popitem()[1])


def read_whole(read: Callable[[int, int], bytes], offset: int, size: int) -> bytes:
    """Return size bytes from offset on, fewer only at the file's end; one call of read may return fewer anywhere."""
    data = read(offset, size)
    if len(data) == size or not data:
        return data
    parts, done = [data], len(data)
    while done < size and (data := read(offset + done, size - done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def _next_data(fd: int, offset: int) -> int | None:
    """Ask the file system where a hole ends. A file system without holes reports the whole file as data."""
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else offset


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    for at in range(os.fstat(fd).st_size, size, MIB):  # macOS: zeros take room as well
        os.pwrite(fd, bytes(min(MIB, size - at)), at)


def _write_all(fd: int, offset: int, data: bytes, path: str | Path) -> None:
    try:
        done = os.pwrite(fd, data, offset)
        while done < len(data):
            done += os.pwrite(fd, memoryview(data)[done:], offset + done)
    except OSError as error:
        raise _full_or_same(error, f"{len(data)} bytes in {path}") from error


def _remove_part(path: str) -> None:
    """Remove a new file that could not replace the old one."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _full_or_same(error: OSError, what: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(
            f"found no space for {what} ({error.strerror}), nothing of this request was stored: "
            "free space on that disk, or lower fileReservedTime; sends succeed again once there is space"
        )
    return error


class RealDisk:
    """The operating system's files under a root folder, which is made (mode 0700) if it is missing.

    apart: runs a function in another thread. It frees the space of large files that were removed: a gigabyte that is in
    the page cache takes about half a second. Without it, `remove` does.
    """

    def __init__(self, root: Path, *, apart: Callable[[Callable[[], None]], None] = lambda free: free()) -> None:
        self._root = root
        self._apart = apart
        self._leaving: dict[object, int] = {}  # removed files that are not freed yet, and their bytes
        self._prefix = f"{root}/"  # pathlib takes a tenth of a millisecond for each save of a table
        self._locks: list[tuple[int, tuple[int, int]]] = []
        self._descriptors = Descriptors()
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the data folder {root}: {error}; choose another with --data") from error

    def open(self, path: str, size: int, *, reserve: bool = False) -> ReservedFile | SparseFile:
        """Open a file of exactly size bytes, making it when absent."""
        full = self._root / path
        new = not full.exists()
        if new:
            self._make_folder(full.parent)
        try:
            file = ReservedFile(full, size) if reserve else SparseFile(full, size, self._descriptors)
            if new:
                self._sync_folder(full.parent)
        except BaseException:
            if new:
                self._descriptors.drop(full)
                full.unlink(missing_ok=True)
            raise
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
            return os.stat(self._prefix + path).st_size
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
        """Write a new file beside the old one, sync it, rename it, and sync the folder."""
        full = self._prefix + path
        folder, beside = os.path.dirname(full), f"{full}.tmp"
        if not os.path.isdir(folder):
            self._make_folder(Path(folder))
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(fd, 0o600)  # a crash may have left another mode; tables contain passwords
                _write_all(fd, 0, data, full)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(beside, full)
        except OSError as error:
            _remove_part(beside)
            raise _full_or_same(error, f"{len(data)} bytes in {full}") from error
        self._sync_folder(folder)

    def keep(self, path: str, as_path: str) -> None:
        """Add a second name for the file; it stays when the first is replaced. This needs no sync."""
        full, kept = self._prefix + path, self._prefix + as_path
        beside = f"{kept}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        try:
            os.link(full, beside)
        except FileNotFoundError:
            return
        except OSError:  # a file system without hard links
            self.replace(as_path, Path(full).read_bytes())
            return
        try:
            os.replace(beside, kept)
        except OSError:
            _remove_part(beside)
            raise

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with what is in it."""
        full = self._root / path
        if full.is_dir():
            for name in os.listdir(full):
                self.remove(f"{path}/{name}")
            full.rmdir()
        else:
            self._descriptors.drop(full)
            free = self._keep_open(full)
            full.unlink(missing_ok=True)
            if free is not None:
                self._apart(free)

    def _keep_open(self, full: Path) -> Callable[[], None] | None:
        """Hold a large file, so that its removal frees nothing yet; return what lets it go. None: it is small."""
        try:
            size = full.stat().st_blocks * STAT_BLOCK_SIZE
            if size < FREED_APART_SIZE:
                return None
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        key = object()
        self._leaving[key] = size

        def free() -> None:
            os.close(fd)
            del self._leaving[key]

        return free

    def lock(self, path: str) -> None:
        """Lock byte 0 exclusively, as Apache's broker does, so that the two never run on one folder."""
        full = self._root / path
        remedy = "stop the broker that runs on it, or choose another folder with --data"
        with contextlib.suppress(FileNotFoundError):
            stat = full.stat()
            if (
                stat.st_dev,
                stat.st_ino,
            ) in _LOCKED:  # the lock of a process does not exclude itself
                raise StoreError(f"found {full} in use by another store of this process, expected it free: {remedy}")
        fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(fd)
            raise StoreError(f"found {full} in use by another process, expected it free: {remedy}") from error
        os.pwrite(fd, b"lock", 0)
        stat = os.fstat(fd)
        self._locks.append((fd, (stat.st_dev, stat.st_ino)))
        _LOCKED.add((stat.st_dev, stat.st_ino))

    def usage(self) -> float:
        """Return how full the partition is; files that are removed and not freed yet do not count."""
        leaving = sum(list(self._leaving.values()))
        stat = os.statvfs(self._root)
        used = stat.f_blocks - stat.f_bfree
        return max(0, used - leaving // stat.f_frsize) / max(1, used + stat.f_bavail)

    def capacity(self) -> tuple[int, int]:
        """Return the partition's bytes, and how many of them are free."""
        stat = os.statvfs(self._root)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        """Release the locks and descriptors."""
        self._descriptors.drop_all()
        while self._locks:
            fd, file_id = self._locks.pop()
            os.close(fd)
            _LOCKED.discard(file_id)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and its parents, durably: syncing a file does not sync the folders it is in."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self._sync_folder(folder.parent)

    def _sync_folder(self, folder: str | Path) -> None:
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
