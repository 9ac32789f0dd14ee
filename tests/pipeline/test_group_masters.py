"""Changes of the master between samples: what there is of the fail-over of Apache's brokers."""

from pathlib import Path
from typing import Any, cast

import pytest

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, arrow_rows, connect, relation_of, write_parquet
from mqtrail.pipeline.changes import Changes
from mqtrail.pipeline.group_masters import MASTERS, MasterChanges, MasterEpochs
from mqtrail.pipeline.recording import Recorder
from mqtrail.pipeline.rewinds import has_record
from mqtrail.pipeline.sampling import ClusterSample
from mqtrail.wire import BrokerEvent, MessageQueue, MQError, encode_trace

RETENTION_MS = 86_400_000
A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def masters(address: str | None, epoch: int | None = None) -> list[dict[str, Any]]:
    return [] if address is None else [{"broker_name": "broker-a", "address": address, "epoch": epoch}]


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("event", "address", "epoch", "before_address", "before_epoch", "before_until_ms", "event_ms")
    return [tuple(row[name] for name in names) for row in rows]


def test_a_fail_over_between_two_samples() -> None:
    """The row says who was master before, and the last sample that showed it."""
    changes = MasterChanges()
    assert shown(changes.events(masters(A, 4), 1_000, None)) == [("MASTER_SEEN", A, 4, "", None, None, 1_000)]
    assert changes.events(masters(A, 4), 2_000, 1_000) == []
    assert shown(changes.events(masters(B, 5), 3_000, 2_000)) == [("MASTER_CHANGED", B, 5, A, 4, 2_000, 3_000)]


@pytest.mark.parametrize("gone", ["", None], ids=["slaves only", "in no route"])
def test_a_time_without_a_master(gone: str | None) -> None:
    """It has a row of its own; the next master still names the last one."""
    changes = MasterChanges()
    changes.events(masters(A), 1_000, None)
    assert shown(changes.events(masters(gone), 2_000, 1_000)) == [("MASTER_GONE", "", None, A, None, 1_000, 2_000)]
    assert changes.events(masters(gone), 3_000, 2_000) == []
    assert shown(changes.events(masters(B), 4_000, 3_000)) == [("MASTER_CHANGED", B, None, A, None, 1_000, 4_000)]


def test_the_same_master_again_is_no_change() -> None:
    """A broker without replicas is started again."""
    changes = MasterChanges()
    changes.events(masters(A), 1_000, None)
    changes.events(masters(""), 2_000, 1_000)
    assert shown(changes.events(masters(A), 3_000, 2_000)) == [("MASTER_SEEN", A, None, A, None, 1_000, 3_000)]


def test_slaves_without_a_master_are_no_event() -> None:
    """What was never known is not gone."""
    assert MasterChanges().events(masters(""), 1_000, None) == []


def test_events_are_kept_in_the_lake(tmp_path: Path) -> None:
    """Each once, with the name of the cluster; a pipeline that starts again continues with them."""
    lake = Lake.create(tmp_path / "lake")
    with lake.writing():
        Recorder(lake, "C", RETENTION_MS).record([ClusterSample(1_000, rows={MASTERS: masters(A)})])
        later = [ClusterSample(2_000, rows={MASTERS: masters(A)}), ClusterSample(3_000, rows={MASTERS: masters(B)})]
        Recorder(lake, "C", RETENTION_MS).record(later)
    lake.refresh()
    rows = connect().execute(
        f"SELECT cluster, event, address, before_until_ms, trace_store_ms "
        f"FROM ({relation_of(lake[trail.BROKER_EVENTS.name])}) ORDER BY event_ms"
    )
    assert rows.fetchall() == [
        ("C", "MASTER_SEEN", A, None, 1_000),
        ("C", "MASTER_CHANGED", B, 2_000, 3_000),
    ]


def test_samples_of_an_older_version_say_nothing() -> None:
    """They wait in the spool without masters: that is not known, and no change."""
    changes = Changes("C", RETENTION_MS)
    changes.add(ClusterSample(1_000, rows={MASTERS: masters(A)}))
    assert trail.BROKER_EVENTS.name not in changes.add(ClusterSample(2_000))
    assert trail.BROKER_EVENTS.name not in changes.add(ClusterSample(3_000, rows={MASTERS: masters(A)}))


class Asked:
    """Masters of which one does not know request 1007, as Apache's 4.9."""

    def __init__(self) -> None:
        self.count = 0

    def master_epoch(self, address: str) -> int | None:
        self.count += 1
        if address == B:
            raise MQError("request code 1007 is not supported")
        return 7


def test_a_master_is_asked_once_for_its_epoch() -> None:
    """When it is new. One that does not answer is not asked; one that does not know the request has no epoch."""
    asked, epochs = Asked(), MasterEpochs()
    admin = cast(SyncAdmin, asked)
    assert [row["epoch"] for row in epochs.rows(admin, {"a": A, "b": B}, ["c"], ["a"])] == [None, None, None]
    assert asked.count == 1
    for _ in range(2):
        assert [row["epoch"] for row in epochs.rows(admin, {"a": A, "b": B}, ["c"])] == [7, None, None]
    assert asked.count == 2


def test_a_message_with_events_alone_is_known(tmp_path: Path) -> None:
    """Otherwise its queue would count as recreated: it has no row in trace_events."""
    queue = MessageQueue("RMQ_SYS_TRACE_TOPIC", "broker-a", 0)
    place = trail.TracePlace("C", queue.broker_name, queue.topic, 0, 7, 900, 950, "")
    rows = [row for _, row in trail.trace_rows(place, encode_trace([BrokerEvent(time_stamp=940, event="STARTED")]))]
    lake = Lake.create(tmp_path / "lake")
    file = lake[trail.BROKER_EVENTS.name].path / "batch=test-1" / "part-0.parquet"
    file.parent.mkdir()
    write_parquet(arrow_rows(trail.BROKER_EVENTS, rows), file)
    lake[trail.BROKER_EVENTS.name].commit([file], app="test", batch=0)
    assert has_record(lake, connect(), "C", queue, 7, 950)
    assert not has_record(lake, connect(), "C", queue, 7, 951)
