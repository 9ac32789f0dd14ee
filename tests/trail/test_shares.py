"""How a judgement divides into rounds, and that what is gathered in shares folds to what the whole says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mqtrail import trail
from mqtrail.lake import DuckEngine, connect
from mqtrail.trail import Stage

SLOW = trail.Settings(hung_ms=0, hung_p99_samples=1)


def test_rounds_hold_every_stage_once() -> None:
    """Each stage has a place, and everything it reads stands before it, kept or told where a round lies between."""
    for batches in (False, True):
        stages = [
            s for s in trail.judge(1, trail.DUCKDB, batches=batches) if s.name not in trail.ACROSS_IDS or not batches
        ]
        spread = trail.MEETING_POINTS if batches else (trail.ATTEMPTS.name,)
        rounds = trail.rounds(stages, spread)
        assert sorted(s.name for r in rounds for s in (*r.shares, *r.whole)) == sorted(s.name for s in stages)
        lasting: set[str] = set(spread)
        for each in rounds:
            known = set(lasting)
            for stage in each.shares:
                assert set(trail.relations_read(stage.sql)) <= known, stage.name
                known.add(stage.name)
            lasting |= {*each.kept, *each.told}
            whole = {s.name for r in rounds for s in (*r.whole, *r.shares) if s in r.whole or s.gathered}
            for stage in each.whole:
                assert set(trail.relations_read(stage.sql)) <= whole | set(trail.INPUTS), stage.name


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 2)), min_size=1, max_size=300))
def test_a_percentile_of_counted_times(spans: list[tuple[int, int]]) -> None:
    """hung_limits of times that shares counted is thrice what percentile_cont says of the times themselves."""
    duck = connect(threads=1)
    engine = DuckEngine(duck)
    duck.execute("CREATE TABLE times (ms BIGINT, share BIGINT)")
    duck.executemany("INSERT INTO times VALUES (?, ?)", spans)
    counted = (
        "SELECT 'c' AS cluster, 'g' AS group_name, ms AS span_ms, count(*) AS span_count FROM times GROUP BY ms, share"
    )
    engine.define(Stage("handling_times", counted))
    (stage,) = (s for s in trail.judge(1, trail.DUCKDB, SLOW) if s.name == "hung_limits")
    engine.define(stage)
    found = duck.execute("SELECT hung_ms FROM hung_limits").fetchall()
    ordered = sorted(ms for ms, _ in spans)
    place, rest = divmod(99 * (len(ordered) - 1), 100)
    following = ordered[min(place + 1, len(ordered) - 1)]
    exact = 3 * (100 * ordered[place] + rest * (following - ordered[place])) // 100
    assert found == ([(exact,)] if ordered[-1] > 0 else [])
    (engine_says,) = duck.execute("SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) FROM times").fetchone() or (
        0,
    )
    assert abs(exact - 3 * engine_says) <= 1
