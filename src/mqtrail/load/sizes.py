"""Sizes of bodies: `512`, `100-4KiB` (each size as often), `512:90,16KiB:10` (sizes with weights)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

_SIZE = re.compile(r"([0-9]{1,10})(|KiB|MiB)", re.IGNORECASE)
_WEIGHT = re.compile(r"[0-9]{1,7}")
WEIGHT_MAX = 1_000_000
_FACTORS = {"": 1, "kib": 1 << 10, "mib": 1 << 20}
PARTS_MAX = 16
EXPECTED = "a size such as 512 or 4KiB, a range such as 100-4KiB, or sizes with weights such as 512:90,16KiB:10"


@dataclass(frozen=True, slots=True)
class Sizes:
    """A distribution of sizes in bytes. A range: two sizes without weights, each size between them equally often."""

    sizes: tuple[int, ...]
    weights: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Return the sizes of a text. ValueError: found, expected."""
        parts = text.replace(" ", "").split(",")
        if len(parts) > PARTS_MAX:
            raise ValueError(f"found {len(parts)} sizes, expected at most {PARTS_MAX}")
        if ":" not in text:
            first, dash, last = text.replace(" ", "").partition("-")
            sizes = (_bytes(first, text), _bytes(last, text)) if dash else (_bytes(first, text),)
            if sizes[0] > sizes[-1]:
                raise ValueError(f"found {text!r}, expected the smaller size first")
            return cls(sizes)
        pairs = [part.partition(":") for part in parts]
        if not all(_WEIGHT.fullmatch(weight) and 0 < int(weight) <= WEIGHT_MAX for _, _, weight in pairs):
            raise ValueError(f"found {text!r}, expected weights of 1 to {WEIGHT_MAX}: {EXPECTED}")
        return cls(tuple(_bytes(size, text) for size, _, _ in pairs), tuple(int(weight) for *_, weight in pairs))

    @property
    def smallest(self) -> int:
        return min(self.sizes)

    @property
    def largest(self) -> int:
        return max(self.sizes)

    def draw(self, chance: random.Random) -> Callable[[], int]:
        """Return a function that returns the next size."""
        if self.weights:
            sizes, total = self.sizes, [sum(self.weights[: at + 1]) for at in range(len(self.weights))]
            return lambda: chance.choices(sizes, cum_weights=total)[0]
        first, last = self.sizes[0], self.sizes[-1]
        return (lambda: first) if first == last else lambda: chance.randint(first, last)

    def __str__(self) -> str:
        if self.weights:
            return ",".join(f"{size}:{weight}" for size, weight in zip(self.sizes, self.weights, strict=True))
        return "-".join(map(str, self.sizes))


def _bytes(part: str, text: str) -> int:
    found = _SIZE.fullmatch(part)
    if found is None:
        raise ValueError(f"found {text!r}, expected {EXPECTED}")
    return int(found[1]) * _FACTORS[found[2].lower()]
