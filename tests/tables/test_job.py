"""From a topic of a broker to a table, in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from mqtrail.client import SyncAdmin, SyncProducer
from mqtrail.pipeline import BrokerUnreachable
from mqtrail.tables import DeltaTarget, TableConfig, TableError, TableJob, TableReport
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, MessageQueue, TopicConfig
from tests.cli.conftest import Command, commands

from .making import QUEUE, SOURCE, TOPIC, changed, digested, merge, rows


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def topic(broker: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(broker.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(TOPIC, 1, 1)).complete
        yield admin
        admin.delete_topic(TOPIC)


def send(broker: Embedded, *messages: Message) -> None:
    with SyncProducer("g", broker.namesrv_address) as producer:
        for message in messages:
            producer.send(message)


@pytest.fixture
def config(broker: Embedded, tmp_path: Path) -> TableConfig:
    return TableConfig(namesrv=broker.namesrv_address, topic=TOPIC, table=tmp_path / "orders", source=SOURCE)


def test_batches_continue_where_the_table_ends(broker: Embedded, topic: SyncAdmin, config: TableConfig) -> None:
    """Each run reads what is new; a run that repeats everything changes nothing."""
    story = [*changed(1, None, {"id": 1, "n": 1}), *changed(2, None, {"id": 2, "n": 2})]
    send(broker, *story)
    with TableJob(config) as job:
        first = job.once()
        assert (first.messages, first.changes, first.behind) == (2, 2, 0)
        send(broker, *changed(3, {"id": 1, "n": 1}, {"id": 1, "n": 3}), *story)
        stop = Event()
        seen: list[TableReport] = []

        def show(report: TableReport) -> None:
            seen.append(report)
            stop.set()

        job.run(1, stop, show)
        assert [(one.messages, one.repeated, one.late) for one in seen] == [(3, 0, 1)]
        assert rows(job.target) == [(1, 3), (2, 2)]
        assert job.once().messages == 0
        assert job.target.offset(QUEUE) == 5


def test_a_stop_between_batches(broker: Embedded, topic: SyncAdmin, config: TableConfig) -> None:
    """What is left is reported."""
    send(broker, *changed(1, None, {"id": 1, "n": 1}))
    stop = Event()
    stop.set()
    with TableJob(config) as job:
        report = job.once(stop)
    assert (report.messages, report.behind) == (0, 1)


def test_what_is_not_there(broker: Embedded, config: TableConfig) -> None:
    """No topic, no source: nothing is made."""
    with pytest.raises(TableError, match="found no topic 'cdc'"), TableJob(config):
        pass
    assert not list(config.table.glob("_delta_log"))


def test_a_topic_that_was_made_again(broker: Embedded, topic: SyncAdmin, config: TableConfig) -> None:
    """Its offsets mean other messages: nothing is read."""
    send(broker, *changed(1, None, {"id": 1, "n": 1}))
    with TableJob(config) as job:
        job.once()
        topic.delete_topic(TOPIC)
        assert topic.create_topic(TopicConfig(TOPIC, 1, 1)).complete
        with pytest.raises(TableError, match=r"found messages \[0, 0\).*expected those from 1 on"):
            job.once()


def test_a_queue_that_has_no_route_any_more(
    broker: Embedded, topic: SyncAdmin, config: TableConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages would be missed: the run waits for its broker, and then fails, as if the broker did not answer."""
    gone = MessageQueue(TOPIC, "broker-b", 0)
    DeltaTarget.create(config.table, TOPIC, SOURCE).apply(digested(), {gone: 4})
    with (
        TableJob(replace(config, retry_timeout_ms=1)) as job,
        pytest.raises(BrokerUnreachable, match=r"found no route of 1 queues .*broker-b.*expected all of them"),
    ):
        job.once()
    with TableJob(config) as job:
        found = iter([job._bounds(), job._bounds() | {gone: (0, 4)}])
        monkeypatch.setattr(job, "_bounds", lambda: next(found))
        assert job._all_bounds()[gone] == (0, 4), "it was away for a moment"


def test_another_run_writes_before_the_lock(
    broker: Embedded, topic: SyncAdmin, config: TableConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it made or committed is what this run goes on from."""
    alone, offsets = DeltaTarget.alone, iter((0, 1))

    @contextmanager
    def late(path: Path) -> Iterator[None]:
        other = DeltaTarget.open(path) or DeltaTarget.create(path, TOPIC, SOURCE)
        merge(other, changed(at := next(offsets) + 1, None, {"id": at, "n": at}), offset=at - 1)
        with alone(path):
            yield

    monkeypatch.setattr(DeltaTarget, "alone", late)
    with TableJob(config) as job:
        assert rows(job.target) == [(1, 1)]
    send(broker, *changed(1, None, {"id": 1, "n": 1}), *changed(3, None, {"id": "three", "n": 3}))
    with TableJob(config) as job:
        job.once()
        assert rows(job.target) == [("1", 1), ("2", 2), ("three", 3)]


def test_the_command(
    broker: Embedded, topic: SyncAdmin, config: TableConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """It makes the table, continues it, and refuses another source."""
    mqtrail: Command = commands(capsys)
    send(broker, *changed(1, None, {"id": 1, "n": 1}))
    where = ("--namesrv", broker.namesrv_address, "--topic", TOPIC, "--table", str(config.table))
    found = mqtrail("pipeline", "table", *where)
    assert (found.code, "pass --source" in found.err) == (1, True)
    found = mqtrail("pipeline", "table", *where, "--source", SOURCE)
    assert "shop.orders: merged 1 changes of 1 messages; version " in found.out
    facts = json.loads(mqtrail("pipeline", "table", *where, "--json").out)
    assert (facts["messages"], facts["source"]) == (0, SOURCE)
    found = mqtrail("pipeline", "table", *where, "--source", "shop.lines")
    assert "expected shop.lines by cdc" in found.err
