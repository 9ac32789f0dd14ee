"""Until when a lake knows each of its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from mqtrail.answers import Answers, FreshSource
from mqtrail.answers.freshness import _sql
from mqtrail.lake import arrow_rows, fetch
from mqtrail.trail import SAMPLES


def known(*rows: dict[str, Any]) -> list[tuple[str, str, int | None, str]]:
    """Return source, broker, known_ms and why of the rows of `samples`."""
    duck = duckdb.connect()
    filled = [{"cluster": "c", "broker_name": "", "topic": "", "reason": "", "status": "OK", **row} for row in rows]
    duck.register("samples", arrow_rows(SAMPLES, filled))
    found = fetch(duck, _sql("SELECT * FROM samples"))
    return [(row["source"], row["broker_name"], row["known_ms"], row["why"]) for row in found]


def asked(what: str, broker: str, sampled_ms: int, status: str = "OK", **values: Any) -> dict[str, Any]:
    return {"what": what, "broker_name": broker, "sampled_ms": sampled_ms, "status": status, **values}


SAMPLED = [{"what": "SAMPLE", "sampled_ms": at} for at in (100, 200, 300)]
READ = [{"what": "READ", "sampled_ms": at, "seen_ms": at} for at in (100, 200)]


def test_each_source_has_its_own_age() -> None:
    """A broker that answers is known up to the last sample, a silent one up to its last answer; the trace and the
    messages up to what was read.
    """
    rows = known(
        *SAMPLED,
        *READ,
        {"what": "READ", "topic": "orders", "sampled_ms": 100},
        asked("OFFSETS", "a", 100),
        asked("OFFSETS", "b", 100),
        asked("OFFSETS", "b", 300, "FAILED", seen_ms=200, reason="refused"),
        asked("TRACE", "b", 150, "FAILED", seen_ms=100),
    )
    assert rows == [
        ("trace", "b", 100, "not read to its end"),
        ("messages", "", 200, ""),
        ("offsets", "b", 200, "refused"),
        ("trace", "a", 200, ""),
        ("offsets", "a", 300, ""),
        ("samples", "", 300, ""),
    ]


def test_what_never_answered_is_unknown() -> None:
    """It has no time, and comes first; topics that are not read any more are no source."""
    rows = known(
        *SAMPLED,
        {"what": "READ", "topic": "orders", "sampled_ms": 100, "status": "FAILED", "seen_ms": 50},
        asked("OFFSETS", "a", 100, "FAILED", reason="no answer"),
        asked("TRACE", "a", 100, "FAILED"),
        asked("TRACE", "a", 200),
    )
    assert rows == [("offsets", "a", None, "no answer"), ("trace", "a", None, ""), ("samples", "", 300, "")]


def test_sources_of_a_lake(lake_path: Path) -> None:
    """A look-up returns those of all clusters, or of one."""
    answer = Answers(lake_path).freshness(0)
    assert {one.source for one in answer.sources} <= set(FreshSource)
    (cluster, *_) = {one.cluster for one in answer.sources}
    assert {one.cluster for one in Answers(lake_path, cluster=cluster).freshness(0).sources} == {cluster}
