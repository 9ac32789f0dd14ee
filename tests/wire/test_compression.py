"""Compressed bodies: every type, other writers, and bodies with wrong declarations."""

import io
import tracemalloc
import zlib
from functools import cache

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import CompressionError, CompressionType, compress, decompress

BODY = b"order " * 3000


@given(st.binary(max_size=200), st.sampled_from(CompressionType))
def test_round_trip(body: bytes, kind: CompressionType) -> None:
    assert decompress(compress(body, kind), kind.sys_flag) == body


def test_flags_of_the_types() -> None:
    """Clients from 4.9.4 on write these; bit 0 alone is an older client's zlib."""
    assert [kind.sys_flag for kind in CompressionType] == [0x101, 0x201, 0x301]
    assert decompress(zlib.compress(BODY), 0x1) == BODY


def test_uncompressed_bodies_pass() -> None:
    """The type's bits mean nothing without bit 0."""
    assert decompress(b"x", 0) == b"x"
    assert decompress(b"x", 0x700) == b"x"


def test_zstd_streams_as_java_writes_them() -> None:
    """Java compresses streams, so its frames lack their size; several frames are one body."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as writer:
        writer.write(BODY)
    data = out.getvalue()
    assert decompress(data, 0x201) == BODY
    assert decompress(data + zstandard.compress(b"!"), 0x201) == BODY + b"!"
    with pytest.raises(CompressionError, match="cut short"):
        decompress(data[:-2], 0x201)


@pytest.mark.parametrize("frame", [zstandard.compress(b""), b"\x50\x2a\x4d\x18" + bytes(4)])
def test_a_body_of_countless_frames_is_refused(frame: bytes) -> None:
    """Each frame needs its own reader, and yields nothing."""
    start = zstandard.compress(b"!")
    assert decompress(start + frame * 63, 0x201) == b"!"
    with pytest.raises(CompressionError, match="more than 64 zstd frames"):
        decompress(start + frame * 100_000, 0x201)


def test_lz4_with_content_size_and_checksum() -> None:
    assert decompress(lz4.frame.compress(BODY, content_checksum=True, store_size=True), 0x101) == BODY


@pytest.mark.parametrize("kind", list(CompressionType))
@pytest.mark.parametrize("keep", [0, 3, 10, -1])
def test_cut_bodies_are_refused(kind: CompressionType, keep: int) -> None:
    with pytest.raises(CompressionError):
        decompress(compress(BODY, kind)[:keep], kind.sys_flag)


@pytest.mark.parametrize("kind", list(CompressionType))
def test_bodies_of_another_kind_are_refused(kind: CompressionType) -> None:
    with pytest.raises(CompressionError, match=f"type {kind}"):
        decompress(b"this is no compressed body", kind.sys_flag)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(CompressionError, match="type 4"):
        decompress(b"x", 0x401)


SIZE = 20_000_000
DECLARED, READ = f"declares {SIZE} bytes", "more than 1000000 bytes"


@cache
def blown_up() -> list[tuple[bytes, int, str]]:
    """Bodies of many zeros in every format, with and without a declared size, and the error of each."""
    zeros = bytes(SIZE)
    return [
        (compress(zeros, CompressionType.ZLIB), 0x301, READ),
        (lz4.frame.compress(zeros, store_size=True), 0x101, DECLARED),
        (lz4.frame.compress(zeros, store_size=False), 0x101, READ),
        (zstandard.ZstdCompressor(write_content_size=True).compress(zeros), 0x201, DECLARED),
        (zstandard.ZstdCompressor(write_content_size=False).compress(zeros), 0x201, READ),
        (zstandard.compress(b"!") + zstandard.compress(zeros), 0x201, READ),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_body_that_would_fill_the_memory_is_refused(number: int) -> None:
    """A body is refused by its declared size before it is read; otherwise the expanded part stays near the limit."""
    data, sys_flag, refusal = blown_up()[number]
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError, match=refusal):
            decompress(data, sys_flag, 1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    assert len(decompress(data, sys_flag, SIZE + 1)) in (SIZE, SIZE + 1)


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 1))
def test_several_frames_and_any_bound(body: bytes, size_max: int, count: int) -> None:
    """A limit equal to the size accepts the body; one byte less rejects it."""
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    data, plain = streamed * (count + 1), body * (count + 1)
    assert decompress(data, 0x201, len(plain)) == plain
    if size_max < len(plain):
        with pytest.raises(CompressionError):
            decompress(data, 0x201, size_max)
