"""The journal of a tee: the copies on their way, in a file, so that kill -9 loses none of them.

    {"version": 1, "topic": "orders", "target": "orders", "to": "rocketmq", "headers": "encode"}
    {"n": 1, "p": 3, "k": 170, …}               as in the file of failed copies
    {"done": [1]}                               these copies arrived, or are in the file of failed copies

Each tee has a file of its own, underway-PROCESS-RANDOM.jsonl, with a lock on it while it runs. A close removes it. If
the process was killed, `adopt_journals` puts the copies that are not done into the tee's file of failed copies. A power
cut may lose lines: nothing is flushed to the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from mqtrail.net import Log, hold_lock, is_lock_held

from .copies import (
    CopyHead,
    FailedFile,
    TeeCopy,
    alone_with,
    copy_of,
    errors_of,
    failed_files,
    fields_of,
    head_line,
    head_of,
    read_copies,
    replace_copies,
)
from .model import MigrateError
from .state import FILES

log = Log()

JOURNAL_SIZE: Final = 64 * 1024 * 1024  # bytes of the file; then only the copies on their way stay in it
EMPTY_SIZE: Final = 256 * 1024  # bytes after which a journal without copies on their way is emptied
PATTERN: Final = "underway-*.jsonl"
KILLED: Final = "the process ended before the copy was acknowledged"


class CopyJournal:
    """Keeps the copies on their way of one tee. name: PROCESS-RANDOM, as its file of failed copies has it."""

    def __init__(self, folder: Path, name: str, head: CopyHead) -> None:
        self.path = folder / f"underway-{name}.jsonl"
        self._head = head_line(head)
        self._file: FileIO | None = None
        self._stack = ExitStack()
        self._size = 0
        self._count = 0
        self._copies: dict[int, TeeCopy] = {}
        self._is_torn = False  # the last line may be a part of one

    def open(self) -> None:
        """Make the file. OSError."""
        with ExitStack() as stack:
            lock = self.path.with_suffix(".lock")
            stack.enter_context(hold_lock(lock, MigrateError(f"found {str(lock)!r} in use, expected a new name")))
            stack.callback(lock.unlink, missing_ok=True)
            self._begin([])
            self._stack = stack.pop_all()

    def add(self, copy: TeeCopy) -> int:
        """Keep a copy that is on its way; return its number. If the disk fails, it is not kept, and that is logged."""
        self._count += 1
        self._copies[self._count] = copy
        self._write(_line(self._count, copy))
        return self._count

    def done(self, numbers: Sequence[int]) -> None:
        """Forget copies."""
        for number in numbers:
            self._copies.pop(number, None)
        if self._size > (EMPTY_SIZE if not self._copies else JOURNAL_SIZE):
            try:
                self._begin([_line(number, copy) for number, copy in self._copies.items()])
            except OSError as error:
                self._report(error)
        else:
            self._write(msgspec.json.encode({"done": list(numbers)}) + b"\n")

    def close(self) -> None:
        """Remove the file, if all copies are done. OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if not self._copies:
                self.path.unlink(missing_ok=True)
        self._stack.close()

    def _begin(self, lines: Sequence[bytes]) -> None:
        """Replace the file by one with these lines; kill -9 leaves the old one or the new one. OSError."""
        data = self._head + b"".join(lines)
        fresh = self.path.with_suffix(".tmp")
        with ExitStack() as stack:
            file = stack.enter_context(FileIO(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"))
            stack.callback(fresh.unlink, missing_ok=True)
            if (written := file.write(data)) != len(data):
                raise OSError(f"found {written} of {len(data)} bytes written")
            fresh.replace(self.path)
            stack.pop_all()
        if self._file is not None:
            self._file.close()
        self._file, self._size, self._is_torn = file, len(data), False

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return  # the tee was closed, and what is left is in the file of failed copies
        try:
            line = b"\n" + line if self._is_torn else line
            self._is_torn = True
            if (written := self._file.write(line)) != len(line):
                raise OSError(f"found {written} of {len(line)} bytes written")
            self._is_torn = False
            self._size += len(line)
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        text = "copies on their way are lost if the process is killed: free the disk"
        log.sparse.error("tee.journal_failed", file=str(self.path), error=str(error), remedy=text)


def _line(number: int, copy: TeeCopy) -> bytes:
    return msgspec.json.encode({"n": number} | fields_of(copy)) + b"\n"


def read_journal(path: Path) -> tuple[CopyHead, list[TeeCopy]] | None:
    """Return what the copies are, and those that are not done, in order; None: it has none. MigrateError, OSError."""
    lines = path.read_text("utf-8", "replace").split("\n")
    if not lines[0]:
        return None
    with FILES.content_of(path, "`mqtrail.migrate.TeeProducer`"):
        head, found = head_of(lines[0]), dict[int, TeeCopy]()
        for line in lines[1:]:
            try:
                fields = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # the disk was full, or a kill cut it
            if "done" in fields:
                for number in fields["done"]:
                    found.pop(number, None)
            else:
                found[fields["n"]] = copy_of(fields, head)[0]
        return (head, list(found.values())) if found else None


def waiting_files(folder: Path) -> list[FailedFile]:
    """Return the files with copies that wait: failed ones, oldest first, then journals that killed tees left.

    MigrateError, OSError.
    """
    found = failed_files(folder)
    for path in _journals(folder):
        if (journal := read_journal(path)) is not None:
            head, copies = journal
            errors = errors_of([(one, KILLED) for one in copies])
            found.append(FailedFile(str(path), head.to, len(copies), False, errors))
    return found


def adopt_journals(folder: Path) -> None:
    """Put the copies that killed tees left into their files of failed copies, and remove the journals.

    A crash in the middle doubles none. MigrateError, OSError.
    """
    for path in _journals(folder):
        with _alone_with_journal(path) as is_alone:
            if not is_alone or not path.exists():
                continue
            if (journal := read_journal(path)) is not None:
                head, copies = journal
                file = folder / path.name.replace("underway", "copies")
                with alone_with(file):
                    known = read_copies(file)[1] if file.exists() else []
                    places = {copy.place for copy, _ in known}
                    left = [(copy, KILLED) for copy in copies if copy.place not in places]
                    if known or left:
                        replace_copies(file, head, [*known, *left])
                        os.utime(file, (path.stat().st_atime, path.stat().st_mtime))  # files are sent in this order
            path.unlink()


def _journals(folder: Path) -> list[Path]:
    """Return the journals that no tee has."""
    return [path for path in sorted(folder.glob(PATTERN)) if not is_lock_held(path.with_suffix(".lock"))]


@contextmanager
def _alone_with_journal(path: Path) -> Iterator[bool]:
    lock = path.with_suffix(".lock")
    try:
        with hold_lock(lock, MigrateError("taken")):
            yield True
            lock.unlink(missing_ok=True)
    except MigrateError as error:
        if str(error) != "taken":
            raise
        yield False
