"""Benchmarks of look-ups: one id among ten million messages of a lake, and the number of files opened.

DuckDB creates the lake: hours of trajectories and verdicts as compaction writes them. Ids are like those of our and
Java's clients: rising with time within one producer, with several producers.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.jars import InteropError
from interop.objects import BUCKET, Answer, Door, ObjectServer, Reply, Request, environment, forward

from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.lake import Lake, LakePath, LookUp, connect, copy, place_of
from mqtrail.trail import Column, publish_hours

HOURS, PER_HOUR = 20, 500_000
HOURS_QUICK, PER_HOUR_QUICK = 3, 20_000
HOURS_ENV = "BENCH_LOOKUP_HOURS"  # hours of PER_HOUR messages, instead of HOURS and STORE_HOURS; 200: 100 M messages
OPEN_FILES = 16  # of each table in the hour that cycles still write to
PRODUCERS = 8
IP, PROCESS = 0x0A000000, 0x12675BE20A66
FIRST_HOUR = 490_896  # 2026-01-01 00:00 UTC: the start of a month, so that the milliseconds in ids are easy to compute
HOUR_MS = 3_600_000
LOOK_UPS = 40  # per round
BAR_MS = 30.0
OPEN_BAR_MS = 60.0
STORE_HOURS, STORE_HOURS_QUICK = 4, 1  # of the lake in an object store
STORE_DELAY_S = 0.02  # added to each request: about what S3 takes to a host of its region
STORE_LOOK_UPS = 10  # per round
STORE_BAR_MS = 300.0
APP = "bench"

# SQL of a row's columns; n is its number within the hour. Other columns are empty or NULL.
_AT_MS = "({hour}::bigint * 3600000 + n * 3600000 // {count})"
_VALUES = {
    "cluster": "'DefaultCluster'",
    "publish_hour": "{hour}",
    "msg_id": "format('{{:032X}}', 0::hugeint + {id})",
    "group_name": "'billing'",
    "as_of_ms": "{hour}::bigint * 3600000 + 7200000",
    "topic": "'orders-' || (n % 20)",
    "keys": "'order-{hour}-' || n",
    "producer_group": "'shop-' || (n % {producers})",
    "broker_name": "'broker-a'",
    "queue_id": "n % 16",
    "queue_offset": "n // 16",
    "body_size": "400 + n % 200",
    "send_start_ms": _AT_MS,
    "acked_ms": _AT_MS + " + 2",
    "send_ms": "2 + n % 7",
    "send_count": "1",
    "stored_ms": _AT_MS + " + 1",
    "last_event_ms": _AT_MS + " + 20",
    "send_codes": "'SEND_OK'",
    "message_codes": "'COMPLETE'",
    "group_codes": "'CONSUMED'",
    "knowledge": "'COMPLETE'",
    "state": "'CONSUMED'",
    "codes": "'CONSUMED'",
    "is_open": "0",
    "delivery_count": "1",
    "success_count": "1",
    "handler_ms": "5 + n % 40",
    "client": "'10.0.0.' || (n % 8) || '@4711'",
}
_EVENT = (
    "{{'at_ms': " + _AT_MS + " + 0, 'kind': '%s', 'group_name': 'billing', 'outcome': 'OK', "
    "'place': 'broker-a/' || (n %% 16), 'detail': '', 'evidence': 'trace:%s', "
    "'duration_ms': n %% 40, 'retry_times': 0}}"
)
_EVENTS = "[" + ", ".join(_EVENT % (kind, kind) for kind in ("Pub", "SubBefore", "SubAfter")) + "]"


@figure("look-up", "look-up of one id among 10 M messages, its files opened", seconds=100)
def look_up(session: Session) -> Iterator[Row]:
    session.alone()
    hours, per_hour = size_of(session, HOURS, HOURS_QUICK)
    folder = session.fresh_folder("lake")
    began_s = time.monotonic()
    lake = make_lake(folder, hours, per_hour)
    made_s = time.monotonic() - began_s
    times_ms, in_open = list[float](), list[float]()
    anew, absent, commands, opened = [], [], [], set[int]()
    add_open_hour(lake, hours, per_hour)
    lookup = LookUp(lake)
    chance = random.Random(7)
    for _ in range(session.rounds):
        for found, hour in ((times_ms, None), (in_open, hours)):
            spans_ms = []
            for _ in range(LOOK_UPS):
                at = chance.randrange(hours) if hour is None else hour
                msg_id = id_of(at, chance.randrange(per_hour), per_hour)
                took_ms, files, rows = timed_look_up(lookup, msg_id)
                if rows != 2:
                    raise RuntimeError(f"the look-up of {msg_id} gave {rows} rows, expected a trajectory and a verdict")
                opened.add(files)
                spans_ms.append(took_ms)
            found.append(sorted(spans_ms)[len(spans_ms) // 2])
        absent.append(timed_look_up(lookup, id_of(chance.randrange(hours), 0, per_hour)[:28] + "FFFF")[0])
        anew.append(open_ms(folder, id_of(chance.randrange(hours), 1, per_hour)))
        commands.append(command_ms(folder, id_of(chance.randrange(hours), 5, per_hour)))
    more = {
        "messages": hours * per_hour,
        "lake_files": sum(len(lake[name].files()) for name in ("trajectories", "verdicts")),
        "files_opened": sorted(opened),
        "look_ups_a_round": LOOK_UPS,
        "made_in_s": round(made_s, 1),
    }
    what = f"one id among {hours * per_hour / 1e6:g} M messages: trajectory and verdicts, lake open"
    yield Row("look-up/id", what, "ms", times_ms, bar=Bar("<=", BAR_MS, of="ours"), more=more)
    what = f"an id in the hour that cycles still write to: {per_hour:,} messages, {OPEN_FILES} files a table"
    yield Row("look-up/open", what, "ms", in_open, bar=Bar("<=", OPEN_BAR_MS, of="ours"), more=more)
    yield Row("look-up/anew", "the same, the lake opened for it", "ms", anew)
    yield Row("look-up/absent", "an id that is not there, in an hour that is", "ms", absent)
    yield Row("look-up/command", "`mqtrail trace ID --lake` from fork to exit, all answered", "ms", commands)


@figure("look-up-s3", "look-up of one id in an object store", seconds=60)
def look_up_in_store(session: Session) -> Iterator[Row]:
    session.alone()
    hours, per_hour = size_of(session, STORE_HOURS, STORE_HOURS_QUICK)
    folder = session.fresh_folder("lake-of-store")
    make_lake(folder, hours, per_hour)
    times_ms, anew, requests = [], [], set[int]()
    chance = random.Random(7)
    with delayed_store(folder, session.fresh_folder("objects")) as (lake, door):
        for _ in range(session.rounds):
            lookup, spans_ms = LookUp(Lake.open(lake)), []
            for _ in range(STORE_LOOK_UPS):
                msg_id = id_of(chance.randrange(hours), chance.randrange(per_hour), per_hour)
                door.requests.clear()
                took_ms, _, rows = timed_look_up(lookup, msg_id)
                if rows != 2:
                    raise RuntimeError(f"the look-up of {msg_id} gave {rows} rows, expected a trajectory and a verdict")
                requests.add(len(door.requests))
                spans_ms.append(took_ms)
            times_ms.append(sorted(spans_ms)[len(spans_ms) // 2])
            anew.append(open_ms(lake, id_of(chance.randrange(hours), 1, per_hour)))
    more = {"messages": hours * per_hour, "delay_ms": STORE_DELAY_S * 1000, "requests": sorted(requests)}
    what = (
        f"one id among {hours * per_hour / 1e6:g} M messages in S3Proxy, each request delayed by "
        f"{STORE_DELAY_S * 1000:g} ms: trajectory and verdicts, lake open"
    )
    yield Row("look-up-s3/id", what, "ms", times_ms, bar=Bar("<=", STORE_BAR_MS, of="ours"), more=more)
    yield Row("look-up-s3/anew", "the same, the lake opened for it", "ms", anew)


@contextmanager
def delayed_store(lake: Path, folder: Path) -> Iterator[tuple[LakePath, Door]]:
    """Yield the lake as copied to an object server. CannotMeasure: the server cannot be had."""
    before = dict(os.environ)
    try:
        with ObjectServer(folder) as server, Door(delayed(forward(server.port))) as door:
            shutil.copytree(lake, folder / "data" / BUCKET / "lake", copy_function=os.link)
            os.environ.update(environment(door.port))
            yield place_of(f"s3://{BUCKET}/lake"), door
    except InteropError as error:
        raise CannotMeasure(str(error)) from error
    finally:
        os.environ.clear()
        os.environ.update(before)


def delayed(answer: Answer) -> Answer:
    """The same answers, later."""

    def later(request: Request) -> Reply:
        time.sleep(STORE_DELAY_S)
        return answer(request)

    return later


def timed_look_up(lookup: LookUp, msg_id: str) -> tuple[float, int, int]:
    """Return the time of one look-up in ms, the opened files and the found rows."""
    began_s = time.perf_counter()
    answers = (lookup.trajectories(msg_id), lookup.verdicts(msg_id))
    took_ms = (time.perf_counter() - began_s) * 1000
    return took_ms, sum(len(answer.opened) for answer in answers), sum(len(answer.rows) for answer in answers)


def open_ms(folder: LakePath, msg_id: str) -> float:
    """Return the time to open a lake by its path, in ms: read the Delta logs, create a DuckDB."""
    began_s = time.perf_counter()
    timed_look_up(LookUp(Lake.open(folder)), msg_id)
    return (time.perf_counter() - began_s) * 1000


def command_ms(folder: Path, msg_id: str) -> float:
    """Return the command's time. CannotMeasure: it does not find the id."""
    command = [sys.executable, "-m", "mqtrail", "trace", msg_id, "--lake", str(folder), "--json"]
    began_s = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    took_ms = (time.perf_counter() - began_s) * 1000
    if run.returncode:
        raise CannotMeasure(f"mqtrail trace ended with {run.returncode}: {(run.stderr or run.stdout).strip()[-400:]}")
    return took_ms


def make_lake(folder: Path, hours: int, per_hour: int) -> Lake:
    """Write and commit trajectories and verdicts, one compacted file per hour and table."""
    lake, duck = Lake.create(folder), connect()
    for name in ("trajectories", "verdicts"):
        table, files = lake[name], []
        for hour in range(FIRST_HOUR, FIRST_HOUR + hours):
            files.append(table.path / f"compact-{hour}" / "part.parquet")
            files[-1].parent.mkdir()
            copy(duck, rows_of(list(table.table.relation), hour, per_hour), files[-1], table.table)
        table.commit(files, app=APP, batch=0)
    sample_id = id_of(0, per_hour // 2, per_hour)
    assert publish_hours(sample_id, FIRST_HOUR, FIRST_HOUR + hours) == [FIRST_HOUR], sample_id
    return lake


def size_of(session: Session, hours: int, hours_quick: int) -> tuple[int, int]:
    """Return the hours of a lake, and the messages of an hour."""
    if session.quick:
        return hours_quick, PER_HOUR_QUICK
    return int(os.environ.get(HOURS_ENV, hours)), PER_HOUR


def add_open_hour(lake: Lake, number: int, per_hour: int) -> None:
    """Commit one more hour, in files as cycles leave them: each has a part of its time, sorted by id."""
    duck = connect()
    for name in ("trajectories", "verdicts"):
        table = lake[name]
        rows = rows_of(list(table.table.relation), FIRST_HOUR + number, per_hour)
        files = []
        for part in range(OPEN_FILES):
            files.append(table.path / f"batch={APP}-{part + 1}" / "part.parquet")
            files[-1].parent.mkdir()
            within = f"n >= {per_hour * part // OPEN_FILES} AND n < {per_hour * (part + 1) // OPEN_FILES}"
            copy(duck, f"{rows} WHERE {within}", files[-1], table.table, per_hour // OPEN_FILES + 1)
        table.commit(files, app=APP, batch=1)
    duck.close()


def rows_of(columns: list[Column], hour: int, count: int) -> str:
    """Return SQL for the rows of an hour."""
    picks = []
    for column in columns:
        empty = "''" if column.type == "string" else "NULL"
        text = _EVENTS if column.type == "events" else _VALUES.get(column.name, empty)
        text = text.format(hour=hour, count=count, producers=PRODUCERS, id=_id_sql(hour, count))
        picks.append(f"{text if column.type == 'events' else f'cast({text} AS {column.type})'} AS {column.name}")
    return f"SELECT {', '.join(picks)} FROM (SELECT range AS n FROM range({count}))"


def _id_sql(hour: int, count: int) -> str:
    """Return SQL of an id: ip (10.0.0.producer), pid and loader hash, ms since the start of the month, counter: 128
    bits."""
    month_ms = f"({(hour - FIRST_HOUR) * HOUR_MS} + n * {HOUR_MS} // {count})"
    head = f"(({IP} + n % {PRODUCERS})::hugeint * {1 << 48} + {PROCESS})"
    return f"({head} * {1 << 32} + {month_ms}) * {1 << 16} + n % 65536"


def id_of(hour: int, number: int, count: int) -> str:
    """Return the id that _id_sql gives a row. hour: counted from the lake's first."""
    month_ms = hour * HOUR_MS + number * HOUR_MS // count
    head = (IP + number % PRODUCERS) << 48 | PROCESS
    return f"{(head << 32 | month_ms) << 16 | number % 65536:032X}"
