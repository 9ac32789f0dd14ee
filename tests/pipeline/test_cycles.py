"""A lake that is filled, judged, compacted and crashed at random equals one judgement of everything.

tests/lake/test_cycles.py tests the rules on more histories; here the lake, its commits and shares are real. Seeds of
longer runs: SEEDS=n.
"""

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.lake.recorded import Batch, as_changes
from tests.lake.stories import CLUSTER, story
from tests.lake.test_cycles import shown, split, split_batches
from tests.pipeline.test_shares import TasksHere
from tests.trail.histories import AS_OF_MS, HISTORIES, Row, evidence
from tests.trail.story import AS_OF, CLIENT, History

from mqtrail import trail
from mqtrail.lake import (
    JUDGED_APP,
    Change,
    Lake,
    LakePath,
    LakeTable,
    arrow_rows,
    compact,
    connect,
    copy_hours,
    judge_messages,
    judge_rows,
    maintenance,
    relation_of,
    write_parquet,
)
from mqtrail.lake.known import STATES
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.judging import RESULTS, Judge

HOUR_MS = 3_600_000
ALWAYS, SOME, NEVER = 1, 60, 1 << 40  # attempts from which on shares judge


class Crash(Exception):
    """The process died here."""


class Life:
    """A lake, and the processes that write to it one after the other."""

    def __init__(self, folder: Path, settings: trail.Settings, chance: random.Random) -> None:
        self.folder = folder
        self.settings = settings
        self.chance = chance
        self.duck = connect(threads=1)
        self.number = 0
        self.rows: dict[str, list[Row]] = {}
        self.said: list[str] = []
        self.open()

    def open(self) -> None:
        """Start a process: it finishes the last one's batch."""
        self.lake = Lake.create(self.folder / "lake")
        with self.lake.writing():
            pass

    def arrive(self, rows: Batch, samples: Sequence[Batch]) -> None:
        """Commit evidence with its attempts, and each batch of samples."""
        for app, batch in (("ingest", rows), *(("samples", batch) for batch in samples)):
            self.number += 1
            changes = {name: Change(self._written(app, name, some)) for name, some in batch.items() if some}
            if app == "ingest":
                for name in ("trace_events", "message_meta"):
                    self.duck.register(f"more_{name}", arrow_rows(trail_relation(name), batch.get(name, ())))
                made = trail.attempts_sql("more_trace_events", "more_message_meta")
                table = self.lake["attempts"]
                folder = table.path / f"batch={app}-{self.number}" / "0"
                changes["attempts"] = Change(copy_hours(self.duck, made, folder, table.table))
                path = self.lake["client_records"].path / f"batch={app}-{self.number}" / "part-0.parquet"
                path.parent.mkdir(parents=True)
                self.duck.execute(f"COPY ({trail.client_records_sql('more_trace_events')}) TO '{path}'")
                changes["client_records"] = Change([path])
            self.lake.batches.commit(app, self.number, changes, {})
            for name, some in batch.items():
                self.rows.setdefault(name, []).extend(some)

    def _written(self, app: str, name: str, rows: Sequence[Row]) -> list[LakePath]:
        path = self.lake[name].path / f"batch={app}-{self.number}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        write_parquet(arrow_rows(trail_relation(name), rows), path)
        return [path]

    def judge(self, as_of_ms: int, rows_min: int, *, only_until: bool = False, cluster: str = CLUSTER) -> int:
        self.said.clear()
        committer, say = Committer(self.lake), self.said.append
        judge = Judge(TasksHere(self.folder), self.lake, committer, self.settings, "300MB", say, rows_min)
        return judge.run(cluster, as_of_ms, only_until=only_until)

    def fold_client_records(self) -> None:
        """Join some of their files, as compaction does, with all settled rows folded."""
        table, last = self.lake["client_records"], self.lake.batches.last(JUDGED_APP)
        if last is not None and (files := table.files()):
            some = self.chance.sample(files, self.chance.randint(1, len(files)))
            settled_ms = min(
                one["as_of_ms"] - one["settings"]["trace_delay_ms"] for one in last.notes["clusters"].values()
            )
            maintenance.rewrite(table, some, self.duck, last.number, settled_ms)

    def assert_as_at_once(self, as_of_ms: int, cluster: str = CLUSTER) -> None:
        """The results of a cluster equal a judgement of its evidence alone."""
        own = {name: [row for row in rows if row["cluster"] == cluster] for name, rows in self.rows.items()}
        whole = judge_rows(own, as_of_ms, self.settings)
        self.lake.refresh()
        for relation in RESULTS:
            if relation != trail.OPEN_IDS:
                name = "folds" if relation == trail.GROUP_FOLDS else relation.name
                wanted = shown(whole, f"SELECT {', '.join(relation.names)} FROM {name}")
                assert shown(self.duck, relation_of(self.lake[relation.name], cluster=cluster)) == wanted, relation.name


def trail_relation(name: str) -> trail.Relation:
    return next(relation for relation in trail.EVIDENCE if relation.name == name)


SHORT = (23, 10, 3)  # judged in the driver, then dying at the second commit, then judged in shares
LONG = [(seed, 40, 4) for seed in range(int(os.environ.get("SEEDS", "1")))]


@pytest.mark.cycles
@pytest.mark.parametrize(("seed", "messages", "cycles"), [SHORT, *LONG])
def test_a_lake_in_cycles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, messages: int, cycles: int
) -> None:
    """Some cycles are judged in shares; some die at one of their commits, and the next process continues."""
    chance = random.Random(seed)
    rows, first_ms, last_ms, settings = story(seed, messages)
    instants = [*sorted(chance.sample(range(first_ms, last_ms), cycles - 1)), last_ms]
    batches = split_batches(as_changes(rows, chance), instants, chance)
    evidence = {name: some for name, some in rows.items() if name not in trail.SAMPLED}
    life = Life(tmp_path, settings, chance)
    commits = LakeTable.commit_actions
    left = 0  # commits until the process dies

    def dying(*arguments: Any, **options: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        commits(*arguments, **options)

    for instant, some, samples in zip(instants, split(evidence, instants, chance), batches, strict=True):
        is_last = instant == last_ms
        life.arrive(some, samples)
        left = chance.choice((0, 1, 2, 4, 100)) if not is_last else 100
        only_until = chance.random() < 0.2 and not is_last
        monkeypatch.setattr(LakeTable, "commit_actions", dying)
        try:
            life.judge(instant, chance.choice((ALWAYS, SOME, NEVER)), only_until=only_until)
        except Crash:
            monkeypatch.undo()
            life.open()
        monkeypatch.undo()
        if chance.random() < 0.5:
            compact(life.lake, chance.choice((0, instant // HOUR_MS)), now_ms=instant)
            life.fold_client_records()
        if chance.random() < 0.1:
            shutil.rmtree(tmp_path / "lake" / STATES, ignore_errors=True)
    life.assert_as_at_once(last_ms)
    assert not (tmp_path / "lake" / "_judging").exists()


@pytest.mark.cycles
@pytest.mark.parametrize("new", [0, 1, 30])
def test_many_messages_that_the_state_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: int) -> None:
    """An offset passes many messages. Shares judge them, whether there are no, few or many new messages beside them."""
    first, later = waiting(1, 30), waiting(31, 30 + new)
    life = Life(tmp_path, trail.Settings(), random.Random(0))
    life.arrive(first.scanned().group(CLIENT, offset=0, time=AS_OF - 2).rows, [])
    assert life.judge(AS_OF_MS - 1_500, NEVER) == 30
    assert life.said == []
    life.arrive(later.offset(99).rows, [])
    monkeypatch.setattr(trail, "verdict_stages", None)  # of the driver
    assert life.judge(AS_OF_MS, 50) == 30 + new
    begun = [line for line in life.said if line.endswith("shares")]
    assert begun == [
        f"judging {attempts} attempts in 3 shares" for attempts in ([60, 60] if new == 30 else [60 + 2 * new])
    ]
    assert life.said[-1] == "judging in shares: step 2 of 2"
    monkeypatch.undo()
    life.assert_as_at_once(AS_OF_MS)


def waiting(first: int, last: int) -> History:
    """Messages that are sent and stored and have keys, by number."""
    history = History(CLUSTER)
    for number in range(first, last + 1):
        history.pub(msg=number, keys=f"k{number}").stored(offset=number, msg=number, keys=f"k{number}")
    return history


@pytest.mark.cycles
@pytest.mark.parametrize("seed", range(40, 40 + int(os.environ.get("SEEDS", "1"))))
def test_two_clusters_are_as_two_lakes(tmp_path: Path, seed: int) -> None:
    """Their messages, topics, groups and brokers have equal names, and their cycles alternate in any order."""
    chance = random.Random(seed)
    east, first_ms, last_ms, settings = story(seed, 12)
    west = {
        name: [{**row, "cluster": "west"} for row in some if name in trail.SAMPLED or chance.random() < 0.8]
        for name, some in east.items()
    }
    life = Life(tmp_path, settings, chance)
    turns: dict[str, list[tuple[int, Batch, list[Batch]]]] = {}
    for cluster, rows in ((CLUSTER, east), ("west", west)):
        instants = [*sorted(chance.sample(range(first_ms, last_ms), 2)), last_ms]
        evidence = {name: some for name, some in rows.items() if name not in trail.SAMPLED}
        batches = split_batches(as_changes(rows, chance), instants, chance)
        turns[cluster] = list(zip(instants, split(evidence, instants, chance), batches, strict=True))
    while left := [cluster for cluster, some in turns.items() if some]:
        cluster = chance.choice(left)
        instant, some, samples = turns[cluster].pop(0)
        life.arrive(some, samples)
        life.judge(instant, chance.choice((ALWAYS, NEVER)), cluster=cluster)
        if chance.random() < 0.5:
            compact(life.lake, chance.choice((0, instant // HOUR_MS)), now_ms=instant)
            life.fold_client_records()
    for cluster in turns:
        life.assert_as_at_once(last_ms, cluster)


@pytest.mark.cycles
def test_a_look_up_counts_a_message_once(tmp_path: Path) -> None:
    """A message judged again counts once in the folds of its group, with its current state."""
    settings = trail.Settings(hung_p99_samples=2)
    [slow] = (history for history in HISTORIES if history.name == "hung")
    rows = {name: list(some) for name, some in evidence((slow,)).items()}
    begun = next(row for row in rows["trace_events"] if row["record_type"] == "SubBefore")
    earlier = begun | {"request_id": "Q0", "event_ms": begun["event_ms"] - 30_000}
    ended = {"record_type": "SubAfter", "success": False, "cost_ms": 20_000, "event_ms": begun["event_ms"] - 10_000}
    rows["trace_events"] += [earlier, earlier | ended]
    life = Life(tmp_path, settings, random.Random(1))
    life.arrive(rows, [])
    life.judge(AS_OF_MS, NEVER, cluster="hung")
    life.assert_as_at_once(AS_OF_MS, "hung")
    newer = begun | {"request_id": "Q1", "event_ms": begun["event_ms"] + 1}
    for extra in ([], [newer]):
        at_once = judge_rows({**rows, "trace_events": [*rows["trace_events"], *extra]}, AS_OF_MS, settings)
        connection = connect()
        judge_messages(
            Lake.open(tmp_path / "lake"),
            [begun["msg_id"]],
            AS_OF_MS,
            {"trace_events": extra},
            connection,
            settings,
            cluster="hung",
        )
        for query in ("SELECT * FROM folds", "SELECT codes FROM verdicts"):
            assert shown(connection, query) == shown(at_once, query)
