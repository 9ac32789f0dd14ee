"""The seam between the definition and an engine: named stages of SQL text, run in order.

An engine that understands the shared subset (see `DIALECT_NOTES`) makes each stage a view or a table; what a stage
reads are relations of `evidence`, `results` and earlier stages, by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

DIALECT_NOTES = """
Shared by Spark 4 and DuckDB as they are: CASE, coalesce, floor, log2, lpad, substr, instr, length, replace, translate,
upper, split_part, greatest, min, max, count, lag() OVER, percentile_cont() WITHIN GROUP, `||`, cast to string|bigint.
Spark's, given to DuckDB as macros (`lake.duck`): conv, timestamp_millis, explode(split()).
Never used: integer `/` (floor instead), concat (its NULL rule differs), boolean folds (0 and 1 instead), ORDER BY.
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """One named relation.

    reads counts how often later stages read it. What is read twice must be kept, not inlined: a plan that inlines it
    doubles with every reader (Spark: localCheckpoint, which cuts the plan; DuckDB: a temporary table).
    """

    name: str
    sql: str
    reads: int = 0
    small: bool = False
    """Bounded by groups, clients and losses, not by messages: worth a broadcast."""
    gathered: bool = False
    """Folds over messages, folded again by whoever reads it: rows made of shares of the messages are as good as those
    made of all of them (`shares`)."""


class Engine(Protocol):
    """Runs stages. Spark: a temporary view, of a localCheckpoint where reads > 1; DuckDB: a temporary view or table."""

    def define(self, stage: Stage) -> None:
        """Make `stage.name` readable by the stages that follow."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """How an engine builds what is nested: the one place where texts differ."""

    list_of_structs: str
    """Aggregate: a list, ordered by its fields, of structs of the columns in {fields}."""


SPARK = Nesting("sort_array(collect_list(struct({fields})))")
DUCKDB = Nesting("list_sort(list(struct_pack({named_fields})))")


def nested(nesting: Nesting, columns: Iterable[str]) -> str:
    """SQL: the aggregate that makes `columns` one ordered list of structs."""
    names = list(columns)
    return nesting.list_of_structs.format(fields=", ".join(names), named_fields=", ".join(f"{n} := {n}" for n in names))


def run(engine: Engine, stages: Iterable[Stage]) -> None:
    """Define every stage, in order."""
    for stage in stages:
        engine.define(stage)


def counted(stages: list[Stage], names: Mapping[str, str] | None = None) -> list[Stage]:
    """`stages` with their `reads` counted; `names` renames the relations they read (a table under another name)."""
    texts = [stage.sql for stage in stages]
    for old, new in (names or {}).items():
        texts = [re.sub(rf"\b{old}\b", new, text) for text in texts]
    read = Counter(name for text in texts for name in relations_read(text))
    return [replace(s, sql=text, reads=read[s.name]) for s, text in zip(stages, texts, strict=True)]


def relations_read(sql: str) -> list[str]:
    """The names behind each FROM and JOIN of a text, as often as they stand there."""
    return re.findall(r"\b(?:FROM|JOIN) (\w+)", sql)
