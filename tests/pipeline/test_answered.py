"""What Prometheus reads of a lake's answers: counts of codes, and lag. Unknown values are absent."""

import json
import re
from pathlib import Path
from threading import Event

from prometheus_client.parser import text_string_to_metric_families
from tests.pipeline.test_service import PAGE, Cycles, NoUpkeep, report

from mqtrail import trail
from mqtrail.lake import Change, Lake, arrow_rows, write_parquet
from mqtrail.pipeline import PipelineStatus
from mqtrail.pipeline.answered import LAG_AGE_MS_MAX, WINDOW_MS, Answered, answered
from mqtrail.pipeline.service import Service
from mqtrail.pipeline.status import METRICS, exposition

NOW_MS = 1_700_000_000_000


def add(lake: Lake, relation: trail.Relation, number: int, *rows: dict[str, object]) -> None:
    """Commit rows of a table as one batch."""
    empty = {column.name: "" if column.type == "string" else None for column in relation}
    table = lake[relation.name]
    hour = f"publish_hour={rows[0]['publish_hour']}/" if "publish_hour" in rows[0] else ""
    file = table.path / f"{hour}batch=test-{number}" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    write_parquet(arrow_rows(relation, [empty | row for row in rows]), file)
    lake.batches.commit("test", number, {relation.name: Change(added=[file])}, {})


def message(number: int, sent_ms: int, as_of_ms: int, send: str, groups: str) -> dict[str, object]:
    hour = NOW_MS // trail.HOUR_MS
    own = {"cluster": "c", "publish_hour": hour, "msg_id": f"m{number}", "as_of_ms": as_of_ms, "send_start_ms": sent_ms}
    return own | {"send_codes": send, "group_codes": groups, "knowledge": "COMPLETE"}


def test_messages_count_once_for_a_code(tmp_path: Path) -> None:
    """The latest judgement of each message of the last hour counts; every other code of the cluster is 0."""
    lake = Lake.create(tmp_path / "lake")
    assert answered(lake, NOW_MS) == Answered()
    old = message(3, NOW_MS - WINDOW_MS, 2, "SEND_OK", "LOST")
    first = (message(1, NOW_MS - 9, 1, "SEND_OK", "WAITING"), message(2, NOW_MS - 9, 1, "SEND_OK,SEND_SLOW", ""))
    add(lake, trail.TRAJECTORIES, 1, *first, old)
    add(lake, trail.TRAJECTORIES, 2, message(1, NOW_MS - 9, 2, "SEND_OK", "CONSUMED"))
    counted = answered(lake, NOW_MS).messages
    assert {code: count for (_, code), count in counted.items() if count} == {
        "SEND_OK": 2,
        "SEND_SLOW": 1,
        "CONSUMED": 1,
        "COMPLETE": 2,
    }
    assert {code for _, code in counted} == set(trail.CODES)


def test_the_lag_of_groups(tmp_path: Path) -> None:
    """The latest sample counts, unless it is too old. An unknown lag of one queue makes that of the group unknown."""
    lake = Lake.create(tmp_path / "lake")

    def lag(group: str, queue: int, count: int | None, age_ms: int | None, at_ms: int = NOW_MS) -> dict[str, object]:
        place = {"group_name": group, "topic": "orders", "broker_name": "a", "queue_id": queue}
        return {"cluster": "c", "sampled_ms": at_ms, **place, "lag_count": count, "lag_ms": age_ms}

    add(lake, trail.LAG, 1, lag("g", 0, 90, 90, NOW_MS - 1))
    add(lake, trail.LAG, 2, lag("g", 0, 2, 500), lag("g", 1, 3, 1_500), lag("h", 0, 1, None), lag("i", 0, None, None))
    key = ("c", "g", "orders")
    assert answered(lake, NOW_MS).lags == {
        key: (5, 1.5),
        ("c", "h", "orders"): (1, None),
        ("c", "i", "orders"): (None, None),
    }
    assert answered(lake, NOW_MS + LAG_AGE_MS_MAX + 1).lags == {}
    text = exposition(PipelineStatus(), "/lake", answered(lake, NOW_MS)).decode()
    found = {
        (one.name, one.labels["group"]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert found == {
        ("mqtrail_group_lag_messages", "g"): 5,
        ("mqtrail_group_lag_messages", "h"): 1,
        ("mqtrail_group_lag_seconds", "g"): 1.5,
    }
    assert {name for name, _ in found} < set(METRICS)


def test_the_dashboard_has_metrics_that_are_served() -> None:
    """Each query of the dashboard names metrics and codes of this version."""
    text = (PAGE.parent / "grafana-pipeline.json").read_text("utf-8")
    queries = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    assert all(set(re.findall(r"mqtrail_\w+", query)) <= set(METRICS) for query in queries)
    codes = {code for query in queries for found in re.findall(r'code=~"([^"]*)"', query) for code in found.split("|")}
    assert {"LOST"} <= codes <= set(trail.CODES)


def test_a_service_counts_them(tmp_path: Path) -> None:
    """It counts when it begins to serve metrics; a lake that is not there counts nothing and ends nothing."""
    stop = Event()
    lines: list[str] = []
    service = Service(tmp_path / "none", [Cycles("c", report())], NoUpkeep(), lines.append, lambda _: stop.set())
    service.run(1, stop, ("127.0.0.1", 0))
    assert service._answers == Answered()
    assert any(line.startswith("metrics at ") for line in lines)
