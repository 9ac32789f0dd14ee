"""Folded records about clients have the same meaning: losses, and the offsets that a judgement reads."""

from __future__ import annotations

import os
import random
from itertools import groupby
from typing import Any

import pytest

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, run_stages
from mqtrail.trail import Settings

Row = dict[str, Any]
SETTINGS = Settings()
NAMES = ("losses", "topic_groups", "offsets_at")
BASE_MS = 1_800_000_000_000


def judged(rows: list[Row], as_of_ms: int) -> dict[str, list[tuple[Any, ...]]]:
    """The relations that a judgement reads from client_records."""
    duck = connect(threads=1)
    for relation in (*trail.EVIDENCE, trail.GROUP_FOLDS):
        duck.register(relation.name, arrow_rows(relation, ()))
    duck.register("client_records", arrow_rows(trail.CLIENT_RECORDS, rows))
    run_stages(duck, trail.state_stages(as_of_ms, SETTINGS))
    return {name: duck.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall() for name in NAMES}


def folded(rows: list[Row], settled_ms: int, kept_from_ms: int = 0) -> list[Row]:
    duck = connect(threads=1)
    duck.register("rows", arrow_rows(trail.CLIENT_RECORDS, rows))
    found: list[Row] = (
        duck.sql(trail.folded_client_records_sql("rows", settled_ms, kept_from_ms)).to_arrow_table().to_pylist()
    )
    return found


def batch(client: str, sequence: int, dropped: int, at_ms: int) -> Row:
    """A TraceBatch as it is ingested."""
    numbers = {"first_sequence": sequence, "sequence": sequence, "first_ms": at_ms, "dropped_total": dropped}
    times = {"event_ms": at_ms, "trace_store_ms": at_ms + 50}
    host = {"trace_born_host": f"10.0.0.{sequence % 3}:99"}
    return {
        "cluster": "c",
        "record_type": "TraceBatch",
        "client_id": client,
        "start_id": client,
        **numbers,
        **times,
        **host,
    }


def history(chance: random.Random) -> list[Row]:
    """TraceBatches with holes and drops, reported losses, commits of a few queues; some rows twice."""
    rows = []
    for client in "xyz":
        dropped, at_ms = 0, BASE_MS
        for sequence in range(1, 40):
            dropped += chance.choice((0,) * 12 + (3,))
            at_ms += chance.randrange(1_000, 5_000)
            if chance.random() < 0.85:
                rows.append(batch(client, sequence, dropped, at_ms))
        loss = {"from_ms": BASE_MS, "to_ms": at_ms, "lost_count": 2, "reason": "FULL", "trace_store_ms": at_ms}
        rows.append({"cluster": "c", "record_type": "TraceLoss", "client_id": client, "event_ms": at_ms, **loss})
        for _ in range(60):
            queue: Row = {"topic": "t", "group_name": f"g{client}", "store_broker_name": "b"}
            queue |= {"store_queue_id": chance.randrange(3), "consumer_offset": chance.randrange(100)}
            at_ms = BASE_MS + chance.randrange(100_000)
            rows.append(
                {"cluster": "c", "record_type": "OffsetCommit", "event_ms": at_ms, "trace_store_ms": at_ms, **queue}
            )
    return rows + chance.sample(rows, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "2"))))
def test_folded_records_say_the_same(seed: int) -> None:
    """Files are folded separately, late records arrive, and all are folded again, between judgements at rising
    instants."""
    chance = random.Random(seed)
    rows = history(chance)
    chance.shuffle(rows)
    kept: list[Row] = []
    arrived: list[Row] = []
    as_of_ms = BASE_MS + 30_000
    while rows or as_of_ms < BASE_MS + 120_000:
        count = chance.randrange(1, 80)
        arrived += rows[:count]
        kept += rows[:count]
        rows = rows[count:]
        as_of_ms += chance.randrange(1, 40_000)
        assert judged(kept, as_of_ms) == judged(arrived, as_of_ms)
        place = chance.randrange(len(kept) + 1)
        settled_ms = as_of_ms - SETTINGS.trace_delay_ms
        kept = folded(kept[:place], settled_ms) + folded(kept[place:], settled_ms)
    kept = folded(kept, as_of_ms - SETTINGS.trace_delay_ms)
    assert judged(kept, as_of_ms + 1) == judged(arrived, as_of_ms + 1)
    assert len(kept) < len(arrived) / 2


def test_losses_are_the_holes() -> None:
    """Each hole in the numbers of a start is a loss, from the record before it to the one after it; so is each rise of
    drops."""
    rows = [row for row in history(random.Random(7)) if row["record_type"] == "TraceBatch"]
    wanted = set()
    ordered = sorted(rows, key=lambda row: (row["client_id"], row["sequence"]))
    for client, own in groupby(ordered, key=lambda row: row["client_id"]):
        before: Row = {"sequence": 0, "dropped_total": 0, "event_ms": 0}
        for row in own:
            hole, drops = row["sequence"] - before["sequence"] - 1, row["dropped_total"] - before["dropped_total"]
            times = (row["trace_born_host"], before["event_ms"], row["event_ms"])
            if hole > 0:
                wanted.add(("c", client, *times, hole, "TRACE_MESSAGES_LOST"))
            elif drops > 0:
                wanted.add(("c", client, *times, drops, "TRACE_DROPPED"))
            before = row
    assert len(wanted) > 5
    as_of_ms = BASE_MS + 10_000_000
    for some in (rows, folded(rows, as_of_ms)):
        assert set(judged(some, as_of_ms)["losses"]) == wanted


def test_old_records_expire() -> None:
    """A client that disconnected before the retention leaves no rows; an active one keeps its numbers from the
    first."""
    rows = [batch("gone", n, 0, BASE_MS + n) for n in range(1, 9)]
    rows += [batch("on", n, 0, BASE_MS + n * 1_000) for n in range(1, 9)]
    once = folded(rows, BASE_MS)
    assert sorted((row["client_id"], row["first_sequence"], row["sequence"]) for row in once) == [
        ("gone", 1, 8),
        ("on", 1, 8),
    ]
    kept = folded(once, BASE_MS, BASE_MS + 5_000)
    assert [(row["client_id"], row["first_sequence"], row["first_ms"]) for row in kept] == [("on", 1, BASE_MS + 1_000)]
