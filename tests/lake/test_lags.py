"""The lag of groups from the files that queue_spans names equals the lag over all rows."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mqtrail import trail
from mqtrail.lake import Change, Lake, arrow_rows, connect, define_lag, maintenance, rows_of, run_stages
from mqtrail.trail import Stage

Row = dict[str, Any]
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
FIRST_MS = 1_800_000_000_000
AT = {"cluster": "c", "broker_name": "b"}


class Queues:
    """A lake that gets the stored messages of some queues, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake.create(folder)
        self.duck = connect(threads=1)
        self.number = 0

    def commit(self, **rows: list[Row]) -> None:
        """Commit rows of relations, and the spans of stored messages, as the ingest does."""
        self.number += 1
        changes: dict[str, list[Path]] = {}
        for name, some in rows.items():
            path = self._path(name)
            pq.write_table(arrow_rows(self.lake[name].table.relation, some), path)
            changes[name] = [path]
        if stored := changes.get(trail.MESSAGE_META.name):
            path = self._path(trail.QUEUE_SPANS.name)
            spans = trail.queue_spans_sql(f"read_parquet('{stored[0]}')")
            self.duck.execute(f"COPY ({spans}) TO '{path}'")
            changes[trail.QUEUE_SPANS.name] = [path]
        self.lake.batches.commit("test", self.number, {name: Change(paths) for name, paths in changes.items()}, {})

    def _path(self, name: str) -> Path:
        path = Path(str(self.lake[name].path), f"batch=test-{self.number}", "part-0.parquet")
        path.parent.mkdir(parents=True)
        return path

    def join(self, name: str, chance: random.Random) -> None:
        """Write some files of a table as one, as compaction does."""
        table = self.lake[name]
        files = table.files()
        if len(files) > 1:
            some = chance.sample(files, chance.randint(2, len(files)))
            maintenance.rewrite(table, some, self.duck, FIRST_MS)

    def lag(self, sampled_ms: int) -> list[tuple[Any, ...]]:
        """The lag from the lake's files."""
        define_lag(self.duck, self.lake, AT["cluster"], sampled_ms)
        return self.duck.execute("SELECT * FROM lag ORDER BY ALL").fetchall()

    def lag_of_all(self, sampled_ms: int) -> list[tuple[Any, ...]]:
        """The lag from all rows."""
        duck = connect(threads=1)
        names = ("group_offsets", "queue_ranges", "subscriptions", "samples", "message_meta", "queue_spans")
        views = [Stage(name, rows_of(self.lake[name], self.lake[name].files()), ()) for name in names]
        run_stages(duck, [*views, *trail.lag_stages(sampled_ms)])
        return duck.execute("SELECT * FROM lag ORDER BY ALL").fetchall()

    def opened(self) -> int:
        """The number of message_meta files that the last lag was computed from."""
        [(sql,)] = self.duck.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'message_meta'").fetchall()
        return int(sql.count(".parquet"))


def stored(topic: str, queue_id: int, queue_offset: int, store_ms: int) -> Row:
    place = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
    return AT | place | {"store_ms": store_ms, "last_unique_key": f"{topic}{queue_id}{queue_offset}"}


def sample(sampled_ms: int, points: list[tuple[str, int, int]], end: int, first: int = 0) -> dict[str, list[Row]]:
    """A full sample: points are topic, queue and offset of a group each."""
    offsets, ranges = [], {}
    for number, (topic, queue_id, offset) in enumerate(points):
        queue = AT | {"sampled_ms": sampled_ms, "topic": topic, "queue_id": queue_id}
        offsets.append(queue | {"group_name": f"g{number}", "consumer_offset": offset})
        ranges[topic, queue_id] = queue | {"min_offset": first, "max_offset": end}
    return {"group_offsets": offsets, "queue_ranges": list(ranges.values())}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.cycles) for seed in range(1, int(os.environ.get("SEEDS", "3"))))]
)
def test_lag_as_over_everything(tmp_path: Path, seed: int) -> None:
    """Queues with holes, recreated topics, clocks that are set back, and files joined at random."""
    chance = random.Random(seed)
    queues = Queues(tmp_path)
    places = [(topic, queue_id) for topic in ("a", "b") for queue_id in range(3)]
    next_offset = dict.fromkeys(places, 0)
    now_ms = FIRST_MS
    for _ in range(12):
        rows = []
        for place in places:
            if chance.random() < 0.05:
                next_offset[place] = 0
            for _ in range(chance.choice((0, 1, 5, 20))):
                rows.append(stored(*place, next_offset[place], now_ms))
                next_offset[place] += chance.choice((1, 1, 1, 1, 4))
                now_ms += chance.choice((0, 10, 1_000, 30_000, -5_000))
        now_ms += chance.choice((1_000, HOUR_MS))
        if rows:
            queues.commit(message_meta=rows)
        for name in ("message_meta", "queue_spans"):
            if chance.random() < 0.4:
                queues.join(name, chance)
    end = max(next_offset.values()) + 2
    points = [(*place, chance.randrange(end + 1)) for place in places for _ in range(4)]
    queues.commit(**sample(now_ms, points, end, first=chance.randrange(5)))
    found = queues.lag(now_ms)
    assert len(found) == len(points)
    assert found == queues.lag_of_all(now_ms)
    assert any(row[-1] for row in found)


@pytest.mark.slow
def test_lag_opens_the_files_of_its_times(tmp_path: Path) -> None:
    """Of a lake of many hours, only the files with the requested messages are opened; none if no group is behind."""
    queues = Queues(tmp_path)
    hours, each = 30, 5
    for hour in range(hours):
        rows = [stored("a", 0, hour * each + n, FIRST_MS + hour * HOUR_MS + n * MINUTE_MS) for n in range(each)]
        queues.commit(message_meta=rows)
    chance, end = random.Random(1), hours * each
    for number, points in enumerate(([end - 1], [7 * each + 2], [7, end - 1], [end, end + 5])):
        at_ms = FIRST_MS + hours * HOUR_MS + number
        queues.commit(**sample(at_ms, [("a", 0, offset) for offset in points], end))
        found = queues.lag(at_ms)
        wanted = [offset for offset in points if offset < end]
        ages = [at_ms - FIRST_MS - offset // each * HOUR_MS - offset % each * MINUTE_MS for offset in wanted]
        assert sorted(row[-1] for row in found if row[-1]) == sorted(ages)
        assert queues.opened() == len(wanted)
        queues.join("queue_spans", chance)


@pytest.mark.slow
def test_spans_of_a_queue_become_few(tmp_path: Path) -> None:
    """Spans become one per minute in the last hour and one per hour before it, however often messages were read; old
    ones expire."""
    queues = Queues(tmp_path)
    for first in range(0, 300, 10):
        queues.commit(message_meta=[stored("a", 0, n, FIRST_MS + n * 30_000) for n in range(first, first + 10)])
    table = queues.lake["queue_spans"]
    assert sum(file.row_count for file in table.files()) >= 150
    maintenance.rewrite(table, table.files(), queues.duck, FIRST_MS)
    assert sum(file.row_count for file in table.files()) <= 61 + 3
    [(least, most)] = queues.duck.execute(
        f"SELECT min(first_offset), max(last_offset) FROM ({rows_of(table, table.files())})"
    ).fetchall()
    assert (least, most) == (0, 299)
    kept_from_ms = FIRST_MS + 2 * HOUR_MS
    maintenance.expire(queues.lake, kept_from_ms, now_ms=kept_from_ms)
    maintenance.rewrite(table, table.files(), queues.duck, FIRST_MS)
    [(first,)] = queues.duck.execute(f"SELECT min(last_ms) FROM ({rows_of(table, table.files())})").fetchall()
    assert first >= kept_from_ms
