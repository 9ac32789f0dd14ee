"""A bound on the values of a JSON text, before it is decoded: each becomes an object, and decoding holds the loop.

8 MiB of `[[],[],…` take two seconds and 450 MB; a message of 8 MiB is one value.
"""

from __future__ import annotations

from typing import Final

VALUES_MAX: Final = 50_000  # of a request's body: 20 to 40 ms


def has_many_values(text: bytes, values_max: int = VALUES_MAX) -> bool:
    """Return whether a JSON text has more than values_max values. Of other text the result means nothing."""
    if _separators(text) <= values_max:  # those in texts included
        return False
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 4 * values_max:  # a value is at most one text with one name
        return True
    return _separators(b"".join(bare.split(b'"')[::2])) > values_max


def _separators(text: bytes) -> int:
    """Return how many characters of a text may come before a value."""
    return sum(map(text.count, (b",", b"[", b"{")))
