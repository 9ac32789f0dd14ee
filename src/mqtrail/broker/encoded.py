"""Tables as the JSON objects of their files: a change encodes one entry and copies one block of entries.

Files are saved whole, possibly after each change, by a thread that shares the interpreter with the event loop: what the
thread computes in Python delays requests. So entries are kept encoded, in blocks of some hundred, and a save joins the
blocks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

from mqtrail.wire import dumps_fastjson

BLOCK_COUNT: Final = 256  # entries in a block; one more splits it


class _Block:
    """Entries with neighbouring names. text: their JSON joined by commas. sizes: bytes of each entry."""

    __slots__ = ("names", "sizes", "text")

    def __init__(self, names: list[str], sizes: list[int], text: bytes) -> None:
        self.names, self.sizes, self.text = names, sizes, text

    def replace(self, place: int, end: int, names: list[str], encoded: list[bytes]) -> None:
        """Replace the entries at [place, end) by others."""
        start = sum(self.sizes[:place]) + place  # a comma follows each entry
        stop = sum(self.sizes[place:end], start) + end - place
        before, after = self.text[: max(0, start - 1)], self.text[stop:]
        self.text = b",".join([part for part in (before, *encoded, after) if part])
        self.names[place:end] = names
        self.sizes[place:end] = map(len, encoded)

    def split(self) -> "_Block":
        """Cut off the upper half and return it."""
        half = len(self.names) // 2
        cut = sum(self.sizes[:half]) + half
        upper = _Block(self.names[half:], self.sizes[half:], self.text[cut:])
        self.names, self.sizes, self.text = self.names[:half], self.sizes[:half], self.text[: cut - 1]
        return upper


class EncodedEntries:
    """The entries of a table as members of one JSON object, sorted by name. Values are those of `dumps_fastjson`."""

    def __init__(self, entries: Mapping[str, object]) -> None:
        self._blocks: list[_Block] = []
        names = sorted(entries)
        for first in range(0, len(names), BLOCK_COUNT // 2):
            of_block = names[first : first + BLOCK_COUNT // 2]
            encoded = [_encoded(name, entries[name]) for name in of_block]
            self._blocks.append(_Block(of_block, list(map(len, encoded)), b",".join(encoded)))
        self._firsts = [block.names[0] for block in self._blocks]

    def put(self, name: str, value: object) -> None:
        """Set an entry's value; None removes it."""
        at = max(0, bisect_right(self._firsts, name) - 1)
        if not self._blocks:
            self._blocks.append(_Block([], [], b""))
            self._firsts.append(name)
        block = self._blocks[at]
        place = bisect_left(block.names, name)
        is_known = place < len(block.names) and block.names[place] == name
        new = [] if value is None else [name]
        block.replace(place, place + is_known, new, [_encoded(name, value)] if new else [])
        if not block.names:
            del self._blocks[at], self._firsts[at]
            return
        self._firsts[at] = block.names[0]
        if len(block.names) > BLOCK_COUNT:
            upper = block.split()
            self._blocks.insert(at + 1, upper)
            self._firsts.insert(at + 1, upper.names[0])

    def snapshot(self) -> list[bytes]:
        """Return the JSON object of all entries as they are now, in parts to be joined."""
        parts = [b"{"]
        for block in self._blocks:
            parts += block.text, b","
        return [*parts[:-1], b"}"] if self._blocks else [b"{}"]


def _encoded(name: str, value: object) -> bytes:
    return dumps_fastjson({name: value})[1:-1]
