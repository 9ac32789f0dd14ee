"""Packs several values into one text, padded numbers joined by '|', so that min and max choose a row without ties."""

from __future__ import annotations

WIDTH = 19
"""Characters of a padded number: enough for every 64-bit number of 0 or more."""


def padded(number: str) -> str:
    """SQL: a number as a text with the same sort order; NULL and negative numbers become 0."""
    return f"lpad(cast(greatest(coalesce({number}, 0), 0) AS string), {WIDTH}, '0')"


def packed(*parts: str) -> str:
    """SQL: parts (texts without '|') joined by '|'."""
    return " || '|' || ".join(parts)


def part(text: str, index: int) -> str:
    """SQL: the part at `index`, from 1; '' if there is none."""
    return f"split_part({text}, '|', {index})"


def number_at(text: str, index: int) -> str:
    """SQL: the number at `index`, from 1; NULL if `text` is NULL or has no such part."""
    return f"cast(nullif({part(text, index)}, '') AS bigint)"
