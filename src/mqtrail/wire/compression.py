"""Compressed message bodies: which format, by the bits of a message's sysFlag.

    bit 0       the body is compressed
    bits 8–10   0 zlib (peers before 4.9.4 name no type), 1 LZ4 frame, 2 ZSTD frames, 3 zlib

Clients compress bodies of 4096 bytes and more; the broker stores them unchanged and the consumer decompresses them. A
few kilobytes of each format can expand to gigabytes, so readers pass a limit: the size that the frame declares is
checked first, and decompression stops at the limit.

Source: CompressionType, Compressor classes, MessageSysFlag, apache/rocketmq common/.
"""

import zlib
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from .codes import MessageSysFlag
from .errors import CompressionError
from .values import BODY_SIZE_MAX

__all__ = [
    "EXPANDED_SIZE_MAX",
    "CompressionType",
    "compress",
    "decompress",
]

COMPRESS_LEVEL: Final = 5
EXPANDED_SIZE_MAX: Final = 128 * 1024 * 1024  # bytes of the decompressed bodies of one reply: 32 of 4 MiB
_LZ4_PIECE_SIZE = 256 * 1024  # bytes requested at first: the library allocates as many as requested
_LZ4_RATIO_USUAL = 16  # maximum of usual bodies; the format allows 255
_ZSTD_BLOCK_SIZE_MAX = 128 * 1024  # bytes that one block expands to; it takes 4 bytes or more (RFC 8878, 3.1.1.2)
_ZSTD_BLOCK_SIZE_MIN = 4
_ZSTD_FRAMES_MAX = 64  # of one body: writers make one, and 4 MiB of empty frames take seconds


class CompressionType(IntEnum):
    """The formats a writer may choose."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits for a compressed body of this type."""
        return MessageSysFlag.COMPRESSED | self << 8


def compress(body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = COMPRESS_LEVEL) -> bytes:
    """Return body compressed; the caller sets kind.sys_flag. As in Java, LZ4 ignores the level."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    return bytes(lz4.frame.compress(body))


def decompress(body: bytes, sys_flag: int, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Return the body before compression; unchanged if sys_flag does not mark it as compressed.

    CompressionError: the type is unknown, the bytes are not of that type, or the body has more than size_max bytes.
    Memory use is bounded by size_max as well.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    try:
        if kind in (MessageSysFlag.COMPRESSION_LEGACY, MessageSysFlag.COMPRESSION_ZLIB):
            plain, whole = inflate(body, size_max + 1)
        elif kind == MessageSysFlag.COMPRESSION_LZ4:
            _check_declared(int(lz4.frame.get_frame_info(body)["content_size"]), size_max)
            plain, whole = _unlz4(body, size_max + 1)
        elif kind == MessageSysFlag.COMPRESSION_ZSTD:
            _check_declared(zstandard.frame_content_size(body), size_max)
            plain, whole = _unzstd(body, size_max + 1)
        else:
            raise CompressionError(f"found compression type {kind >> 8}, expected 0 to 3")
    except (zlib.error, RuntimeError, zstandard.ZstdError, EOFError) as error:
        raise CompressionError(f"found a body of {len(body)} bytes that is not of type {kind >> 8}: {error}") from error
    if len(plain) > size_max:
        raise CompressionError(f"found a body of more than {size_max} bytes inside {len(body)} compressed ones")
    if not whole:
        raise CompressionError(f"found a compressed body (type {kind >> 8}) cut short at {len(body)} bytes")
    return plain


def inflate(data: bytes, size_max: int) -> tuple[bytes, bool]:
    """Return at most size_max bytes of a zlib stream, and whether the stream has no more. zlib.error: it is not a zlib
    stream."""
    reader = zlib.decompressobj()
    plain = reader.decompress(data, size_max)
    return plain, reader.eof


def _check_declared(size: int, size_max: int) -> None:
    """Reject a frame whose header declares too large a size. Without a size the header has 0 or -1."""
    if size > size_max:
        raise CompressionError(f"found a compressed body that declares {size} bytes, expected at most {size_max}")


def _unlz4(body: bytes, size_max: int) -> tuple[bytes, bool]:
    reader = lz4.frame.LZ4FrameDecompressor()
    piece = min(max(_LZ4_PIECE_SIZE, _LZ4_RATIO_USUAL * len(body)), size_max)
    plain = bytes(reader.decompress(body, max_length=piece))
    if reader.eof or reader.needs_input:
        return plain, bool(reader.eof)
    rest = bytes(reader.decompress(b"", max_length=size_max - piece)) if size_max > piece else b""
    return plain + rest, bool(reader.eof)


def _unzstd(body: bytes, size_max: int) -> tuple[bytes, bool]:
    """Read one frame or several. A reader does not bound its output, so its input comes in pieces.

    A piece is small enough that its blocks cannot expand beyond the rest of size_max, or beyond one block.
    """
    decompressor = zstandard.ZstdDecompressor()
    reader = None
    frame_count = 0
    parts = []
    size = position = 0
    while position < len(body) and size < size_max:
        blocks = max(1, (size_max - size) // _ZSTD_BLOCK_SIZE_MAX)
        piece = body[position : position + _ZSTD_BLOCK_SIZE_MIN * blocks]
        position += len(piece)
        if reader is None:
            frame_count += 1
            if frame_count > _ZSTD_FRAMES_MAX:
                raise CompressionError(f"found more than {_ZSTD_FRAMES_MAX} zstd frames in one body, expected one")
            reader = decompressor.decompressobj()
        part = reader.decompress(piece)
        parts.append(part)
        size += len(part)
        if reader.eof:
            position -= len(reader.unused_data)
            reader = None
    return b"".join(parts), reader is None and bool(parts)
