"""Frames: golden bytes both ways, any split, and nothing but RemotingError for garbage."""

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    REPLY_HEADER_SIZE_MAX,
    Frame,
    FrameDecoder,
    RemotingError,
    encode_frame,
    frame_end,
)

frames = st.builds(Frame, st.sampled_from([0, 1]), st.binary(max_size=40), st.binary(max_size=80))

GOLDEN = [
    (Frame(0, b"{}", b""), "00000006 00000002 7b7d"),
    (Frame(1, b"", b"hi"), "00000006 01000000 6869"),
    (Frame(0, b'{"a":1}', b"body"), "0000000f 00000007 7b2261223a317d 626f6479"),
]


def decode_all(pieces: list[bytes]) -> list[Frame]:
    decoder = FrameDecoder()
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    assert decoder.buffered_size == 0
    return found


@pytest.mark.parametrize(("frame", "hexes"), GOLDEN)
def test_golden(frame: Frame, hexes: str) -> None:
    """One table holds both directions, so they cannot drift apart."""
    wire = bytes.fromhex(hexes)
    assert wire == encode_frame(frame)
    assert [frame, frame] == decode_all([wire + wire])
    assert [frame] == decode_all([bytes([byte]) for byte in wire])


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_any_split_decodes_alike(sent: list[Frame], cuts: list[int]) -> None:
    """The result does not depend on how the stream is divided into pieces."""
    wire = b"".join(map(encode_frame, sent))
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    pieces = [wire[start:end] for start, end in itertools.pairwise(edges)]
    assert decode_all(pieces) == sent


@given(st.binary(max_size=200))
def test_garbage_is_no_more_than_refused(data: bytes) -> None:
    """Bytes that are no frame wait for more bytes or raise RemotingError, nothing else."""
    decoder = FrameDecoder()
    decoder.feed(data)
    with contextlib.suppress(RemotingError):
        while decoder.next_frame() is not None:
            pass


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (struct.pack(">II", FRAME_SIZE_MAX - 3, 0), "frame length"),
        (struct.pack(">II", 3, 0), "frame length"),
        (b"PRI * HTTP/2.0", "frame length"),
        (struct.pack(">I", 0x80000000), "frame length"),
        (struct.pack(">II", 10, 7), "header of 7 bytes"),
        (struct.pack(">II", 10, 2 << 24 | 4), "serialize type 2"),
        (struct.pack(">II", 1 << 20, HEADER_SIZE_MAX + 1), "header of 262145 bytes"),
        (struct.pack(">II", 1 << 20, 1 << 24 | HEADER_SIZE_MAX + 1), "header of 262145 bytes"),
    ],
)
def test_nonsense_is_refused_at_once(head: bytes, what: str) -> None:
    """Eight bytes, or four if they suffice, are enough to close the connection, without waiting for 2 GiB."""
    decoder = FrameDecoder()
    decoder.feed(head)
    for _ in range(2):
        with pytest.raises(RemotingError, match=what):
            decoder.next_frame()


def test_largest_frame_passes_and_a_byte_more_does_not() -> None:
    """The limit is Java's: 16 MiB with the length field."""
    largest = Frame(0, b"", bytes(FRAME_SIZE_MAX - 8))
    assert decode_all([encode_frame(largest)]) == [largest]
    with pytest.raises(RemotingError, match="too long to send"):
        encode_frame(Frame(0, b"", bytes(FRAME_SIZE_MAX - 7)))


def test_largest_header_passes_and_a_byte_more_does_not() -> None:
    """A header is parsed before the peer is authenticated, so its limit is far below the frame's."""
    largest = Frame(0, bytes(HEADER_SIZE_MAX), b"body")
    assert decode_all([encode_frame(largest)]) == [largest]
    with pytest.raises(RemotingError, match="too long to send"):
        encode_frame(Frame(0, bytes(HEADER_SIZE_MAX + 1), b"body"))


def test_clients_read_longer_headers() -> None:
    """A client reads from a server that it chose, with a limit of its own."""
    largest = Frame(0, bytes(REPLY_HEADER_SIZE_MAX), b"body")
    wire = encode_frame(largest, REPLY_HEADER_SIZE_MAX)
    decoder = FrameDecoder(REPLY_HEADER_SIZE_MAX)
    decoder.feed(wire)
    assert decoder.next_frame() == largest
    decoder.feed(struct.pack(">II", 8 << 20, REPLY_HEADER_SIZE_MAX + 1))
    with pytest.raises(RemotingError, match="header of 4194305 bytes"):
        decoder.next_frame()
    with pytest.raises(RemotingError, match="header of 4194304, expected"):
        encode_frame(largest)


def test_frame_end_looks_at_no_more_than_its_range() -> None:
    """The fast lane walks a buffer that other frames share."""
    wire = encode_frame(Frame(0, b"{}", b""))
    buffer = b"xx" + wire + wire
    assert frame_end(buffer, 2, len(buffer)) == 2 + len(wire)
    assert frame_end(buffer, 2, 1 + len(wire)) == 0
    assert frame_end(buffer, 2, 5) == 0
