"""Plans a judgement in shares: which stages run on each share, which run once, and in what order.

A share has all attempts of some ids, and no others. Most stages process one id at a time, so the rows of one share are
enough for them. An aggregate over all messages consists of two stages: each share computes rows of the first, which is
`gathered`; the second aggregates these rows once. If rows of different ids must be joined (a batch has a separate id),
a stage redistributes its rows: `partition_by`. So a judgement takes a few rounds. In each round the shares run their
stages first, then the stages over all rows run once:

    round 0   pieces   attempts by id, records of clients
    round 1   shares   attempts → resolved → hand_overs, rounds, message_facts → handling_times, traced_spans …
              whole    samples, losses; handling_times → hung_limits …
    round 2   shares   all of these → messages, group_facts → trajectories, verdicts, key_index → latency_counts
              whole    latency_counts → latency_minute

If messages were sent in batches, two more rounds come before round 1. A stage runs in the last round that its readers
allow, so that few rows are kept between rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .stages import Stage


@dataclass(frozen=True, slots=True)
class Round:
    """Stages to run on each share, then stages to run once over the gathered rows of all shares; each in order."""

    shares: tuple[Stage, ...]
    whole: tuple[Stage, ...]
    kept: tuple[str, ...]
    """Stages of `shares` that later rounds of the same share read."""
    broadcast: tuple[str, ...]
    """Stages of `whole` that later rounds read."""


def rounds(stages: Sequence[Stage], pieces: Collection[str]) -> list[Round]:
    """Divide stages into rounds.

    pieces: inputs whose rows may be divided among the tasks in any way. Every other input is read as a whole.
    """
    plan = _Plan(stages, pieces)
    return [plan.round(number) for number in range(max(plan.number.values(), default=-1) + 1)]


class _Plan:
    """Where each stage runs: on shares or over the whole, and in which round."""

    def __init__(self, stages: Sequence[Stage], pieces: Collection[str]) -> None:
        self._stages = stages
        self._by_name = {stage.name: stage for stage in stages}
        self._whole: set[str] = set()
        self.number: dict[str, int] = {}
        for stage in stages:
            self._place(stage, pieces)
        for stage in reversed(stages):
            self._delay(stage)

    def round(self, number: int) -> Round:
        """Return one round: its stages, and the results that later rounds need."""
        own = [stage for stage in self._stages if self.number[stage.name] == number]
        shares = tuple(stage for stage in own if stage.name not in self._whole)
        whole = tuple(stage for stage in own if stage.name in self._whole)
        kept = tuple(stage.name for stage in shares if not stage.partition_by and self._read_by_later_shares(stage))
        return Round(shares, whole, kept, tuple(stage.name for stage in whole if self._read_later(stage)))

    def _place(self, stage: Stage, pieces: Collection[str]) -> None:
        """Assign a stage to the first round in which all its inputs exist."""
        made = [self._by_name[name] for name in stage.reads if name in self._by_name]
        inputs = set(stage.reads) - self._by_name.keys()
        if not inputs & set(pieces) and all(each.name in self._whole or each.gathered for each in made):
            self._whole.add(stage.name)
            self.number[stage.name] = max((self.number[each.name] for each in made), default=0)
            return
        assert inputs <= set(pieces), f"{stage.name} reads {sorted(inputs - set(pieces))}, which no share has"
        assert not any(each.gathered for each in made), f"{stage.name} would see only the rows of its share"
        ready = (self.number[each.name] + (each.name in self._whole or bool(each.partition_by)) for each in made)
        self.number[stage.name] = max(ready, default=0)

    def _delay(self, stage: Stage) -> None:
        """Move a stage to the last round that its readers allow, but not a gathered one: its rows are few."""
        readers = self._readers(stage)
        if not readers or stage.gathered:
            return
        if stage.name in self._whole:
            self.number[stage.name] = min(self.number[each.name] - (each.name not in self._whole) for each in readers)
        else:
            self.number[stage.name] = min(self.number[each.name] for each in readers) - bool(stage.partition_by)

    def _readers(self, stage: Stage) -> list[Stage]:
        return [each for each in self._stages if stage.name in each.reads]

    def _read_later(self, stage: Stage) -> bool:
        return any(self.number[each.name] > self.number[stage.name] for each in self._readers(stage))

    def _read_by_later_shares(self, stage: Stage) -> bool:
        return any(
            self.number[each.name] > self.number[stage.name] and each.name not in self._whole
            for each in self._readers(stage)
        )
