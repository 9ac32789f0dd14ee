"""The result of a figure: rounds of ours beside rounds of a peer, compared with a target."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]


class CannotMeasure(Exception):
    """A figure cannot be measured on this machine or with this tree; the message has the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The target of a figure. of: the ratio of medians (ours ÷ peer), or our median."""

    relation: Literal[">=", "<="]
    limit: float
    of: Literal["ratio", "ours"] = "ratio"

    def met(self, value: float) -> bool:
        """Return whether the value reaches the target."""
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
        """Median of ours divided by the median of the peer's; None without a peer."""
        if not self.peer or not statistics.median(self.peer):
            return None
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.bar is None:
            return None
        value = statistics.median(self.ours) if self.bar.of == "ours" else self.ratio
        return value is not None and self.bar.met(value) and not self.errors[0]

    def to_json(self) -> Json:
        """Return the row as printed and stored; ranges are [least, greatest] of the rounds."""
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
    """Return a number with four significant digits, which is the precision of these measurements."""
    return float(f"{value:.4g}")
