"""Benchmark of `mqtrail incidents`: the causes of ten thousand bad messages among a million."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail import trail
from mqtrail.lake import Lake, connect, copy
from mqtrail.trail import Column, Relation

MESSAGES, MESSAGES_QUICK = 1_000_000, 50_000
HOURS = 6
GROUPS = 2  # of each topic
FIRST_HOUR = 497_000
BAR_S = 20.0
TIMEOUT_S = 600.0
BAD_HOST = "10.0.3.2"
APP = "bench"

# One message in a hundred is bad: the handlers of one host fail in the fourth hour, single ones fail everywhere.
_AT_MS = "({hour}::bigint * 3600000 + n * 3600000 // {count})"
_HOST = "'10.0.' || (n % 5 * 2 + g) || '.' || (n // 20 % 4)"
_IS_BAD = (
    f"({_HOST} = '{BAD_HOST}' AND {{hour}} = {FIRST_HOUR + 3} AND n // 80 % 5 > 0 OR hash(n * 7 + {{hour}}) % 400 = 0)"
)
_COMMON = {
    "cluster": "'DefaultCluster'",
    "publish_hour": "{hour}",
    "msg_id": "format('{{:032X}}', {hour}::hugeint * 1000000 + n)",
    "as_of_ms": "{hour}::bigint * 3600000 + 7200000",
    "topic": "'orders-' || (n % 5)",
}
_MESSAGE = {
    **_COMMON,
    "keys": "'order-' || n || ' customer-' || (n % 997)",
    "tags": "'tag-' || (n % 3)",
    "producer_group": "'shop-' || (n % 2)",
    "producer_host": "'10.9.0.' || (n % 6) || ':4000'",
    "broker_name": "CASE WHEN n // 5 % 8 < 4 THEN 'broker-a' ELSE 'broker-b' END",
    "queue_id": "n // 5 % 8",
    "queue_offset": "n",
    "body_size": "100 + n % 9000",
    "send_start_ms": _AT_MS,
    "stored_ms": f"{_AT_MS} + 2",
    "visible_ms": f"{_AT_MS} + 2",
    "acked_ms": f"{_AT_MS} + 5",
    "send_ms": "5",
    "send_codes": "'SEND_OK'",
    "group_codes": "'CONSUMED'",
    "knowledge": "'COMPLETE'",
}
_VERDICT = {
    **_COMMON,
    "group_name": "'group-' || (n % 5) || '-' || g",
    "state": "'CONSUMED'",
    "codes": f"CASE WHEN {_IS_BAD} THEN 'CONSUMED,CONSUMED_AFTER_RETRY' ELSE 'CONSUMED' END",
    "detail": f"CASE WHEN {_IS_BAD} THEN 'OSError: no space left on device ' || n ELSE '' END",
    "client": f"{_HOST} || '@100#1'",
    "delivery_count": "1",
    "success_count": "1",
    "to_delivered_ms": "10 + n % 40",
    "first_delivered_ms": f"{_AT_MS} + 12 + n % 40",
    "handler_ms": "5 + n % 40",
}


@figure("incidents", "mqtrail incidents over 1 M messages of which 1 % are bad", seconds=90)
def incidents(session: Session) -> Iterator[Row]:
    """The command is timed from its fork. Every message has two groups."""
    session.alone()
    count = MESSAGES_QUICK if session.quick else MESSAGES
    folder = session.fresh_folder("incidents")
    bad = make_lake(folder, count)
    took = [timed(folder) for _ in range(session.rounds)]
    times_s, cores_s = [wall_s for wall_s, _ in took], [cpu_s for _, cpu_s in took]
    what = f"mqtrail incidents over {count / 1e6:g} M messages × {GROUPS} groups, {bad} bad pairs"
    yield Row(
        "incidents/all",
        what,
        "s",
        times_s,
        bar=Bar("<=", BAR_S, of="ours"),
        more={"bad_pairs": bad, "core_seconds": round(statistics.median(cores_s), 2)},
    )


def timed(folder: Path) -> tuple[float, float]:
    """Run the command; return its seconds, and those of processor time. CannotMeasure: it does not find the host."""
    command = [sys.executable, "-m", "mqtrail", "incidents", "--lake", str(folder), "--json"]
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    took_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    found = [one["cause"] for one in json.loads(done.stdout)["incidents"]] if not done.returncode else []
    if found[:1] != ["BAD_HOST"]:
        raise CannotMeasure(f"mqtrail incidents ended with {done.returncode}, {found}: {done.stderr[-400:]}")
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_lake(folder: Path, messages: int) -> int:
    """Write and commit a lake, one compacted file per hour and table; return the number of bad pairs."""
    lake, duck, per_hour = Lake.create(folder), connect(), messages // HOURS
    for relation, values, source in (
        (trail.TRAJECTORIES, _MESSAGE, f"(SELECT range AS n FROM range({per_hour}))"),
        (trail.VERDICTS, _VERDICT, f"(SELECT r.range AS n, s.range AS g FROM range({per_hour}) r, range({GROUPS}) s)"),
    ):
        table, files = lake[relation.name], []
        for hour in range(FIRST_HOUR, FIRST_HOUR + HOURS):
            files.append(table.path / f"compact-{hour}" / "part.parquet")
            files[-1].parent.mkdir()
            copy(
                duck, f"SELECT {_picks(relation, values, hour, per_hour)} FROM {source} AS made", files[-1], table.table
            )
        table.commit(files, app=APP, batch=0)
    verdicts = ", ".join(f"'{path}'" for path in lake[trail.VERDICTS.name].paths())
    [(bad,)] = duck.execute(f"SELECT count(*) FROM read_parquet([{verdicts}]) WHERE codes <> 'CONSUMED'").fetchall()
    return int(bad)


def _picks(relation: Relation, values: dict[str, str], hour: int, count: int) -> str:
    def pick(column: Column) -> str:
        if column.type == "events":
            fields = ", ".join(f"{field.name} {field.type}" for field in trail.EVENT_FIELDS)
            return f"cast([] AS struct({fields})[])"
        text = values.get(column.name, "''" if column.type == "string" else "NULL")
        return text.format(hour=hour, count=count)

    return relation.typed({column.name: pick(column) for column in relation})
