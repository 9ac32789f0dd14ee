"""Java's hash of topic#key for the index, fast for keys that share all but their last characters.

The hash of a text is a sum over its characters, so the sums of two parts are cached: topic and the key's head, and the
last eight characters. In the unique ids of clients the head rarely changes.
"""

from __future__ import annotations

from operator import mul

from mqtrail.wire import index_key_hash, java_string_hash

TOPICS_MAX = 1_000  # topics whose keys' heads are kept
HEADS_MAX = 10_000  # per topic: a client's unique ids share all but the time and the counter
PARTS_MAX = 1 << 12
HASH_BITS, SIGN_BIT = 0xFFFFFFFF, 0x80000000
TAIL_SIZE = 8  # characters at a key's end that are looked up by themselves


class HashHeads(dict[bytes, int]):
    """A cache: what the topic and all but the last eight characters of a key add to Java's hash.

    KeyError: they are not ASCII, so bytes are not characters.
    """

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, head: bytes) -> int:
        if not head.isascii():
            raise KeyError(head)
        if len(self) >= HEADS_MAX:
            self.clear()
        value: int = java_string_hash(f"{self._topic}#{head.decode()}") * 31**TAIL_SIZE & HASH_BITS
        self[head] = value
        return value


class HashParts(dict[bytes, int]):
    """What `size` ASCII characters add to Java's hash of a text in which `after` more follow. KeyError: not ASCII."""

    def __init__(self, size: int, after: int) -> None:
        super().__init__()
        self._powers = [31**power & HASH_BITS for power in range(after + size - 1, after - 1, -1)]

    def __missing__(self, characters: bytes) -> int:
        if len(characters) != len(self._powers) or not characters.isascii():
            raise KeyError(characters)
        if len(self) >= PARTS_MAX:
            self.clear()
        value = self[characters] = sum(map(mul, characters, self._powers))
        return value


# In the unique ids of clients the first of them change each ms, and the others have 256 values: small tables, which
# stay in the processor's cache.
TIME_PARTS, COUNTER_HIGH_PARTS, COUNTER_LOW_PARTS = HashParts(4, 4), HashParts(2, 2), HashParts(2, 0)


def sum_of_parts(heads: HashHeads, key: bytes) -> int:
    """Return the hash of an ASCII key of eight characters or more; KeyError for others. The indexer inlines it."""
    value = (
        heads[key[:-8]] + TIME_PARTS[key[-8:-4]] + COUNTER_HIGH_PARTS[key[-4:-2]] + COUNTER_LOW_PARTS[key[-2:]]
    ) & HASH_BITS
    if value & SIGN_BIT:
        value = HASH_BITS + 1 - value
    return 0 if value == SIGN_BIT else value


class KeyHashes:
    """The hashes of keys of all topics."""

    def __init__(self) -> None:
        self._heads: dict[str, HashHeads] = {}

    def heads(self, topic: str) -> HashHeads:
        """Return what the heads of the topic's keys add to their hashes."""
        found = self._heads.get(topic)
        if found is None:
            if len(self._heads) >= TOPICS_MAX:
                self._heads.clear()
            found = self._heads[topic] = HashHeads(topic)
        return found

    def of(self, topic: str, key: bytes) -> int:
        """Return the same value as index_key_hash."""
        try:
            return sum_of_parts(self.heads(topic), key)
        except KeyError:
            return index_key_hash(topic, key.decode("utf-8", "replace"))
