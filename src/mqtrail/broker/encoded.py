"""Tables as the JSON objects of their files: a change encodes one entry and copies one block of entries.

Files are saved whole, possibly after each change, by a thread that shares the interpreter with the event loop: what the
thread computes in Python delays requests. So entries are kept encoded, in blocks of some hundred, and a save joins the
blocks. Tables with many changes between two saves leave the encoding of the changed entries to that thread (Handover).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from mqtrail.wire import dumps_fastjson

BLOCK_COUNT: Final = 256  # maximum entries of a block; a larger block is split
BLOCK_SIZE: Final = 256 * 1024  # maximum bytes of a block of several entries, because a change copies the block


Key = TypeVar("Key")
Value = TypeVar("Value")


class _Block:
    """Entries with adjacent names. text: their JSON joined by commas. sizes: bytes of each entry."""

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

    @property
    def is_large(self) -> bool:
        count = len(self.names)
        return count > BLOCK_COUNT or (count > 1 and len(self.text) > BLOCK_SIZE)

    def split(self) -> "_Block":
        """Cut off the upper half and return it."""
        half = len(self.names) // 2
        cut = sum(self.sizes[:half]) + half
        upper = _Block(self.names[half:], self.sizes[half:], self.text[cut:])
        self.names, self.sizes, self.text = self.names[:half], self.sizes[:half], self.text[: cut - 1]
        return upper


class EncodedEntries:
    """The entries of a table as members of one JSON object, sorted by name. members: each as `member` encodes it."""

    def __init__(self, members: Mapping[str, bytes]) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[str] = []
        names = sorted(members)
        for first in range(0, len(names), BLOCK_COUNT // 2):
            of_block = names[first : first + BLOCK_COUNT // 2]
            encoded = [members[name] for name in of_block]
            self._insert(len(self._blocks), _Block(of_block, list(map(len, encoded)), b",".join(encoded)))

    def _insert(self, at: int, block: _Block) -> None:
        self._blocks.insert(at, block)
        self._firsts.insert(at, block.names[0])
        self._split(at)

    def _split(self, at: int) -> None:
        """Split the block at this place until it is not large."""
        while self._blocks[at].is_large:
            self._insert(at + 1, self._blocks[at].split())

    def put(self, name: str, encoded: bytes | None) -> None:
        """Set an entry; None removes it."""
        if not self._blocks:
            self._blocks.append(_Block([], [], b""))
            self._firsts.append(name)
        at = max(0, bisect_right(self._firsts, name) - 1)
        block = self._blocks[at]
        place = bisect_left(block.names, name)
        is_known = place < len(block.names) and block.names[place] == name
        block.replace(place, place + is_known, *(([], []) if encoded is None else ([name], [encoded])))
        if not block.names:
            del self._blocks[at], self._firsts[at]
            return
        self._firsts[at] = block.names[0]
        self._split(at)

    def snapshot(self) -> list[bytes]:
        """Return the JSON object of all entries as they are now, in parts to be joined."""
        parts = [b"{"]
        for block in self._blocks:
            parts += block.text, b","
        return [*parts[:-1], b"}"] if self._blocks else [b"{}"]


def member(name: str, value: object) -> bytes:
    """Return an entry as a member of a JSON object, as `dumps_fastjson` writes it."""
    return dumps_fastjson({name: value})[1:-1]


class Handover(Generic[Key, Value]):
    """Changed entries on their way from the event loop to the thread that encodes and saves them.

    The loop notes the changes and takes them when a save begins. The thread applies the changes that were taken. If a
    save fails, the next one applies the rest.
    """

    def __init__(self) -> None:
        self._noted: dict[Key, Value | None] = {}
        self._taken: deque[dict[Key, Value | None]] = deque()

    def note(self, key: Key, value: Value | None) -> None:
        """Note an entry's value, which must not change any more; None: it was removed."""
        self._noted[key] = value

    def note_all(self, entries: Mapping[Key, Value | None]) -> None:
        """Note many entries, as `note` does."""
        self._noted.update(entries)

    def take(self) -> None:
        """Take what was noted so far for the save that begins."""
        if self._noted:
            self._taken.append(self._noted)
            self._noted = {}

    def apply(self, put: Callable[[Key, Value | None], None]) -> None:
        """Call put for each change that was taken, in order."""
        while self._taken:
            for key, value in self._taken[0].items():
                put(key, value)
            self._taken.popleft()
