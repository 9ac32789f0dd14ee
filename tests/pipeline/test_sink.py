"""Tasks of the sink with a real broker, without Spark: failed attempts, lost answers, refused rows."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.pipeline.sinking import batches, bodies_of, breaking, counts, create, each_once, send, sink_options, stored

from mqtrail.broker import BrokerConfig
from mqtrail.client import AttemptFailure, Message, Producer, SendFailed, SendResult
from mqtrail.pipeline import SinkFailed, SinkRowError
from mqtrail.pipeline.rejects import RejectsLost
from mqtrail.pipeline.sink import abort_tasks, commit_tasks, send_task
from mqtrail.testing import embedded
from mqtrail.wire import SCHEDULE_TOPIC, TIMER_TOPIC, SendOutcome


@pytest.fixture
def namesrv() -> Iterator[str]:
    """A node with two brokers, in memory. The topics exist."""
    with embedded(brokers=2) as running:
        create(running, "orders", "points")
        yield running.namesrv_address


def test_what_is_written_is_read(namesrv: str) -> None:
    """Body, tags, keys and properties of every row, by rows in batches and alone."""
    rows = [
        {"body": b"%d" % n, "tags": f"T{n % 3}", "keys": f"k{n} all", "properties": [("n", str(n))]} for n in range(150)
    ]
    found = send(rows, sink_options(namesrv))
    assert (found.sent, found.found, found.rejected) == (150, 0, 0)
    by_body = {message.body: message for message in stored(namesrv)}
    assert len(by_body) == 150
    for n in range(150):
        message = by_body[b"%d" % n]
        assert (message.tags, message.keys, message.properties["n"]) == (f"T{n % 3}", (f"k{n}", "all"), str(n))


@pytest.mark.parametrize("more", [{}, {"batchRowsMax": 1}, {"batchSizeMax": 200}, {"inFlightMax": 1}])
def test_an_attempt_that_fails_midway(namesrv: str, more: dict[str, object]) -> None:
    """The next attempt sends only what is missing, although its rows come in another order; equal rows included."""
    rows = bodies_of(300) + bodies_of(20)
    options = sink_options(namesrv, **more)
    with pytest.raises(RuntimeError, match="the upstream task failed"):
        send_task(breaking(batches(rows, 40), 5), options, "write 1")
    found = send(rows[::-1], options)
    assert found.found > 0
    assert found.sent + found.found == 320
    assert counts(namesrv) == each_once(rows)
    again = send(rows, options)
    assert (again.sent, again.found) == (0, 320)
    assert counts(namesrv) == each_once(rows)
    assert send(rows[:5], options, "write 2").sent == 5  # another write


def test_an_attempt_over_several_topics(namesrv: str) -> None:
    """Each topic has its own marker, whichever row of it comes first."""
    rows = [{"body": b"%d" % n, "topic": ("orders", "points")[n % 7 == 6]} for n in range(140)]
    options = sink_options(namesrv, topic="")
    with pytest.raises(RuntimeError):
        send_task(breaking(batches(rows, 6), 10), options, "write 1")
    send(rows[::-1], options)
    for topic in ("orders", "points"):
        assert counts(namesrv, topic) == Counter(row["body"] for row in rows if row["topic"] == topic)


@pytest.mark.parametrize(("column", "place"), [("delayLevel", SCHEDULE_TOPIC), ("deliverAt", TIMER_TOPIC)])
def test_an_attempt_with_delayed_rows(namesrv: str, column: str, place: str) -> None:
    """Delayed messages are looked up where they wait."""
    later = datetime.now(UTC) + timedelta(hours=1)
    rows = [{"body": b"%d" % n, column: 18 if column == "delayLevel" else later} for n in range(40)]
    options = sink_options(namesrv)
    with pytest.raises(RuntimeError):
        send_task(breaking(batches(rows, 10), 2), options, "write 1")
    assert send(rows[::-1], options).found > 0
    assert counts(namesrv, place) == each_once(rows)


def test_ids_of_a_column_survive_changed_rows(namesrv: str) -> None:
    """With idColumn a row is the same one although its content differs in the next attempt."""
    options = sink_options(namesrv, idColumn="id")
    send([{"body": b"first %d" % n, "id": n} for n in range(10)], options)
    found = send([{"body": b"second %d" % n, "id": n} for n in range(12)], options)
    assert (found.sent, found.found) == (2, 10)
    assert sorted(counts(namesrv))[-2:] == [b"second 10", b"second 11"]


def test_order_by_key(namesrv: str) -> None:
    """Rows of one key are in one queue, in the order of the rows, and also after an attempt that failed."""
    rows = [{"body": b"%d %d" % (n % 5, n), "orderKey": n % 5} for n in range(400)]
    options = sink_options(namesrv, batchRowsMax=7)
    with pytest.raises(RuntimeError):
        send_task(breaking(batches(rows, 40), 6), options, "write 1")
    send(rows, options)
    found: dict[bytes, list[int]] = {}
    places: dict[bytes, set[tuple[str, int]]] = {}
    for message in sorted(stored(namesrv), key=lambda one: (one.broker_name, one.queue_id, one.queue_offset)):
        key, _, number = message.body.partition(b" ")
        found.setdefault(key, []).append(int(number))
        places.setdefault(key, set()).add((message.broker_name, message.queue_id))
    assert found == {b"%d" % key: list(range(key, 400, 5)) for key in range(5)}
    assert all(len(place) == 1 for place in places.values())


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("fail_first", [0, 1, 3])
def test_an_answer_that_is_lost(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, is_stored: bool, fail_first: int
) -> None:
    """The broker is asked what it stored, for the marker and for batches; nothing is lost or sent twice."""
    real, calls = Producer.send, 0

    async def losing(self: Producer, message: Any, **more: Any) -> SendResult:
        nonlocal calls
        calls += 1
        if calls <= fail_first or calls % 4:
            return await real(self, message, **more)
        first = message if isinstance(message, Message) else message[0]
        broker_name = "broker-a"
        if is_stored:
            broker_name = (await real(self, message, **more)).queue.broker_name
        failure = AttemptFailure(broker_name, "", SendOutcome.TIMEOUT, None, "no answer", 1)
        raise SendFailed(first.topic, "id", [failure])

    monkeypatch.setattr(Producer, "send", losing)
    rows = bodies_of(200)
    assert send(rows, sink_options(namesrv, batchRowsMax=10)).sent == 200
    assert counts(namesrv) == each_once(rows)


def test_a_broker_that_never_answers(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After retryTimeoutMs the task fails; the next attempt sends the rest."""

    async def failing(self: Producer, message: Any, **more: Any) -> SendResult:
        raise SendFailed("orders", "id", [AttemptFailure("broker-a", "", SendOutcome.CONNECT, None, "refused", 1)])

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send", failing)
        with pytest.raises(SinkFailed, match="1 rows to topic 'orders' are not stored"):
            send(bodies_of(3), sink_options(namesrv, retryTimeoutMs=200))
    assert send(bodies_of(3), sink_options(namesrv)).sent == 3


def test_a_topic_that_is_not_there(tmp_path: Path) -> None:
    """The error names the topic; nothing is created."""
    with embedded(broker=BrokerConfig(auto_create_topic=False)) as running:
        options = sink_options(running.namesrv_address, retryTimeoutMs=200)
        with pytest.raises(SinkFailed, match="'orders'"):
            send(bodies_of(3), options)


def test_bad_rows_are_collected(namesrv: str, tmp_path: Path) -> None:
    """A committed write has its bad rows once, with their reasons; the good rows are sent."""
    rows: list[dict[str, Any]] = [*bodies_of(5), {"body": None}, {"body": b""}]
    options = sink_options(namesrv, rejectPath=tmp_path / "bad")
    aborted, failed = send(rows, options), send(rows, options)
    abort_tasks([aborted, None], options)
    for attempt in (failed, send(rows, options)):  # Spark repeats a micro-batch whose commit it did not note
        commit_tasks([attempt, None], options, "write 1")
    assert counts(namesrv) == each_once(bodies_of(5))
    table = pq.read_table([str(path) for path in (tmp_path / "bad").glob("*.parquet")])
    assert [row["body"] for row in table.to_pylist()] == [None, b""]
    assert str(table["reject_reason"][0]).startswith("body is null")
    assert set(table["reject_write"].to_pylist()) == {"write 1"}
    assert not list((tmp_path / "bad/_attempts").iterdir())
    with pytest.raises(RejectsLost, match=r"rejectPath must be a folder that"):
        commit_tasks([aborted], options, "write 1")


def test_bad_rows_fail_a_task_without_a_folder(namesrv: str) -> None:
    """The error has the reason and the remedy."""
    with pytest.raises(SinkRowError, match=r"body is null.*set option rejectPath"):
        send([*bodies_of(1), {"body": None}], sink_options(namesrv))


def test_an_attempt_that_fails_leaves_no_bad_rows(namesrv: str, tmp_path: Path) -> None:
    """Its file is deleted."""
    rows = [{"body": None} for _ in range(1_001)]
    with pytest.raises(RuntimeError):
        send_task(breaking(batches(rows, 1_000), 1), sink_options(namesrv, rejectPath=tmp_path), "write 1")
    assert not list((tmp_path / "_attempts").iterdir())


def test_rows_that_brokers_refuse(tmp_path: Path) -> None:
    """A batch that is refused for one row is sent row by row; the refused row is a bad row."""
    with embedded(broker=BrokerConfig(message_size_max=2_000)) as running:
        create(running, "orders")
        rows = [*bodies_of(5), {"body": bytes(range(256)) * 9}, *bodies_of(5, start=5)]
        options = sink_options(running.namesrv_address, rejectPath=tmp_path)
        found = send(rows, options)
        assert (found.sent, found.rejected) == (10, 1)
        commit_tasks([found], options, "write 1")
        (bad,) = pq.read_table(next(tmp_path.glob("*.parquet"))).to_pylist()
        assert bad["reject_reason"].startswith("the broker refuses it: ")
        assert counts(running.namesrv_address) == each_once(bodies_of(10))
