"""Clocks of hosts: which bounds events give, what they mean together, and latency splits by one clock."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest
from tests.trail.story import AS_OF_MS, BASE_MS, CLIENT, CONSUMER, PRODUCER, History, at

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, judge_rows
from mqtrail.trail import CLOCK_WINDOW_MS

Row = dict[str, Any]
W = CLOCK_WINDOW_MS
PARTS = ("to_stored_ms", "delay_ms", "to_delivered_ms", "retry_ms", "handler_ms")


def ask(duck: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    cursor = duck.execute(sql)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def clocks(*bounds: tuple[int, int | None, int | None]) -> list[Row]:
    """The clocks of one host from (window, low, high)."""
    with connect(threads=1) as duck:
        rows = [
            {"cluster": "c", "host": "h", "broker_name": "b", "window_ms": window * W, "low_ms": low, "high_ms": high}
            for window, low, high in bounds
        ]
        duck.register("clock_bounds", arrow_rows(trail.CLOCK_BOUNDS, rows))
        return ask(duck, f"{trail.clocks_sql('clock_bounds')} ORDER BY window_ms")


def test_bounds_of_one_window_merge() -> None:
    """The greatest lower and the least upper bound hold; clocks that can agree are taken to agree."""
    [one] = clocks((0, -9, None), (0, -3, 20), (0, None, 4))
    assert (one["low_ms"], one["high_ms"], one["offset_ms"], one["error_ms"], one["state"]) == (-3, 4, 0, 4, "KNOWN")


def test_a_clock_that_is_ahead() -> None:
    """Its difference is the middle of what is possible, and windows beside each other narrow it."""
    first, second = clocks((0, 8_990, 9_010), (1, 9_000, 9_030))
    assert (first["offset_ms"], first["error_ms"]) == (9_005, 5)
    assert (second["offset_ms"], second["error_ms"]) == (9_005, 5)
    assert second["jump_ms"] == 0


@pytest.mark.parametrize(("low", "high"), [(None, 5), (-5, None)])
def test_one_bound_is_not_enough(low: int | None, high: int | None) -> None:
    """Half of an interval is no difference."""
    [one] = clocks((0, low, high))
    assert (one["state"], one["offset_ms"], one["error_ms"]) == ("PARTLY", None, None)


def test_a_jump() -> None:
    """The window in which the clock was set has no difference; the next one tells how far it moved at least."""
    before, during, after = clocks((0, -2, 3), (1, 58_000, 2), (2, 60_000, 60_008))
    assert (before["state"], during["state"], after["state"]) == ("KNOWN", "CHANGED", "KNOWN")
    assert (before["jump_ms"], during["jump_ms"], after["jump_ms"]) == (0, 0, 60_000 - 3)
    assert (before["offset_ms"], during["offset_ms"], after["offset_ms"]) == (0, None, 60_004)
    [*_, back] = clocks((0, 60_000, 60_008), (3, -2, 3))
    assert back["jump_ms"] == 3 - 60_000


CASES = {"equal": (0, 0), "both differ": (7_000, -4_000), "far away": (-300_000, 90_000), "same host": (250, 250)}
"""How far the clocks of producer and consumer are ahead of the broker's, by cluster."""
UNTRACED = "trace messages without times"


def life(cluster: str, producer_ms: int, consumer_ms: int) -> History:
    """Messages of one producer and one consumer whose clocks are ahead of the broker's by this."""
    chance = random.Random(cluster)
    found = History(cluster).scanned().group(CLIENT, offset=100)
    ahead, late = producer_ms / 1000, consumer_ms / 1000
    for number in range(1, 20):
        sent = number + chance.random()
        stored = sent + chance.randrange(1, 9) / 1000
        handed = stored + chance.randrange(1, 50) / 1000
        cost = chance.randrange(10, 20) / 1000
        found.pub(sent + ahead, cost, msg=number, stored=stored + 0.5, trace_born_ms=at(stored + 0.499 + ahead))
        found.stored(stored, offset=number, msg=number, born_ms=at(sent + ahead))
        own: dict[str, Any] = {"msg": number, "request": f"R{number}", "client_id": CLIENT, "trace_client_id": CLIENT}
        times: dict[str, Any] = {"stored": handed + 0.6, "trace_born_ms": at(handed + 0.598 + late)}
        found.handled(handed + late, 0.004, **own, **times)
    return found


def silent() -> list[History]:
    """Messages that say nothing about clocks: sent twice, delayed, delivered again."""
    twice = History("twice").pub().stored().stored(5, offset=9).scanned().group(CLIENT)
    delayed = History("delayed").pub(msg_type=3).delay_wait(30, 4).stored(30, "DELAYED", due_ms=at(30))
    again = History("again").pub().stored().scanned().group(CLIENT).handled(success=False)
    again.retry_copy(11, 1).handled(12, request="R2", times=1)
    return [twice, delayed.scanned().group(CLIENT), again]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    """All of them, judged, with `clock_bounds`, `clocks` and `splits` as a lake and its views make them."""
    rows: dict[str, list[Row]] = {}
    untraced = life(UNTRACED, 0, -4_000)
    for row in untraced.rows["trace_events"]:
        row["trace_born_ms"] = None
    for history in (*(life(name, *ahead) for name, ahead in CASES.items()), untraced, *silent()):
        for name, some in history.rows.items():
            rows.setdefault(name, []).extend(some)
    made = judge_rows(rows, AS_OF_MS)
    bounds = f"{trail.trace_bounds_sql('trace_events')} UNION ALL {trail.judged_bounds_sql('trajectories', 'verdicts')}"
    made.execute(f"CREATE TEMP TABLE clock_bounds AS {bounds}")
    made.execute(f"CREATE TEMP TABLE clocks AS {trail.clocks_sql('clock_bounds')}")
    split = """(SELECT v.*, t.broker_name, t.producer_host, t.stored_ms
      FROM verdicts v JOIN trajectories t USING (cluster, msg_id))"""
    made.execute(f"CREATE TEMP TABLE splits AS {trail.corrected_splits_sql(split, 'clocks')}")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CASES)
def test_the_true_difference_is_within(duck: duckdb.DuckDBPyConnection, cluster: str) -> None:
    """Whatever the clocks: the interval has the true value, no part is negative, and the parts add up."""
    producer_ms, consumer_ms = CASES[cluster]
    found = {row["host"]: row for row in ask(duck, f"SELECT * FROM clocks WHERE cluster = '{cluster}'")}
    for host, true_ms in ((PRODUCER, producer_ms), (CONSUMER, consumer_ms)):
        one = found[host.partition(":")[0]]
        assert one["low_ms"] <= true_ms <= one["high_ms"], (host, one)
        assert one["state"] == "KNOWN"
        assert abs(one["offset_ms"] - true_ms) <= one["error_ms"] <= 60
    rows = ask(duck, f"SELECT * FROM splits WHERE cluster = '{cluster}'")
    assert len(rows) == 19
    for row in rows:
        assert row["clocks"] == ("AGREE" if cluster == "equal" else "CORRECTED")
        assert min(row[part] for part in PARTS) >= 0
        assert sum(row[part] for part in PARTS) == row["total_ms"]
        assert row["to_stored_ms"] <= 10 + 2 * row["clock_error_ms"]


def test_a_clock_that_is_not_known(duck: duckdb.DuckDBPyConnection) -> None:
    """It is taken to be right, but no part is negative."""
    rows = ask(duck, f"SELECT * FROM splits WHERE cluster = '{UNTRACED}'")
    assert {row["clocks"] for row in rows} == {"ASSUMED"}
    assert {(row["to_delivered_ms"], row["clock_error_ms"]) for row in rows} == {(0, None)}
    assert all(sum(row[part] for part in PARTS) == row["total_ms"] for row in rows)


def test_what_gives_no_bound(duck: duckdb.DuckDBPyConnection) -> None:
    """Of messages that were sent twice, delayed or delivered again, only an undoubted send bounds a clock."""
    found = ask(
        duck, "SELECT * FROM clock_bounds WHERE cluster IN ('twice', 'delayed', 'again') AND high_ms IS NOT NULL"
    )
    assert [(row["cluster"], row["host"]) for row in found] == [("again", PRODUCER.partition(":")[0])]
    assert found[0]["window_ms"] == BASE_MS // W * W
