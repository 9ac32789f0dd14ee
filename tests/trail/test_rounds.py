"""The inputs that stages declare, the rounds of a judgement, and aggregates of gathered rows that equal the whole's."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, define, run_stages
from mqtrail.trail import Stage

SLOW = trail.Settings(hung_ms=0, hung_p99_samples=1)
PIECES = ("attempts",)
PLANS = {
    "judgement": (trail.judge(1, batches=False), PIECES),
    "judgement with batches": (trail.judge(1, batches=True, only_until=True), PIECES),
    "lag": (trail.lag_stages(1), ("message_meta",)),
    "attempts": ([trail.attempts_stage()], ("trace_events", "message_meta")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_stage_reads_what_it_declares(name: str) -> None:
    """DuckDB finds exactly the declared relations in each text; each of them is an input or an earlier stage."""
    duck = connect(threads=1)
    inputs = (*trail.EVIDENCE, trail.ATTEMPTS, *trail.INDEXES, trail.GROUP_FOLDS, *trail.COMPARED)
    for relation in inputs:
        columns = ", ".join(f"{column.name} {column.type}" for column in relation)
        duck.execute(f"CREATE TABLE {relation.name} ({columns})")
    known = {relation.name for relation in inputs}
    for stage in PLANS[name][0]:
        assert duck.get_table_names(stage.sql) == set(stage.reads) <= known, stage.name
        assert len(stage.reads) == len(set(stage.reads)), stage.name
        define(duck, stage, table=True)
        assert set(stage.partition_by) <= set(duck.table(stage.name).columns), stage.name
        known.add(stage.name)


def test_inputs_of_a_judgement() -> None:
    """The list of inputs has every relation that stages read and no stage creates."""
    for batches in (False, True):
        stages = trail.judge(1, batches=batches)
        assert {name for s in stages for name in s.reads} - {s.name for s in stages} == set(trail.INPUTS)


@pytest.mark.parametrize("name", PLANS)
def test_rounds_hold_every_stage_once(name: str) -> None:
    """Each stage is in one round, and its inputs exist by then: created before, kept, divided, or given to all
    shares."""
    stages, pieces = PLANS[name]
    by_name = {stage.name: stage for stage in stages}
    rounds = trail.rounds(stages, pieces)
    assert sorted(s.name for r in rounds for s in (*r.shares, *r.whole)) == sorted(by_name)
    inputs = {name for stage in stages for name in stage.reads} - by_name.keys()
    lasting, for_whole = set(pieces), inputs - set(pieces)
    for each in rounds:
        own: set[str] = set()
        for stage in each.shares:
            assert set(stage.reads) <= lasting | own, stage.name
            own |= set() if stage.partition_by else {stage.name}
        for_whole |= {stage.name for stage in each.shares if stage.gathered}
        for stage in each.whole:
            assert set(stage.reads) <= for_whole, stage.name
            for_whole.add(stage.name)
        lasting |= {*each.kept, *each.broadcast, *(stage.name for stage in each.shares if stage.partition_by)}


def test_a_plan_that_no_share_can_follow() -> None:
    """A stage of shares may not read an input as a whole, nor rows that other shares gathered separately."""
    by_id = Stage("by_id", "", ("attempts",), partition_by=("msg_id",))
    counts = Stage("counts", "", ("by_id",), gathered=True)
    for wrong in (Stage("wrong", "", ("by_id", "clients")), Stage("wrong", "", ("by_id", "counts"))):
        with pytest.raises(AssertionError, match="wrong"):
            trail.rounds([by_id, counts, wrong], ("attempts",))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 2)), min_size=1, max_size=300))
def test_a_percentile_of_counted_times(spans: list[tuple[int, int]]) -> None:
    """hung_limits of counted times is three times the percentile_cont of the times themselves."""
    duck = connect(threads=1)
    duck.register("times", pa.table(dict(zip(("ms", "share"), zip(*spans, strict=True), strict=True))))
    counted = (
        "SELECT 'c' AS cluster, 'SPAN' AS kind, 'g' AS group_name, '' AS name, ms AS value, count(*) AS row_count "
        "FROM times GROUP BY ms, share"
    )
    wanted = {"folds", "hung_limits"}
    duck.register("group_folds", arrow_rows(trail.GROUP_FOLDS, ()))
    stages = [stage for stage in trail.judge(1, SLOW) if stage.name in wanted]
    run_stages(duck, [Stage("fold_counts", counted, ("times",)), *stages])
    found = duck.execute("SELECT hung_ms FROM hung_limits").fetchall()
    ordered = sorted(ms for ms, _ in spans)
    place, rest = divmod(99 * (len(ordered) - 1), 100)
    following = ordered[min(place + 1, len(ordered) - 1)]
    exact = 3 * (100 * ordered[place] + rest * (following - ordered[place])) // 100
    assert found == ([(exact,)] if ordered[-1] > 0 else [])
    [(cont,)] = duck.execute("SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) FROM times").fetchall()
    assert abs(exact - 3 * cont) <= 1
