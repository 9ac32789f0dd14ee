"""Tables kept as the JSON of their files: the bytes equal a full encoding, for the work of one entry and one block."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.broker import encoded
from mqtrail.broker.encoded import BLOCK_COUNT, EncodedEntries, Handover, member
from mqtrail.wire import dumps_fastjson

NAMES = st.text('ab,"é', max_size=3)
VALUES = st.one_of(st.none(), st.integers(), st.dictionaries(st.text("ab", max_size=2), st.integers(), max_size=2))


def content(entries: EncodedEntries) -> bytes:
    return b"".join(entries.snapshot())


@given(st.dictionaries(NAMES, VALUES.filter(lambda value: value is not None)), st.lists(st.tuples(NAMES, VALUES)))
def test_content_is_that_of_the_table(table: dict[str, object], changes: list[tuple[str, object]]) -> None:
    """Set, replaced and removed entries are right, with small blocks that split and vanish."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded, "BLOCK_COUNT", 2)
        entries = EncodedEntries({name: member(name, value) for name, value in table.items()})
        for name, value in changes:
            entries.put(name, None if value is None else member(name, value))
            table[name] = value
            if value is None:
                del table[name]
            assert content(entries) == dumps_fastjson(table)


def test_a_change_copies_one_block() -> None:
    """A change in a table of thousands copies one block; a save joins few parts. A snapshot does not change later."""
    count = 5_000
    entries = EncodedEntries({f"made-{number}": b'"made-%d":%d' % (number, number) for number in range(count)})
    names = [f"made-{number}" for number in range(2 * count)]
    random.Random(7).shuffle(names)
    before = entries.snapshot()
    of_before = b"".join(before)
    for name in names[:1_000]:
        parts = set(map(id, entries.snapshot()))
        entries.put(name, b'"%b":-1' % name.encode())
        after = entries.snapshot()
        new = [part for part in after if id(part) not in parts]
        assert len(new) <= 2
        assert sum(part.count(b'"made-') for part in new) <= BLOCK_COUNT + 1
    assert len(entries.snapshot()) <= 2 * (count + 1_000) / (BLOCK_COUNT // 2) + 3
    assert b"".join(before) == of_before


def test_large_entries_do_not_share_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a change of one would copy all of them."""
    monkeypatch.setattr(encoded, "BLOCK_SIZE", 100)
    members = {f"n{number:02}": member(f"n{number:02}", "x" * (number % 60)) for number in range(60)}
    for entries in (EncodedEntries(members), EncodedEntries({})):
        for name in random.Random(7).sample(sorted(members), len(members)):
            entries.put(name, members[name])
        parts = entries.snapshot()
        assert b"".join(parts) == b"{" + b",".join(members.values()) + b"}"
        assert max(map(len, parts)) <= 100


def test_what_a_failed_save_left_is_applied_by_the_next_one() -> None:
    """Changes of a failed save are applied in order by the next save, without changes noted after that save began."""
    handover = Handover[str, int]()
    handover.note("a", 1)
    handover.note("b", 2)
    handover.take()
    handover.note("a", None)
    found: list[tuple[str, int | None]] = []

    def fail(key: str, value: int | None) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        handover.apply(fail)
    handover.apply(lambda key, value: found.append((key, value)))
    assert found == [("a", 1), ("b", 2)]
    handover.take()
    handover.apply(lambda key, value: found.append((key, value)))
    handover.apply(fail)
    assert found[2:] == [("a", None)]
