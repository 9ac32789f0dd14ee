"""The durable state of a member: term, vote, snapshot and log, as records of one file.

    journal-<n>   a file of a fixed size:   record, record, ..., zeros
    current       the number n, replaced durably

    record        0     4      8       9          17                25
                  +-----+------+-------+----------+-----------------+---------+
                  | crc | size | kind  | sequence | durable offset  | payload |
                  +-----+------+-------+----------+-----------------+---------+

crc covers all that follows it; size counts the payload. sequence counts the changes that the member ever
made. durable offset is how far the file was synced when the record was written. An entry replaces those from its index
on. Each start, and each file that is full, begins a new file with the whole state: bytes behind a torn record never
come back. Commit point of that: the replacement of `current`. A large snapshot is written to the next file in slices
(`prepare`), while the current one still takes changes.

A record that is torn ends the log. If a later record says that this position had been durable, it is damage and no torn
tail: acknowledged entries may be missing, and the journal refuses to open.
"""

import struct
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from .config import RaftConfig
from .errors import RaftDamaged, RaftIdentityError
from .messages import ENTRY, LogEntry

HEAD: Final = struct.Struct(">IIBQQ")
STATE: Final = struct.Struct(">Q")
FILE_SIZE: Final = 16 * 1024 * 1024
SCAN_SIZE: Final = 1024 * 1024  # bytes that a search for later records reads at once
SLICE_SIZE: Final = 512 * 1024  # bytes of a snapshot that are written and synced at once
CURRENT: Final = "current"
KIND_AT: Final = 8  # of a record's kind
assert HEAD.size == 25


class RecordKind(IntEnum):
    """IDENTITY: own id and group, first of a file. STATE: term and vote. SNAPSHOT, ENTRY: index, term, data."""

    IDENTITY = 0xA1
    STATE = 0xA2
    SNAPSHOT = 0xA3
    ENTRY = 0xA4


class RaftFile(Protocol):
    """A file of a fixed size; reads beyond what was written give zeros."""

    def read_at(self, offset: int, size: int) -> bytes: ...

    def write_at(self, offset: int, data: bytes) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class RaftDisk(Protocol):
    """The part of a store's disk that a journal uses. Paths are relative to its root."""

    def open(self, path: str, size: int) -> RaftFile: ...

    def list(self, folder: str) -> list[str]: ...

    def size(self, path: str) -> int | None: ...

    def read(self, path: str) -> bytes | None: ...

    def replace(self, path: str, data: bytes) -> None: ...

    def remove(self, path: str) -> None: ...


@dataclass(slots=True)
class _Prepared:
    """The next file, while it gets a snapshot. end: behind the snapshot; 0: it is not whole."""

    file: RaftFile
    size: int
    snapshot: tuple[int, int, bytes]  # index, term, data
    end: int = 0


class Journal:
    """Term, vote, snapshot and log. Changes are durable after `sync`.

    RaftIdentityError: the files belong to another member or group. RaftDamaged: acknowledged records are damaged.
    An error of the disk during a change ends the use of a journal: open it again.
    """

    def __init__(
        self,
        config: RaftConfig,
        disk: RaftDisk,
        folder: str = "raft",
        *,
        file_size: int = FILE_SIZE,
        slice_size: int = SLICE_SIZE,
    ) -> None:
        self.term = 0
        self.voted: str | None = None
        self.snapshot_index = 0
        self.snapshot_term = 0
        self.snapshot = b""
        self.sequence = 0
        self.durable_index = 0  # of the last entry that is synced
        self.entries_size = 0  # bytes of all entries
        self.dropped_size = 0  # bytes of a torn tail that the start left out
        self._config = config
        self._disk = disk
        self._folder = folder
        self._file_size = file_size
        self._slice_size = slice_size
        self._entries: list[LogEntry] = []
        self._number = 0
        self._file: RaftFile | None = None
        self._end = 0  # where the next record goes
        self._durable = 0
        self._size = 0
        self._prepared: _Prepared | None = None
        self._recover()
        self._roll()

    # Reading.

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the snapshot."""
        return self.snapshot_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot_term

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None: it is compacted or beyond the end."""
        if index == self.snapshot_index:
            return self.snapshot_term
        place = index - self.snapshot_index - 1
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def entries(self, first: int, end: int) -> list[LogEntry]:
        """Return the entries [first, end). first must be behind the snapshot."""
        assert first > self.snapshot_index, f"entry {first} is compacted up to {self.snapshot_index}"
        return self._entries[first - self.snapshot_index - 1 : end - self.snapshot_index - 1]

    def prepare(self, index: int, term: int, data: bytes) -> Generator[None, None, bool]:
        """Write a snapshot to the next file in slices: then `compact` or `install` of it writes only what is behind it.

        Other changes may come between two slices. Return False if one of them needed the next file itself: nothing is
        prepared then.
        """
        self._discard_prepared()
        identity = self._identity()
        payload = _numbered(index, term, data)
        size = self._size_for(2 * HEAD.size + len(identity) + len(payload))
        prepared = self._prepared = _Prepared(self._open(self._number + 1, size), size, (index, term, data))
        file, at = prepared.file, HEAD.size + len(identity)
        file.write_at(0, _record(RecordKind.IDENTITY, self.sequence, 0, identity))
        head = HEAD.pack(0, len(payload), RecordKind.SNAPSHOT, self.sequence, 0)[4:]
        crc = zlib.crc32(head)
        for place in range(0, len(payload), self._slice_size):
            if place:
                yield
                if self._prepared is not prepared:
                    return False
            part = payload[place : place + self._slice_size]
            file.write_at(at + HEAD.size + place, part)
            crc = zlib.crc32(part, crc)
            file.sync()
        file.write_at(at, crc.to_bytes(4, "big") + head)
        prepared.end = at + HEAD.size + len(payload)
        return True

    # Changing. Durable after `sync`.

    def set_term(self, term: int, voted: str | None) -> None:
        """Keep a term and the member that got this member's vote in it."""
        if (term, voted) != (self.term, self.voted):
            self.term, self.voted = term, voted
            self._write(RecordKind.STATE, self._state())

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Append entries; an entry whose index exists replaces it and all behind it."""
        for entry in entries:
            place = entry.index - self.snapshot_index - 1
            assert 0 <= place <= len(self._entries), f"entry {entry.index} leaves a gap or is compacted"
            self.entries_size += entry.size - sum(old.size for old in self._entries[place:])
            self.durable_index = min(self.durable_index, entry.index - 1)
            self._entries[place:] = [entry]
            self._write(RecordKind.ENTRY, _numbered(entry.index, entry.term, entry.data))

    def compact(self, index: int, data: bytes) -> None:
        """Replace the entries up to index, which is committed and applied, by a snapshot."""
        term = self.term_at(index)
        assert term is not None, f"entry {index} is not in the log"
        self._replace(index, term, data, self._entries[index - self.snapshot_index :])

    def install(self, index: int, term: int, data: bytes) -> None:
        """Take a leader's snapshot; keep the entries behind it if they belong to it."""
        kept = self._entries[index - self.snapshot_index :] if self.term_at(index) == term else []
        self._replace(index, term, data, kept)

    def sync(self) -> None:
        """Make all changes durable."""
        if self._durable < self._end:
            assert self._file is not None
            self._file.sync()
            self._durable = self._end
            self.durable_index = self.last_index

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._discard_prepared()

    # Files.

    def _replace(self, index: int, term: int, data: bytes, entries: list[LogEntry]) -> None:
        self.snapshot_index, self.snapshot_term, self.snapshot = index, term, data
        self._entries = entries
        self.entries_size = sum(entry.size for entry in entries)
        self.sequence += 1
        self._roll()

    def _state(self) -> bytes:
        return STATE.pack(self.term) + (self.voted or "").encode()

    def _write(self, kind: RecordKind, payload: bytes) -> None:
        self.sequence += 1
        if self._end + HEAD.size + len(payload) > self._size:
            self._roll()  # the state has this change already
            return
        self._put(kind, payload)

    def _put(self, kind: RecordKind, payload: bytes) -> None:
        assert self._file is not None
        record = _record(kind, self.sequence, self._durable, payload)
        self._file.write_at(self._end, record)
        self._end += len(record)

    def _roll(self) -> None:
        """Write the whole state to a new file, make it the current one, remove the others."""
        state = [(RecordKind.STATE, self._state())]
        entries = [(RecordKind.ENTRY, _numbered(entry.index, entry.term, entry.data)) for entry in self._entries]
        prepared = self._take_prepared(_size_of(state + entries))
        if prepared is not None:
            records = state + entries
            self._file, self._size, self._end = prepared.file, prepared.size, prepared.end
        else:
            records = [(RecordKind.IDENTITY, self._identity()), *state]
            if self.snapshot_index:
                snapshot = _numbered(self.snapshot_index, self.snapshot_term, self.snapshot)
                records.append((RecordKind.SNAPSHOT, snapshot))
            records += entries
            self._size = self._size_for(_size_of(records))
            self._file, self._end = self._open(self._number + 1, self._size), 0
        self._number += 1
        self._durable = 0
        for kind, payload in records:
            self._put(kind, payload)
        self.sync()
        self._disk.replace(f"{self._folder}/{CURRENT}", str(self._number).encode())
        kept = self._name(self._number).rpartition("/")[2]
        for other in self._disk.list(self._folder):
            if other.startswith("journal-") and other != kept:
                self._disk.remove(f"{self._folder}/{other}")

    def _take_prepared(self, size: int) -> _Prepared | None:
        """Close the current file; return the prepared one if it has the present snapshot, and room for size bytes."""
        prepared, self._prepared = self._prepared, None
        self.close()
        if prepared is None:
            return None
        index, term, data = prepared.snapshot
        is_present = (index, term) == (self.snapshot_index, self.snapshot_term) and data is self.snapshot
        if is_present and prepared.end and prepared.end + size <= prepared.size:
            return prepared
        prepared.file.close()
        return None

    def _discard_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.file.close()

    def _size_for(self, size: int) -> int:
        """Return the size of a new file that begins with size bytes."""
        return max(self._file_size, 2 * size)

    def _open(self, number: int, size: int) -> RaftFile:
        name = self._name(number)
        self._disk.remove(name)  # an unfinished attempt may have left it
        return self._disk.open(name, size)

    def _name(self, number: int) -> str:
        return f"{self._folder}/journal-{number:010d}"

    def _identity(self) -> bytes:
        return f"{self._config.self_id}\n{self._config.identity}".encode()

    # Recovery.

    def _recover(self) -> None:
        current = self._disk.read(f"{self._folder}/{CURRENT}")
        if current is None:
            return
        if not current.isdigit():
            raise RaftDamaged(
                f"found {current[:20]!r} in {self._folder}/{CURRENT}, expected a number: {REPLACE_MEMBER}"
            )
        self._number = int(current)
        name = self._name(self._number)
        size = self._disk.size(name)
        if size is None:
            raise RaftDamaged(f"found no file {name}, which {CURRENT} names: {REPLACE_MEMBER}")
        file = self._disk.open(name, size)
        try:
            self._read(file, name, size)
        finally:
            file.close()

    def _read(self, file: RaftFile, name: str, size: int) -> None:
        at = 0
        while (found := _record_at(file, at, size)) is not None:
            kind, sequence, _, payload = found
            self._apply(kind, payload)
            self.sequence = sequence
            at += HEAD.size + len(payload)
        self.entries_size = sum(entry.size for entry in self._entries)
        if not at:
            raise RaftDamaged(f"found no record at the start of {name}, expected the identity: {REPLACE_MEMBER}")
        for position, durable in _later_records(file, at, size):
            self.dropped_size = max(self.dropped_size, position - at)
            if durable > at:
                raise RaftDamaged(
                    f"found damage at {at} of {name}, which was durable up to {durable}: acknowledged entries may be "
                    f"missing; {REPLACE_MEMBER}"
                )

    def _apply(self, kind: int, payload: bytes) -> None:
        if kind == RecordKind.IDENTITY:
            self._check_identity(payload)
        elif kind == RecordKind.STATE:
            (self.term,) = STATE.unpack_from(payload)
            self.voted = payload[STATE.size :].decode() or None
        else:
            index, term, size = ENTRY.unpack_from(payload)
            data = payload[ENTRY.size : ENTRY.size + size]
            if kind == RecordKind.SNAPSHOT:
                self.snapshot_index, self.snapshot_term, self.snapshot = index, term, data
                return
            place = index - self.snapshot_index - 1
            self._entries[place:] = [LogEntry(index, term, data)]

    def _check_identity(self, payload: bytes) -> None:
        found, _, group = payload.decode(errors="replace").partition("\n")
        config = self._config
        if (found, group) != (config.self_id, config.identity):
            raise RaftIdentityError(
                f"found the journal of member {found} of {group} in {self._folder}, expected member {config.self_id} "
                f"of {config.identity}: correct the own id and the list of peers, or choose another folder"
            )


REPLACE_MEMBER: Final = (
    "restore the newest copy of this folder; without one, stop all members and start them with empty folders"
)


def _record(kind: RecordKind, sequence: int, durable: int, payload: bytes) -> bytes:
    record = HEAD.pack(0, len(payload), kind, sequence, durable)[4:] + payload
    return zlib.crc32(record).to_bytes(4, "big") + record


def _size_of(records: Sequence[tuple[RecordKind, bytes]]) -> int:
    return sum(HEAD.size + len(payload) for _, payload in records)


def _numbered(index: int, term: int, data: bytes) -> bytes:
    return ENTRY.pack(index, term, len(data)) + data


def _record_at(file: RaftFile, at: int, end: int) -> tuple[int, int, int, bytes] | None:
    """Return kind, sequence, durable offset and payload of the record at a position; None: there is no whole one."""
    if end - at < HEAD.size:
        return None
    head = file.read_at(at, HEAD.size)
    crc, size, kind, sequence, durable = HEAD.unpack(head)
    if kind not in KINDS or at + HEAD.size + size > end:
        return None
    payload = file.read_at(at + HEAD.size, size)
    return (kind, sequence, durable, payload) if zlib.crc32(payload, zlib.crc32(head[4:])) == crc else None


KINDS: Final = frozenset(int(kind) for kind in RecordKind)


def _later_records(file: RaftFile, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield end position and durable offset of each whole record that begins at or after first, wherever it begins."""
    for base in range(first, end, SCAN_SIZE):
        chunk = file.read_at(base, min(SCAN_SIZE + HEAD.size, end - base))
        if not chunk.strip(b"\0"):
            continue
        for place in range(min(SCAN_SIZE, len(chunk) - HEAD.size + 1)):
            if chunk[place + KIND_AT] in KINDS and (found := _record_at(file, base + place, end)) is not None:
                yield base + place + HEAD.size + len(found[3]), found[2]
