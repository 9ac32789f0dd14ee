"""Positions of a (group, topic) in Apache's Bloom filter: Apache's broker reads only a consumerFilter.json that has
them.

This broker evaluates records and keeps no bit maps. Source: BloomFilter, apache/rocketmq filter/util/, for 32
groups per topic and an error rate of 20 %; MurmurHash3 x64 128, public domain (Austin Appleby).
"""

from typing import Final

from mqtrail.wire import Body

BIT_COUNT: Final = 112
HASH_COUNT: Final = 3
_MASK: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomPlaces(Body, frozen=True):
    """Bit positions of a (group, topic) in a filter of bit_num bits."""

    bit_num: int = BIT_COUNT
    bit_pos: tuple[int, ...] = ()


def bloom_places(group: str, topic: str) -> BloomPlaces:
    """Return the positions that Apache's broker computes."""
    hashed = murmur64(f"{group}#{topic}".encode())
    low, high = hashed & 0xFFFFFFFF, hashed >> 32
    places = []
    for number in range(1, HASH_COUNT + 1):
        combined = low + number * high & 0xFFFFFFFF
        places.append((combined ^ 0xFFFFFFFF if combined & 0x80000000 else combined) % BIT_COUNT)
    return BloomPlaces(BIT_COUNT, tuple(places))


def murmur64(data: bytes) -> int:
    """Return the first 64 of MurmurHash3's 128 bits, seed 0."""
    first = second = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        first ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        first = (_rotated(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        second = (_rotated(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    second ^= _mixed(int.from_bytes(tail[8:], "little"), _C2, 33, _C1)
    first ^= _mixed(int.from_bytes(tail[:8], "little"), _C1, 31, _C2)
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    return _finished(first) + _finished(second) & _MASK


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _MASK


def _mixed(value: int, factor: int, count: int, last: int) -> int:
    return _rotated(value * factor & _MASK, count) * last & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
