"""Keys of a source as words: index keys have no blank, and a long one is of no use."""

from __future__ import annotations

import hashlib
from typing import Final

KEY_LENGTH_MAX: Final = 200  # characters of a key; a longer one becomes its hash
SAFE: Final = "!#$&'()*+-./:;<=>?@[]^_`{}~"  # characters that `quote` leaves as they are, beside its own


def short_word(text: str, whole: bytes, prefix: str = "") -> str:
    """Return a percent-encoded key or, if it is long, prefix and the hash of whole."""
    return text if len(text) <= KEY_LENGTH_MAX else f"{prefix}sha256-{hashlib.sha256(whole).hexdigest()}"
