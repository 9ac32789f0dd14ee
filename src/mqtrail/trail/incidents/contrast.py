"""What the bad units of an episode share and the good ones do not: a best-first search over conditions.

    contrast    temporary table: the bad units of one episode, and good units of the same time and just before it

A condition is `dimension = value`; at most three are joined by AND. They are rated by the log-likelihood ratio of two
rates of bad units, inside and outside, against one. A rating counts if it passes a bound that is corrected for the
number of conditions tried. A longer conjunction must improve the rating by that bound again, and by a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..kinds import literal
from .cases import DIMENSIONS, Ask
from .settings import IncidentSettings

SAME_SHARE = 0.98  # of the units of a condition: another condition that has as many of them is the same in extent
VALUES_MAX = 60  # values of one dimension that are tried, those with the most bad units


class Condition(NamedTuple):
    """A dimension and its value."""

    dimension: str
    value: str

    def __str__(self) -> str:
        return f"{self.dimension} = {self.value}"

    @property
    def sql(self) -> str:
        """The condition over a table of units."""
        return f"{self.dimension} = {literal(self.value)}"


def where(conditions: Sequence[Condition]) -> str:
    """SQL: all conditions hold."""
    return " AND ".join(one.sql for one in conditions) or "true"


@dataclass(frozen=True, slots=True)
class Split:
    """Units inside and outside of conditions, all and bad ones."""

    inside: int
    inside_bad: int
    outside: int
    outside_bad: int

    @property
    def purity(self) -> float:
        """Share of bad units inside."""
        return self.inside_bad / self.inside if self.inside else 0.0

    @property
    def lift(self) -> float:
        """How many times more frequent bad units are inside than outside; one more bad unit outside bounds it."""
        outside = (self.outside_bad + 1) / (self.outside + 1)
        return self.purity / outside

    @property
    def rating(self) -> float:
        """Log-likelihood of two rates minus that of one; 0 if the rate inside is not the higher one."""
        every, bad = self.inside + self.outside, self.inside_bad + self.outside_bad
        if not self.inside or not self.outside or self.inside_bad * self.outside <= self.outside_bad * self.inside:
            return 0.0
        return (
            _likelihood(self.inside, self.inside_bad)
            + _likelihood(self.outside, self.outside_bad)
            - _likelihood(every, bad)
        )


def _likelihood(every: float, bad: float) -> float:
    good = every - bad
    return sum(count * math.log(count / every) for count in (bad, good) if count > 0)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Conditions with the split that they make; same: conditions of equal extent; around: wider ones that hold too.

    tried: how many conditions were tried until then.
    """

    conditions: tuple[Condition, ...]
    split: Split
    same: tuple[Condition, ...] = ()
    around: tuple[Condition, ...] = ()
    tried: int = 0

    @property
    def every(self) -> tuple[Condition, ...]:
        """All conditions that hold inside."""
        return (*self.conditions, *self.same, *self.around)


@dataclass(slots=True)
class Search:
    """A search over the table contrast. The counts of good units are estimated from those that were sampled."""

    ask: Ask
    unit: str
    settings: IncidentSettings
    repeated: float = 1.0
    """Bad units per bad message. Those of one message are no independent proof, so the bounds rise with it."""
    tried: int = 0
    totals: dict[Condition, tuple[int, int]] = field(default_factory=dict)
    """All and bad units of each single condition."""

    def best(self) -> Explanation | None:
        """Return the explanation of most of the bad units that the table has; None: there is none."""
        [(every, bad)] = self.ask("SELECT sum(weight)::bigint, sum(is_bad * weight)::bigint FROM contrast")
        if not bad or bad < self.settings.bad_count_min:
            return None
        self.totals = dict(self._counts(()))
        found: Explanation | None = None
        beam: list[Explanation] = [Explanation((), Split(every, bad, 0, 0))]
        for length in range(self.settings.conditions_max):
            longer: dict[frozenset[Condition], Explanation] = {}
            for one in beam:
                counts = self.totals.items() if not length else self._counts(one.conditions)
                for condition, (inside, inside_bad) in counts:
                    if condition.dimension in {each.dimension for each in one.conditions}:
                        continue
                    split = Split(inside, inside_bad, every - inside, bad - inside_bad)
                    made = Explanation((*one.conditions, condition), split)
                    longer.setdefault(frozenset(made.conditions), made)
            beam = sorted(longer.values(), key=self._order)[: self.settings.beam_width]
            if beam and self._is_better(beam[0], found):
                found = beam[0]
            if not beam or found is None:
                break
        return None if found is None else self._with_others(replace(found, tried=self.tried))

    def _order(self, one: Explanation) -> tuple[float, list[int]]:
        """The best rating first; of equal ones the dimension that is listed first."""
        order = DIMENSIONS[self.unit]
        return (-round(one.split.rating, 3), [order.index(each.dimension) for each in one.conditions])

    def _is_better(self, one: Explanation, than: Explanation | None) -> bool:
        bound = math.log(max(2, self.tried) / self.settings.doubt) * self.repeated
        if than is None:
            split = one.split
            return (
                split.rating >= bound
                and split.lift >= self.settings.lift_min
                and split.inside_bad >= self.settings.bad_count_min * self.repeated
            )
        return one.split.rating >= than.split.rating + max(bound, than.split.rating / 10)

    def _counts(self, conditions: Sequence[Condition]) -> list[tuple[Condition, tuple[int, int]]]:
        """All and bad units of each further value under conditions."""
        fixed = {each.dimension for each in conditions}
        names = [name for name in DIMENSIONS[self.unit] if name not in fixed]
        picks = ", ".join(f"{{'d': '{name}', 'v': {name}}}" for name in names)
        rows = self.ask(
            f"""SELECT one.d, one.v, sum(weight)::bigint, sum(is_bad * weight)::bigint AS bad FROM
            (SELECT weight, is_bad, unnest([{picks}]) AS one FROM contrast WHERE {where(conditions)}) AS every
            WHERE one.v <> '' GROUP BY one.d, one.v HAVING bad >= {self.settings.bad_count_min}
            QUALIFY row_number() OVER (PARTITION BY one.d ORDER BY bad DESC, one.v) <= {VALUES_MAX}"""
        )
        self.tried += len(rows)
        return [(Condition(name, value), (every, bad)) for name, value, every, bad in rows]

    def _with_others(self, one: Explanation) -> Explanation:
        """Add the conditions that hold for all units inside: of the same extent, and wider ones."""
        same: list[Condition] = []
        around: list[Condition] = []
        own = {each.dimension for each in one.conditions}
        for condition, (inside, inside_bad) in self._counts(one.conditions):
            is_all = inside >= SAME_SHARE * one.split.inside and inside_bad >= SAME_SHARE * one.split.inside_bad
            if not is_all or condition.dimension in own:
                continue
            every, _ = self.totals.get(condition, (inside, inside_bad))
            (same if every * SAME_SHARE <= one.split.inside else around).append(condition)
        return replace(one, same=_ordered(same, self.unit), around=_ordered(around, self.unit))


def _ordered(conditions: Sequence[Condition], unit: str) -> tuple[Condition, ...]:
    order = DIMENSIONS[unit]
    return tuple(sorted(conditions, key=lambda one: order.index(one.dimension)))
