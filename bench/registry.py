"""Figures by name: those that `python -m bench NAME` can measure.

    @figure("look-up", "look-up of one id among 10 M messages", seconds=90)
    def look_up(session: Session) -> Iterator[Row]:
        yield Row("look-up/trajectory", "…", "ms", ours=[3.1, 3.3, 3.2], bar=Bar("<=", 50, of="ours"))

A bench module registers its figures when it is imported. `bench.__main__` imports all modules, runs and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.rows import Row
from bench.session import Session

Measure = Callable[[Session], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement with one row or several. seconds: approximate duration with the usual rounds."""

    name: str
    about: str
    seconds: float
    measure: Measure


FIGURES: dict[str, Figure] = {}


def figure(name: str, about: str, *, seconds: float) -> Callable[[Measure], Measure]:
    """Register a measurement under the NAME of `python -m bench NAME`."""

    def register(measure: Measure) -> Measure:
        assert name not in FIGURES, f"two figures are called {name}"
        FIGURES[name] = Figure(name, about, seconds, measure)
        return measure

    return register
