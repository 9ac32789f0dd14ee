"""Tables as the JSON of their files: the same bytes as encoded whole, for the work of one entry and one block."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.broker import encoded
from mqtrail.broker.encoded import BLOCK_COUNT, EncodedEntries
from mqtrail.wire import dumps_fastjson

NAMES = st.text('ab,"é', max_size=3)
VALUES = st.one_of(st.none(), st.integers(), st.dictionaries(st.text("ab", max_size=2), st.integers(), max_size=2))


def content(entries: EncodedEntries) -> bytes:
    return b"".join(entries.snapshot())


@given(st.dictionaries(NAMES, VALUES.filter(lambda value: value is not None)), st.lists(st.tuples(NAMES, VALUES)))
def test_content_is_that_of_the_table(table: dict[str, object], changes: list[tuple[str, object]]) -> None:
    """Whatever was set, replaced and removed, in small blocks that split and vanish."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded, "BLOCK_COUNT", 2)
        entries = EncodedEntries(table)
        for name, value in changes:
            entries.put(name, value)
            table[name] = value
            if value is None:
                del table[name]
            assert content(entries) == dumps_fastjson(table)


def test_a_change_encodes_its_entry_and_copies_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a table of thousands; a save joins few parts. A snapshot does not change afterwards."""
    count = 5_000
    entries = EncodedEntries({f"made-{number}": {"queues": number} for number in range(count)})
    encodings: list[object] = []
    monkeypatch.setattr(encoded, "dumps_fastjson", lambda value: encodings.append(value) or dumps_fastjson(value))
    names = [f"made-{number}" for number in range(2 * count)]
    random.Random(7).shuffle(names)
    before = entries.snapshot()
    of_before = b"".join(before)
    for name in names[:1_000]:
        parts = set(map(id, entries.snapshot()))
        entries.put(name, {"queues": -1})
        after = entries.snapshot()
        new = [part for part in after if id(part) not in parts]
        assert len(new) <= 2
        assert sum(part.count(b'"made-') for part in new) <= BLOCK_COUNT + 1
    assert len(encodings) == 1_000
    assert len(entries.snapshot()) <= 2 * (count + 1_000) / (BLOCK_COUNT // 2) + 3
    assert b"".join(before) == of_before
