"""Judging what changed in cycles equals judging everything at once, in any order of arrival.

Seeds of longer runs: SEEDS=n.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import duckdb
import pytest

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, judge_rows
from mqtrail.lake.cycles import Cycle, LastJudgement
from mqtrail.pipeline import changes as changes_module
from mqtrail.trail import Settings
from tests.lake.changes import ONE_LATE_ROW, rows_of_changes
from tests.lake.recorded import Batch, as_changes, needed
from tests.lake.stories import small_stories, story
from tests.trail.histories import AS_OF_MS, BASE_MS, HISTORIES, Row, evidence, traced, units
from tests.trail.story import AS_OF, CLIENT, GROUP, History

SEEDS = int(os.environ.get("SEEDS", "1"))
CYCLES = 4
TIMES = {
    "trace_events": "trace_store_ms",
    "message_meta": "store_ms",
    "gaps": "detected_ms",
    "unread_ranges": "sampled_ms",
    "group_offsets": "sampled_ms",
    "clients": "sampled_ms",
    "subscriptions": "sampled_ms",
    "queue_ranges": "sampled_ms",
    "samples": "sampled_ms",
}
SAMPLED = re.compile(r"(sampled_ms|scanned_ms|offset)=[-\d?]+")
"""Parameters of reasons that say which sample was looked at."""
Evidence = Mapping[str, Sequence[Row]]
Batches = list[list[Batch]]
_NAMES = [relation.name for relation in trail.EVIDENCE]


class Tables:
    """Results and inputs of judgements in one DuckDB: the lake of these tests."""

    is_state_lost = False

    def __init__(self) -> None:
        self.duck = connect(threads=1)
        for relation in (trail.ATTEMPTS, *trail.APPENDED):
            self.duck.register("no_rows", arrow_rows(relation, ()))
            number = ", 0 AS cycle" if relation is trail.ATTEMPTS else ""
            self.duck.execute(f"CREATE TABLE kept_{relation.name} AS SELECT *{number} FROM no_rows")
        self.duck.register("no_rows", arrow_rows(trail.CLIENT_RECORDS, ()))
        self.duck.execute("CREATE TABLE kept_client_records AS FROM no_rows")
        self.rows: dict[str, list[Row]] = {relation.name: [] for relation in trail.EVIDENCE}
        self.batches: list[Batch] = []
        """Samples as changes."""
        self.last: LastJudgement | None = None
        self.cycle = 0
        self.judged = 0

    def new_count(self) -> int:
        return 0  # no bulk asks

    def new_attempts(self) -> str:
        return self._attempts(f"cycle > {self.judged}")

    def judged_attempts(self, hours: Collection[int] | None = None) -> str:
        where = "true" if hours is None else f"publish_hour IN ({_list(hours)})"
        return self._attempts(f"cycle <= {self.judged} AND {where}")

    def batch_items(self, hours: Collection[int]) -> str:
        return self._attempts(f"batch_id <> '' AND publish_hour IN ({_list(hours)})")

    def results(self, name: str, hours: Collection[int] | None = None) -> str:
        where = "true" if hours is None else f"publish_hour IN ({_list(hours)})"
        return f"SELECT * FROM kept_{name} WHERE {where}"

    def state(self, name: str) -> str:
        return f"SELECT * FROM state_{name}"

    def samples(self, name: str, horizon_ms: int) -> str:
        if self.batches and name in trail.SAMPLED:
            rows = arrow_rows(trail.EVIDENCE[_NAMES.index(name)], needed(self.batches, horizon_ms)[name])
            self.duck.register(f"needed_{name}", rows)
            return f"SELECT * FROM needed_{name}"
        return f"SELECT * FROM {'kept' if name == trail.CLIENT_RECORDS.name else 'bronze'}_{name}"

    def _attempts(self, where: str) -> str:
        return f"SELECT {', '.join(trail.ATTEMPTS.names)} FROM kept_attempts WHERE {where}"

    def arrive(self, rows: Evidence, batches: Sequence[Batch] = ()) -> None:
        """Add evidence and its attempts; batches: samples as changes."""
        self.cycle += 1
        self.batches += batches
        for batch in batches:
            for name, some in batch.items():
                self.rows[name] += some
        for relation in trail.EVIDENCE:
            self.rows[relation.name] += rows.get(relation.name, ())
            self.duck.register(f"bronze_{relation.name}", arrow_rows(relation, self.rows[relation.name]))
            self.duck.register(f"more_{relation.name}", arrow_rows(relation, rows.get(relation.name, ())))
        made = trail.attempts_sql("more_trace_events", "more_message_meta")
        self.duck.execute(f"INSERT INTO kept_attempts SELECT *, {self.cycle} FROM ({made})")
        self.duck.execute(f"INSERT INTO kept_client_records {trail.client_records_sql('more_trace_events')}")

    def judge(self, as_of_ms: int, settings: Settings, *, only_until: bool = False, dies: bool = False) -> int:
        """Judge. dies: before anything is committed."""
        cycle = Cycle(self.duck, self, as_of_ms, settings, self.last, only_until=only_until)
        count = cycle.run()
        if dies:
            return 0
        for relation in trail.APPENDED:
            self.duck.execute(f"CREATE OR REPLACE TABLE made_{relation.name} AS SELECT * FROM append_{relation.name}")
        for relation in trail.APPENDED:
            names = ", ".join(relation.names)
            self.duck.execute(f"INSERT INTO kept_{relation.name} SELECT {names} FROM made_{relation.name}")
        for name in trail.STATE:
            self.duck.execute(f"CREATE OR REPLACE TABLE copy_{name} AS SELECT * FROM {name}")
            self.duck.execute(f"CREATE OR REPLACE TABLE state_{name} AS SELECT * FROM copy_{name}")
        prints = cycle.prints if self.cycle % 4 else {}  # after a restart they are not known
        self.last = LastJudgement(as_of_ms, settings.values(), only_until, prints)
        self.judged = self.cycle
        return count

    def compact(self, chance: random.Random) -> None:
        """Replace rows by their current form, as compaction does."""
        for relation in trail.APPENDED:
            if chance.random() < 0.5:
                rows = trail.latest_sql(relation, f"kept_{relation.name}")
                self.duck.execute(f"CREATE OR REPLACE TABLE kept_{relation.name} AS {rows}")
        settled_ms = self.last.as_of_ms - self.last.settings["trace_delay_ms"] if self.last else 0
        rows = trail.folded_client_records_sql("kept_client_records", settled_ms, 0)
        self.duck.execute(f"CREATE OR REPLACE TABLE kept_client_records AS {rows}")

    def now(self, relation: trail.Relation) -> str:
        """The current rows of a relation."""
        return trail.latest_sql(relation, f"kept_{relation.name}")


def _list(numbers: Collection[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"


def shown(duck: duckdb.DuckDBPyConnection, rows: str) -> list[str]:
    """Rows as sorted texts, without instants of samples and of the judgement."""
    found = duck.sql(rows).to_arrow_table().to_pylist()
    for row in found:
        row.pop("as_of_ms", None)
        row.pop("seen_ms", None)
        if "reasons" in row:
            row["reasons"] = SAMPLED.sub(r"\1=", row["reasons"])
    return sorted(repr(row) for row in found)


def assert_as_at_once(tables: Tables, settings: Settings) -> None:
    """Compare the results of all cycles with a judgement of everything as of the last instant."""
    assert tables.last is not None
    whole = judge_rows(tables.rows, tables.last.as_of_ms, settings)
    for relation in (trail.VERDICTS, trail.TRAJECTORIES, trail.LATENCY_MINUTE, trail.KEY_INDEX):
        found = shown(tables.duck, tables.now(relation))
        wanted = shown(whole, f"SELECT {', '.join(relation.names)} FROM {relation.name}")
        differ = sorted(set(found) ^ set(wanted))
        assert found == wanted, f"{relation.name}: {len(differ)} rows differ\n" + "\n".join(
            ("found  " if row in set(found) else "wanted ") + row for row in differ[:6]
        )
    folds = shown(tables.duck, tables.now(trail.GROUP_FOLDS))
    names = ", ".join(trail.GROUP_FOLDS.names)
    assert folds == shown(whole, f"SELECT {names} FROM folds")


def split(rows: Evidence, instants: Sequence[int], chance: random.Random) -> list[dict[str, list[Row]]]:
    """Give each row to the first cycle after it, to a later one, or to the one before; some rows twice."""
    cycles: list[dict[str, list[Row]]] = [{} for _ in instants]
    for name, some in rows.items():
        for unit in units(name, some):
            first = next((n for n, at in enumerate(instants) if at >= unit[0][TIMES[name]]), len(instants) - 1)
            late, early = chance.random() < 0.15, chance.random() < 0.1
            number = chance.randrange(first, len(instants)) if late else max(0, first - early)
            cycles[number].setdefault(name, []).extend(unit)
            if chance.random() < 0.1:
                cycles[chance.randrange(number, len(instants))].setdefault(name, []).extend(unit)
    return cycles


def split_batches(batches: Sequence[tuple[int, Batch]], instants: Sequence[int], chance: random.Random) -> Batches:
    """Give each batch of samples to the first cycle after it, or to a later one, in order."""
    cycles: list[list[Batch]] = [[] for _ in instants]
    number = 0
    for at_ms, batch in batches:
        number = max(number, next((n for n, at in enumerate(instants) if at >= at_ms), len(instants) - 1))
        if number < len(instants) - 1 and chance.random() < 0.02:
            number += 1
        cycles[number].append(batch)
    return cycles


def in_cycles(
    rows: Evidence, seed: int, first_ms: int, last_ms: int, settings: Settings, *, changes: bool = False
) -> Tables:
    """Judge in cycles: pairs of close instants, so that the second one has little work, up to the last instant.

    That is last_ms or an earlier one; rows of later times are left out. Some cycles die before they commit. changes:
    samples as the lake stores them, otherwise each sample in full.
    """
    chance = random.Random(seed)
    last_ms = chance.choice((last_ms, chance.randrange((first_ms + last_ms) // 2, last_ms)))
    rows = {name: [row for row in some if row[TIMES[name]] <= last_ms] for name, some in rows.items()}
    begun = [chance.randrange(first_ms, last_ms - 60_000) for _ in range(CYCLES // 2 - 1)]
    begun.append(last_ms - chance.choice((1_000, 10_000, 40_000)))
    instants = sorted({*begun, *(min(at + chance.randrange(3_000, 40_000), last_ms) for at in begun), last_ms})
    tables = Tables()
    batches: Batches = [[] for _ in instants]
    if changes:
        batches = split_batches(as_changes(rows, chance), instants, chance)
        rows = {name: some for name, some in rows.items() if name not in trail.SAMPLED}
    for instant, some, samples in zip(instants, split(rows, instants, chance), batches, strict=True):
        tables.arrive(some, samples)
        is_last = instant == last_ms
        only_until, dies = (chance.random() < share and not is_last for share in (0.25, 0.2))
        tables.judge(instant, settings, only_until=only_until, dies=dies)
        if chance.random() < 0.3:
            tables.compact(chance)
    return tables


@pytest.fixture(autouse=True)
def keyframes_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let samples have several keyframes."""
    monkeypatch.setattr(changes_module, "KEYFRAME_ROWS_MIN", 60)
    monkeypatch.setattr(changes_module, "KEYFRAME_FACTOR", 1)


@pytest.mark.cycles
@pytest.mark.parametrize("seed", range(SEEDS))
def test_labelled_histories_in_cycles(seed: int) -> None:
    """All labelled histories, their rows split at random, some late, some twice."""
    tables = in_cycles(evidence(HISTORIES), seed, BASE_MS - 70_000, AS_OF_MS, Settings(), changes=seed % 2 == 1)
    assert_as_at_once(tables, Settings())
    for name in trail.STATE:
        tables.duck.execute(f"CREATE OR REPLACE TEMP VIEW last_{name} AS SELECT * FROM {name}")
    for cause in trail.causes(AS_OF_MS, AS_OF_MS + 1, Settings()):
        if not cause.by_time and cause.state:  # else it is looked for although the state is the same
            assert tables.duck.execute(cause.changes).fetchall() == [], cause.name


@pytest.mark.cycles
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_stories_in_cycles(seed: int, changes: bool) -> None:
    """Messages of a few groups that come, go, stop, reset and lose records; samples in full, and as changes."""
    rows, first_ms, last_ms, settings = story(seed)
    tables = in_cycles(rows, seed, first_ms, last_ms, settings, changes=changes)
    assert_as_at_once(tables, settings)


def but_one_row(rows: Evidence, chance: random.Random) -> tuple[Batch, Batch]:
    """Divide the rows: the second part has one or two rows of one relation for each cluster."""
    first: Batch = {name: [] for name in rows}
    second: Batch = {name: [] for name in rows}
    for cluster in sorted({row["cluster"] for some in rows.values() for row in some}):
        own = {name: [row for row in some if row["cluster"] == cluster] for name, some in rows.items()}
        chosen = chance.choice([name for name, some in own.items() if some])
        read = units(chosen, own.pop(chosen))
        kind = chance.choice(sorted({unit[0].get("record_type", "") for unit in read}))
        places = [n for n, unit in enumerate(read) if unit[0].get("record_type", "") == kind]
        left = set(chance.sample(places, min(len(places), chance.choice((1, 1, 2)))))
        for n, unit in enumerate(read):
            (second if n in left else first)[chosen].extend(unit)
        for name, some in own.items():
            first[name].extend(some)
    return first, second


@pytest.mark.cycles
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("source", ["histories", "stories"])
def test_one_late_row(source: str, seed: int) -> None:
    """The messages that one row changes are judged again, although nothing else changes and no time limit passes."""
    chance = random.Random(seed)
    rows, last_ms, settings = evidence(HISTORIES), AS_OF_MS, Settings()
    if source == "stories":
        rows, last_ms, settings = small_stories(seed)
    first, second = but_one_row(rows, chance)
    tables = Tables()
    tables.arrive(first)
    tables.judge(last_ms - 1, settings)
    tables.arrive(second)
    tables.judge(last_ms, settings)
    assert_as_at_once(tables, settings)


@pytest.mark.cycles
@pytest.mark.parametrize("causes", [True, False])
def test_each_cause_finds_its_messages(monkeypatch: pytest.MonkeyPatch, causes: bool) -> None:
    """One late row changes the verdict of another message; without causes each of these verdicts is out of date."""
    settings = Settings(hung_p99_samples=1)
    first, second = rows_of_changes()
    tables = Tables()
    tables.arrive(first)
    tables.judge(AS_OF_MS - 1, settings)
    tables.arrive(second)
    if not causes:
        monkeypatch.setattr(trail, "causes", lambda *_: [])
    tables.judge(AS_OF_MS, settings)
    if causes:
        assert_as_at_once(tables, settings)
        return
    whole = judge_rows(tables.rows, AS_OF_MS, settings)
    old: set[str] = set()
    for relation in (trail.VERDICTS, trail.TRAJECTORIES):
        now = set(shown(whole, f"SELECT {', '.join(relation.names)} FROM {relation.name}"))
        old |= set(shown(tables.duck, tables.now(relation))) ^ now
    names = [history.name for history, _ in ONE_LATE_ROW]
    assert [name for name in names if not any(f"'cluster': '{name}'" in row for row in old)] == []


@pytest.mark.cycles
def test_a_loss_judges_what_it_can_concern() -> None:
    """A late loss finds the open messages of its group that are not newer; a later client that vanished none that an
    earlier one made INCOMPLETE."""
    waiting = traced("waiting").group(CLIENT, offset=7).pub(200, msg=3).stored(200, offset=8, msg=3)
    waiting.group(CLIENT, group="CG2", offset=9)
    for number in (1, 2, 3):
        waiting.handled(200 * (number // 3), group="CG2", request=f"R2{number}", msg=number)
    tables = Tables()
    tables.arrive(waiting.rows)
    assert tables.judge(AS_OF_MS - 3, Settings()) == 3

    def judged_after(as_of_ms: int, change: Callable[[History], object]) -> int:
        late = History("waiting")
        late.rows.clear()
        late.records = as_of_ms
        change(late)
        tables.arrive(late.rows)
        return tables.judge(as_of_ms, Settings())

    gone = {"group_name": GROUP, "status": "OK", "client_id": "10.0.0.3@9#5", "client_host": "10.0.0.3:7001"}
    later = gone | {"client_id": "10.0.0.3@1#5"}
    assert judged_after(AS_OF_MS - 2, lambda late: late.sampled("clients", 300, **gone | {"group_name": "CG2"})) == 0
    assert judged_after(AS_OF_MS - 1, lambda late: late.sampled("clients", 100, **gone)) == 1
    assert judged_after(AS_OF_MS, lambda late: late.sampled("clients", 400, **later)) == 1
    assert_as_at_once(tables, Settings())


@pytest.mark.slow
def test_nothing_new_takes_no_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle without new records, in which nothing that a message waits for has happened, only updates the state."""
    tables = Tables()
    tables.arrive(evidence(HISTORIES[:1]))
    assert tables.judge(AS_OF_MS, Settings()) == 1
    for stages in ("fact_stages", "verdict_stages"):
        monkeypatch.setattr(trail, stages, None)
    assert tables.judge(AS_OF_MS + 1, Settings()) == 0
    monkeypatch.undo()
    assert_as_at_once(tables, Settings())
    names = {name for (name,) in tables.duck.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    assert names & set(trail.READ_WHOLE) == {trail.SAMPLES.name, trail.CLIENTS.name}  # each stage would read them again
    looked = {name.removeprefix("changed_") for name in names if name.startswith("changed_")}
    assert looked == {"time", "clients", "sampling"}  # the state is the same, and has no losses


@pytest.mark.slow
def test_a_message_dated_after_an_instant_is_counted_once() -> None:
    """It was judged before, a judgement leaves later attempts out, and then a record of it comes."""
    rows = evidence((traced("ahead").pub(AS_OF + 50, stored=1).group(CLIENT).handled(AS_OF + 51),))
    tables = Tables()
    tables.arrive(rows)
    tables.judge(AS_OF_MS - 2, Settings())
    tables.judge(AS_OF_MS - 1, Settings(), only_until=True)
    tables.arrive({"trace_events": rows["trace_events"][-1:]})
    tables.judge(AS_OF_MS, Settings())
    assert_as_at_once(tables, Settings())
