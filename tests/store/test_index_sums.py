"""Checksums of an index file: as they were written, or none; never other ones."""

from hypothesis import given
from hypothesis import strategies as st

from mqtrail.store.commitlog.index_sums import IndexSums, decode_sums, end_offset_of

PAGES = [40, 40, 16]
ENTRY_SIZE = 20


def some_sums(entries: int) -> IndexSums:
    sums = IndexSums(PAGES, ENTRY_SIZE)
    sums.add_entries(b"\x07" * ENTRY_SIZE * entries)
    sums.header, sums.end_offset, sums.before_offset = 5, 1_234, 1_000
    return sums


@given(st.integers(0, 450))
def test_what_is_written_is_read(entries: int) -> None:
    sums = some_sums(entries)
    found = decode_sums(sums.encode(), PAGES, ENTRY_SIZE)
    assert found is not None
    assert (found.pages, found.blocks, found.header, found.next) == (sums.pages, sums.blocks, 5, entries + 1)
    assert found.before_offset == 1_000
    assert end_offset_of(sums.encode()) == 1_234


@given(st.integers(0, 250), st.data())
def test_a_changed_bit_makes_them_unreadable(entries: int, data: st.DataObject) -> None:
    """Otherwise a good index would count as damaged."""
    kept = bytearray(some_sums(entries).encode())
    bit = data.draw(st.integers(0, 8 * len(kept) - 1))
    kept[bit // 8] ^= 1 << bit % 8
    assert decode_sums(bytes(kept), PAGES, ENTRY_SIZE) is None
    assert end_offset_of(bytes(kept)) is None


@given(st.integers(0, 250), st.data())
def test_a_cut_makes_them_unreadable(entries: int, data: st.DataObject) -> None:
    kept = some_sums(entries).encode()
    part = kept[: data.draw(st.integers(0, len(kept) - 1))]
    assert decode_sums(part, PAGES, ENTRY_SIZE) is None
    assert end_offset_of(part) is None
