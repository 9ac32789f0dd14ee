"""Several values as one text, from which min and max choose a row without ties: padded numbers, joined by '|'."""

from __future__ import annotations

WIDTH = 19
"""Characters of a padded number: enough for every 64-bit number that is not negative."""


def padded(number: str) -> str:
    """SQL: a number as a text in the same order; NULL and negative numbers count as 0."""
    return f"lpad(cast(greatest(coalesce({number}, 0), 0) AS string), {WIDTH}, '0')"


def packed(*parts: str) -> str:
    """SQL: parts (texts without '|') joined by '|'."""
    return " || '|' || ".join(parts)


def part(text: str, index: int) -> str:
    """SQL: the part at `index`, from 1; '' where there is none."""
    return f"split_part({text}, '|', {index})"


def number_at(text: str, index: int) -> str:
    """SQL: the number at `index`; NULL where `text` is NULL or has no such part."""
    return f"cast(nullif({part(text, index)}, '') AS bigint)"
