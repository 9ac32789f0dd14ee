"""What a figure gives: rounds of ours beside rounds of a peer's, judged against a bar."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]


class CannotMeasure(Exception):
    """A figure cannot be taken on this machine or of this tree; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach. of: the ratio of medians (ours ÷ peer), or our median alone."""

    relation: Literal[">=", "<="]
    limit: float
    of: Literal["ratio", "ours"] = "ratio"

    def met(self, value: float) -> bool:
        """Tell whether the value reaches it."""
        return value >= self.limit if self.relation == ">=" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.relation} {self.limit:g}{'×' if self.of == 'ratio' else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: its rounds in the order they ran, round n of ours next to round n of the peer's.

    errors: error replies of all rounds, ours first; any error of ours misses the bar. more: numbers that explain it
    (p99, share of the load generator's core, files opened).
    """

    name: str
    what: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] = ()
    peer_name: str = ""
    bar: Bar | None = None
    errors: tuple[int, int] = (0, 0)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Median of ours by median of the peer's; None without a peer."""
        if not self.peer or not statistics.median(self.peer):
            return None
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; None when there is none."""
        if self.bar is None:
            return None
        value = statistics.median(self.ours) if self.bar.of == "ours" else self.ratio
        return value is not None and self.bar.met(value) and not self.errors[0]

    def to_json(self) -> Json:
        """Return the row as it is printed and kept; ranges are [least, greatest] over the rounds."""
        pairs = list(zip(self.ours, self.peer, strict=False))
        ratios = [ours / peer for ours, peer in pairs if peer]
        return {
            "figure": self.name,
            "what": self.what,
            "unit": self.unit,
            "ours": _short(statistics.median(self.ours)),
            "ours_range": [_short(min(self.ours)), _short(max(self.ours))],
            "peer": _short(statistics.median(self.peer)) if self.peer else None,
            "peer_range": [_short(min(self.peer)), _short(max(self.peer))] if self.peer else None,
            "peer_name": self.peer_name or None,
            "ratio": None if self.ratio is None else _short(self.ratio),
            "ratio_range": [_short(min(ratios)), _short(max(ratios))] if ratios else None,
            "rounds": len(self.ours),
            "bar": None if self.bar is None else str(self.bar),
            "met": self.met,
            "errors": {"ours": self.errors[0], "peer": self.errors[1]},
            "more": dict(self.more),
        }


def _short(value: float) -> float:
    """Four digits say all that a measurement here can."""
    return float(f"{value:.4g}")
