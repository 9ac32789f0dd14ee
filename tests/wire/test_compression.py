"""Compressed bodies: every type, foreign writers, and bodies that are not what they say."""

import io
import zlib

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
    """Clients from 4.9.4 write these; bit 0 alone is an older client's zlib."""
    assert [kind.sys_flag for kind in CompressionType] == [0x101, 0x201, 0x301]
    assert decompress(zlib.compress(BODY), 0x1) == BODY


def test_uncompressed_bodies_pass() -> None:
    """The type's bits mean nothing without bit 0."""
    assert decompress(b"x", 0) == b"x"
    assert decompress(b"x", 0x700) == b"x"


def test_zstd_streams_as_java_writes_them() -> None:
    """Java streams, so its frames do not tell their size; several frames are one body."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as writer:
        writer.write(BODY)
    data = out.getvalue()
    assert decompress(data, 0x201) == BODY
    assert decompress(data + zstandard.compress(b"!"), 0x201) == BODY + b"!"
    with pytest.raises(CompressionError, match="cut short"):
        decompress(data[:-2], 0x201)


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


@pytest.mark.parametrize("kind", list(CompressionType))
def test_a_body_that_would_fill_the_memory_is_refused(kind: CompressionType) -> None:
    """A few crafted bytes must not become gigabytes."""
    data = compress(bytes(5_000_000), kind)
    with pytest.raises(CompressionError, match="more than 1000000 bytes"):
        decompress(data, kind.sys_flag, 1_000_000)
    assert len(decompress(data, kind.sys_flag, 5_000_000)) == 5_000_000
