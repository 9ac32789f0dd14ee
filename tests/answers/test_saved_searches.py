"""Saved searches: each person's own, bounded, kept in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtrail.answers.access import InvalidSearch, NotSaved, SavedSearch, SavedSearches, SearchesFailed


@pytest.fixture
def saved(tmp_path: Path) -> SavedSearches:
    return SavedSearches(tmp_path / "data" / "searches.json")


def test_each_person_has_its_own(saved: SavedSearches) -> None:
    """By name, in a file for its owner only; a search of the same name is replaced; another process sees it."""
    assert saved.of("ann") == ()
    saved.save("ann", " late ", "verdict:HUNG from:2h", 0)
    saved.save("ann", "Billing", "group:billing", 0)
    saved.save("bob", "late", "topic:orders", 0)
    saved.save("ann", "late", "verdict:HUNG from:1h", 0)
    other = SavedSearches(saved.path)
    assert other.of("ann") == (SavedSearch("Billing", "group:billing"), SavedSearch("late", "verdict:HUNG from:1h"))
    assert saved.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidSearch) as refused:
        other.remove("bob", "Billing")
    assert refused.value.why is NotSaved.UNKNOWN
    other.remove("bob", "late")
    assert (saved.of("bob"), len(saved.of("ann"))) == ((), 2)


@pytest.mark.parametrize(
    ("name", "query", "why"),
    [
        ("", "topic:orders", NotSaved.NAME),
        ("  ", "topic:orders", NotSaved.NAME),
        ("x" * 81, "topic:orders", NotSaved.NAME),
        ("a\u202eb", "topic:orders", NotSaved.NAME),
        ("a", " ", NotSaved.QUERY),
        ("a", "x" * 2_001, NotSaved.QUERY),
        ("a", "verdict:GONE", NotSaved.QUERY),
    ],
)
def test_what_is_not_saved(saved: SavedSearches, name: str, query: str, why: NotSaved) -> None:
    with pytest.raises(InvalidSearch) as refused:
        saved.save("ann", name, query, 0)
    assert refused.value.why is why
    assert not saved.path.exists()


def test_their_number_is_bounded(saved: SavedSearches, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a person, and that of all; one that is there can still be replaced and removed."""
    monkeypatch.setattr("mqtrail.answers.access.saved.SAVED_MAX", 2)
    monkeypatch.setattr("mqtrail.answers.access.saved.SAVED_OF_ALL_MAX", 3)
    for person, name in (("ann", "a"), ("ann", "b"), ("bob", "a")):
        saved.save(person, name, "topic:x", 0)
    for person in ("ann", "bob", "eve"):
        with pytest.raises(InvalidSearch) as refused:
            saved.save(person, "c", "topic:x", 0)
        assert refused.value.why is NotSaved.FULL
    saved.save("ann", "a", "topic:y", 0)
    saved.remove("ann", "b")
    saved.save("eve", "c", "topic:x", 0)
    assert [len(saved.of(person)) for person in ("ann", "bob", "eve")] == [1, 1, 1]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2, "searches": {}}', '{"version": 1, "searches": {"a": 1}}']
)
def test_a_damaged_file_is_an_error(saved: SavedSearches, text: str) -> None:
    """It is neither shown as an empty list nor replaced by a new one."""
    saved.path.parent.mkdir()
    saved.path.write_text(text)
    with pytest.raises(SearchesFailed, match="found damage"):
        saved.of("ann")
    with pytest.raises(SearchesFailed, match="found damage"):
        saved.save("ann", "a", "topic:x", 0)
    assert saved.path.read_text() == text


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SearchesFailed, match="cannot read the file of saved searches"):
        SavedSearches(tmp_path).of("ann")
