"""Remoting frames: the envelope around every command.

    offset  0        4      5             8          8+H          4+L
            +--------+------+-------------+----------+------------+
            | L: i32 | type | H: u24      | header   | body       |
            +--------+------+-------------+----------+------------+

L counts the bytes after it (4 + H + body size). type: 0 JSON, 1 ROCKETMQ. A frame has at most 16 MiB, including its
length field. A header has at most 256 KiB (HEADER_SIZE_MAX), one that a client reads 4 MiB (REPLY_HEADER_SIZE_MAX). A
longer frame or header, a header longer than its frame or an unknown type ends the connection (RemotingError) as soon as
the first 8 bytes show it: without the header it is unknown which request to reply to.

Source: RemotingCommand.encode and decode, NettyDecoder, apache/rocketmq remoting/.
"""

import struct
from typing import Final, NamedTuple

from .errors import RemotingError

__all__ = [
    "FRAME_HEAD",
    "FRAME_HEAD_SIZE",
    "FRAME_SIZE_MAX",
    "HEADER_SIZE_MAX",
    "REPLY_HEADER_SIZE_MAX",
    "Frame",
    "FrameDecoder",
    "cut_frame",
    "encode_frame",
    "frame_end",
]

FRAME_SIZE_MAX: Final = 16 * 1024 * 1024  # bytes, with the length field; com.rocketmq.remoting.frameMaxLength
HEADER_SIZE_MAX: Final = 256 * 1024
"""Bytes of a header. Properties have 32 767 bytes, which JSON writes as up to six each (\\u0001): 192 KiB. That leaves
64 KiB for all other fields, of which Apache's largest (subscriptions, lists of permissions) take a few."""
REPLY_HEADER_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of a header that a client reads. Apache's broker replies to a batch with the id of each message, 33 bytes with
the comma. 4 MiB hold the ids of 127 000 messages: more than a batch of 4 MiB can have if each has a unique key."""

FRAME_HEAD: Final = struct.Struct(
    ">I"  # L: bytes after this field
    "I"  # serialize type << 24 | header size
)
FRAME_HEAD_SIZE: Final = 8
assert FRAME_HEAD.size == FRAME_HEAD_SIZE

_unpack_head = FRAME_HEAD.unpack_from


class Frame(NamedTuple):
    """One frame, not decoded. An absent body is empty, as on the wire."""

    serialize_type: int
    header: bytes
    body: bytes


def encode_frame(frame: Frame, header_size_max: int = HEADER_SIZE_MAX) -> bytes:
    """Return the frame's bytes. RemotingError: it is longer than a peer would accept."""
    serialize_type, header, body = frame
    header_size = len(header)
    size = 4 + header_size + len(body)
    if size + 4 > FRAME_SIZE_MAX or header_size > header_size_max:
        raise RemotingError(
            f"frame too long to send: found {size + 4} bytes with a header of {header_size}, "
            f"expected at most {FRAME_SIZE_MAX} and {header_size_max}"
        )
    return b"".join((FRAME_HEAD.pack(size, serialize_type << 24 | header_size), header, body))


def frame_end(
    buffer: bytes | bytearray | memoryview, start: int, end: int, header_size_max: int = HEADER_SIZE_MAX
) -> int:
    """Return where the frame at start ends, or 0 when [start, end) does not hold all of it yet.

    It checks the first 8 bytes as soon as they have arrived, so no reader waits for 2 GiB of invalid data.
    RemotingError: they are not the start of a frame.
    """
    if end - start < FRAME_HEAD_SIZE:
        if end - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            if not 4 <= size <= FRAME_SIZE_MAX - 4:
                raise _bad_size(size)
        return 0
    size, mark = _unpack_head(buffer, start)
    if not 4 <= size <= FRAME_SIZE_MAX - 4:
        raise _bad_size(size)
    if mark & 0xFFFFFF > header_size_max:
        raise RemotingError(f"found a header of {mark & 0xFFFFFF} bytes, expected at most {header_size_max}")
    if mark & 0xFFFFFF > size - 4:
        raise RemotingError(
            f"found a header of {mark & 0xFFFFFF} bytes, expected at most {size - 4}, the rest of the frame"
        )
    if mark >> 24 > 1:
        raise RemotingError(f"found serialize type {mark >> 24}, expected 0 (JSON) or 1 (ROCKETMQ)")
    whole = start + 4 + int(size)
    return whole if whole <= end else 0


def cut_frame(buffer: bytes | bytearray | memoryview, start: int, end: int) -> Frame:
    """Return the whole frame at [start, end), as frame_end found it."""
    _, mark = _unpack_head(buffer, start)
    body_start = start + FRAME_HEAD_SIZE + (mark & 0xFFFFFF)
    return Frame(mark >> 24, bytes(buffer[start + FRAME_HEAD_SIZE : body_start]), bytes(buffer[body_start:end]))


class FrameDecoder:
    """Divides a stream of bytes into frames: feed the bytes that arrived, then take frames until there is none.

    After a RemotingError the stream cannot be read further; each call raises the same error. A client passes
    REPLY_HEADER_SIZE_MAX.
    """

    __slots__ = ("_buffer", "_header_size_max", "_position")

    def __init__(self, header_size_max: int = HEADER_SIZE_MAX) -> None:
        self._header_size_max = header_size_max
        self._buffer = bytearray()
        self._position = 0

    @property
    def buffered_size(self) -> int:
        """Bytes fed and not yet taken."""
        return len(self._buffer) - self._position

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append what the peer sent, in pieces of any size."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """Return the oldest whole frame, or None: feed more first. RemotingError: drop the connection."""
        buffer, start = self._buffer, self._position
        end = frame_end(buffer, start, len(buffer), self._header_size_max)
        if not end:
            return None
        self._position = end
        with memoryview(buffer) as view:
            return cut_frame(view, start, end)


def _bad_size(size: int) -> RemotingError:
    return RemotingError(
        f"found a frame length of {size} bytes, expected 4 to {FRAME_SIZE_MAX - 4}: the peer does not speak remoting"
    )
