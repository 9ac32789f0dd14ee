"""Compressed message bodies: which format, by the bits of a message's sysFlag.

    bit 0       the body is compressed
    bits 8–10   0 zlib (peers before 4.9.4 name no type), 1 LZ4 frame, 2 ZSTD frames, 3 zlib

Clients compress bodies of 4096 bytes and more; the broker keeps them as they come and the consumer decompresses.

Source: CompressionType, Compressor classes, MessageSysFlag, apache/rocketmq common/.
"""

import zlib
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from .codes import MessageSysFlag
from .errors import CompressionError

COMPRESS_SIZE_MIN: Final = 4096  # bytes; a Java client's compressMsgBodyOverHowmuch
COMPRESS_LEVEL: Final = 5
_ZSTD_PIECE_SIZE = 4096  # bytes
DECOMPRESSED_SIZE_MAX: Final = 128 * 1024 * 1024  # bytes; far above any message, so that a crafted body cannot take all


class CompressionType(IntEnum):
    """The formats a writer may choose."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits that tell a reader: compressed, and how."""
        return MessageSysFlag.COMPRESSED | self << 8


def compress(body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = COMPRESS_LEVEL) -> bytes:
    """Return body compressed; the caller sets kind.sys_flag. LZ4 takes no level, as in Java."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    return bytes(lz4.frame.compress(body))


def decompress(body: bytes, sys_flag: int, size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """Return the body as it was sent; unchanged where sys_flag says it is not compressed.

    CompressionError: unknown type, bytes that are not of it, or more than size_max bytes come out.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    try:
        if kind in (MessageSysFlag.COMPRESSION_LEGACY, MessageSysFlag.COMPRESSION_ZLIB):
            plain, whole = _inflate(body, size_max + 1)
        elif kind == MessageSysFlag.COMPRESSION_LZ4:
            lz4_reader = lz4.frame.LZ4FrameDecompressor()
            plain = bytes(lz4_reader.decompress(body, max_length=size_max + 1))
            whole = lz4_reader.eof
        elif kind == MessageSysFlag.COMPRESSION_ZSTD:
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


def _inflate(body: bytes, size_max: int) -> tuple[bytes, bool]:
    reader = zlib.decompressobj()
    plain = reader.decompress(body, size_max)
    return plain, reader.eof


def _unzstd(body: bytes, size_max: int) -> tuple[bytes, bool]:
    """Read one frame or several. The input goes in by small pieces, since a reader's output cannot be bounded."""
    decompressor = zstandard.ZstdDecompressor()
    reader = None
    parts = []
    size = 0
    for start in range(0, len(body), _ZSTD_PIECE_SIZE):
        piece = body[start : start + _ZSTD_PIECE_SIZE]
        while piece and size < size_max:
            if reader is None:
                reader = decompressor.decompressobj()
            part = reader.decompress(piece)
            parts.append(part)
            size += len(part)
            piece = b""
            if reader.eof:
                piece, reader = reader.unused_data, None
    return b"".join(parts), reader is None and bool(parts)
