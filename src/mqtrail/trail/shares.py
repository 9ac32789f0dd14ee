"""How a judgement is done in shares: each share has all attempts of some of the ids, and knows of no other share.

Most stages look at one id at a time, so that a share's rows are all they need. What folds over all messages is written
as two stages: one that is `gathered`, whose rows each share makes for itself, and the fold of these. So a judgement is
a few rounds, in each of which the shares do theirs first and then what they gathered is folded, once:

    shares  attempts → resolved → hand_overs, rounds, message_facts → handling_times, traced_spans …
    whole   samples, losses; handling_times → hung_limits …
    shares  all of these → messages, group_facts → trajectories, verdicts, key_index → latency_counts
    whole   latency_counts → latency_minute

What is not gathered is made as late as its readers allow, so that little has to be kept between two rounds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mqtrail.trail.columns import Relation
from mqtrail.trail.stages import Stage, relations_read


@dataclass(frozen=True, slots=True)
class Round:
    """Stages to run on each share, then stages to run once over what all shares gathered; each in order."""

    shares: tuple[Stage, ...]
    whole: tuple[Stage, ...]
    kept: tuple[str, ...]
    """Stages of `shares` that later rounds of the same share read."""
    told: tuple[str, ...]
    """Stages of `whole` that shares of later rounds read."""


def rounds(stages: Sequence[Stage], spread: Collection[str]) -> list[Round]:
    """Divide a judgement into rounds. spread: the inputs that are divided by id; all others are read as a whole."""
    by_name = {stage.name: stage for stage in stages}
    reads = {stage.name: relations_read(stage.sql) for stage in stages}
    whole: set[str] = set()
    number: dict[str, int] = {}
    for stage in stages:
        inputs = [name for name in reads[stage.name] if name not in by_name]
        made = [name for name in reads[stage.name] if name in by_name]
        if not set(inputs) & set(spread) and all(name in whole or by_name[name].gathered for name in made):
            whole.add(stage.name)
            number[stage.name] = max((number[name] for name in made), default=0)
        else:
            assert all(name in spread for name in inputs), f"{stage.name} reads {inputs}, which no share has"
            number[stage.name] = max((number[name] + (name in whole) for name in made), default=0)
    for stage in reversed(stages):
        readers = [number[name] for name in by_name if name not in whole and stage.name in reads[name]]
        if readers and stage.name not in whole and not stage.gathered:
            number[stage.name] = min(readers)

    def later(name: str) -> bool:
        return any(number[other] > number[name] for other in by_name if other not in whole and name in reads[other])

    found = []
    for n in range(max(number.values()) + 1):
        own = [stage for stage in stages if number[stage.name] == n]
        shares = tuple(stage for stage in own if stage.name not in whole)
        folds = tuple(stage for stage in own if stage.name in whole)
        kept = tuple(stage.name for stage in shares if later(stage.name))
        found.append(Round(shares, folds, kept, tuple(stage.name for stage in folds if later(stage.name))))
    return found


def columns_read(relation: Relation, stages: Sequence[Stage]) -> list[str]:
    """The columns of an input that stages may read: those whose names stand in a text that reads it."""
    words = {word for s in stages if relation.name in relations_read(s.sql) for word in re.findall(r"\w+", s.sql)}
    return [name for name in relation.names if name in words]
