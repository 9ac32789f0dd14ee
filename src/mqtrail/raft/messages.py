"""What members send to each other, and its bytes.

    offset   0: u8 format        5: u32 group key    25: u64 log term   49: u64 previous
             1: u8 kind          9: u64 term         33: u64 commit     57: u64 sequence
             2: u8 sender       17: u64 index        41: u64 round      65: u32 count of entries
             3: u8 target                                               69: u32 size of data
             4: u8 flags

Then the entries, each u64 index, u64 term, u32 size and its bytes; then the data.
sender and target are positions in the sorted list of members. All integers are big-endian. flags bit 0: accepted.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mqtrail.wire import RemotingError

FORMAT: Final = 1
HEAD: Final = struct.Struct(">BBBBBIQQQQQQQII")
ENTRY: Final = struct.Struct(">QQI")
assert HEAD.size == 73
assert ENTRY.size == 20


class MessageKind(IntEnum):
    """What a message is about. Replies have the number of their request plus one."""

    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5
    APPEND_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    SNAPSHOT = 9  # answered by APPEND_REPLY
    HELLO = 11
    HELLO_REPLY = 12


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log. Empty data: the first entry of a leader, which changes nothing."""

    index: int
    term: int
    data: bytes

    @property
    def size(self) -> int:
        """How many bytes it takes in messages and in a journal."""
        return ENTRY.size + len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftMessage:
    """One message. Fields that its kind does not name are 0.

    index, log_term  PRE_VOTE, VOTE: last entry of the candidate. APPEND: entry before the first one sent. APPEND_REPLY:
                     last entry that matches, or, refused, where to look for it. SNAPSHOT: last entry it contains.
                     HELLO_REPLY: highest sequence that the sender saw of the target
    commit           APPEND, HEARTBEAT: what the leader committed, as far as the target has it
    round            HEARTBEAT and its reply: number of the leader's round
    previous         APPEND_REPLY, refused: index of the request
    sequence         changes that the sender's journal has ever had
    """

    kind: MessageKind
    sender: str
    target: str
    term: int
    group_key: int = 0
    index: int = 0
    log_term: int = 0
    commit: int = 0
    round: int = 0
    previous: int = 0
    sequence: int = 0
    accepted: bool = False
    entries: tuple[LogEntry, ...] = ()
    data: bytes = b""


def encode_message(message: RaftMessage, members: Sequence[str]) -> bytes:
    """Return the bytes of a message between members."""
    names = sorted(members)
    head = HEAD.pack(
        FORMAT,
        message.kind,
        names.index(message.sender),
        names.index(message.target),
        message.accepted,
        message.group_key,
        message.term,
        message.index,
        message.log_term,
        message.commit,
        message.round,
        message.previous,
        message.sequence,
        len(message.entries),
        len(message.data),
    )
    parts = [head]
    for entry in message.entries:
        parts += (ENTRY.pack(entry.index, entry.term, len(entry.data)), entry.data)
    parts.append(message.data)
    return b"".join(parts)


def decode_message(data: bytes, members: Sequence[str]) -> RaftMessage:
    """Return the message in these bytes. RemotingError: they are not one, or of another format."""
    names = sorted(members)
    try:
        (
            form,
            kind,
            sender,
            target,
            flags,
            group_key,
            term,
            index,
            log_term,
            commit,
            round_,
            previous,
            sequence,
            count,
            size,
        ) = HEAD.unpack_from(data)
        if form != FORMAT:
            raise RemotingError(
                f"found a message of consensus in format {form}, expected {FORMAT}: run one version at all members"
            )
        if max(sender, target) >= len(names):
            raise RemotingError(
                f"found a message from or for member number {max(sender, target) + 1} of a list, expected at most "
                f"{len(names)} ({', '.join(names)}): the list of members must be the same at all of them"
            )
        entries, at = _entries(data, HEAD.size, count)
        if len(data) - at != size:
            raise RemotingError(f"found {len(data) - at} bytes after the entries of a message, expected {size}")
        return RaftMessage(
            kind=MessageKind(kind),
            sender=names[sender],
            target=names[target],
            term=term,
            group_key=group_key,
            index=index,
            log_term=log_term,
            commit=commit,
            round=round_,
            previous=previous,
            sequence=sequence,
            accepted=bool(flags & 1),
            entries=entries,
            data=bytes(data[at:]),
        )
    except (struct.error, ValueError, IndexError) as error:
        raise RemotingError(f"found {len(data)} bytes that are not a message of consensus: {error}") from error


def _entries(data: bytes, at: int, count: int) -> tuple[tuple[LogEntry, ...], int]:
    """Return count entries and the position behind them. struct.error, ValueError: the bytes end before."""
    entries = []
    for _ in range(count):
        index, term, size = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if len(data) - at < size:
            raise ValueError(f"entry {index} has {len(data) - at} of {size} bytes")
        entries.append(LogEntry(index, term, bytes(data[at : at + size])))
        at += size
    return tuple(entries), at
