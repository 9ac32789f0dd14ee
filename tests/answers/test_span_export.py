"""The export of spans to a collector: once each, continued after a failure, and no span lost without a word."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from mqtrail.answers.otel import FOLDER, Collector, CollectorError, SpanExport, SpanNames, export, otlp
from mqtrail.lake import Lake, LakeDamaged, LakeError, write_parquet
from tests.answers.collectors import OK, Answer, FakeCollector
from tests.answers.lakes import AS_OF_MS, id_of, make_lake, rows_of


@pytest.fixture
def lake(lake_path: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(lake_path, tmp_path / "lake"))


def client(collector: FakeCollector, pauses: list[float] | None = None) -> Collector:
    noted: list[float] = [] if pauses is None else pauses
    return Collector(collector.url, {"x-key": "secret"}, pause=noted.append)


def test_settled_messages_once(collector: FakeCollector, lake: Path) -> None:
    """Each settled message once; none that waits; a second export has nothing to do."""
    done = SpanExport(lake, client(collector)).once()
    assert len(set(collector.messages())) == len(collector.messages()) == done.message_count > 0
    assert len(collector.received) == done.span_count
    assert {id_of("consumed after retry"), id_of("dead, attempts exhausted")} <= set(collector.messages())
    assert id_of("waiting") not in collector.messages()
    assert (done.as_of_ms, done.is_whole) == (AS_OF_MS, True)
    assert collector.paths == ["/v1/traces"]
    assert collector.headers[0]["x-key"] == "secret"
    again = SpanExport(lake, client(collector)).once()
    assert (again.message_count, again.span_count) == (0, 0)


def test_spans_arrive_as_they_are(collector: FakeCollector, lake: Path) -> None:
    """Ids, times in ns, kinds, links and status, as OpenTelemetry's classes read them."""
    SpanExport(lake, client(collector), SpanNames.NEW).once()
    roots = {bytes(span.span_id): span for span in collector.received if not span.parent_span_id}
    kinds = {span.kind for span in collector.received}
    assert kinds == {OtlpSpan.SPAN_KIND_INTERNAL, OtlpSpan.SPAN_KIND_PRODUCER, OtlpSpan.SPAN_KIND_CONSUMER}
    for span in collector.received:
        assert (len(span.trace_id), len(span.span_id)) == (16, 8)
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert 1_600_000_000 * 10**9 < span.start_time_unix_nano < 1_800_000_000 * 10**9
        if span.parent_span_id:
            assert roots[bytes(span.parent_span_id)].trace_id == span.trace_id
        if span.kind == OtlpSpan.SPAN_KIND_CONSUMER:
            assert {link.trace_id for link in span.links} <= {span.trace_id}  # none if the send was not traced
    dead = next(s for s in roots.values() if s.status.message == "DEAD_LETTERED")
    assert dead.status.code == dead.status.STATUS_CODE_ERROR


def test_a_busy_collector_is_asked_again(collector: FakeCollector, lake: Path) -> None:
    """After Retry-After at the earliest, with a bound; nothing is sent twice after it was accepted."""
    pauses: list[float] = []
    collector.answers = [(503, {"Retry-After": "7"}, b""), (429, {"Retry-After": "9999"}, b""), (502, {}, b"")]
    done = SpanExport(lake, client(collector, pauses)).once()
    assert pauses == [7.0, otlp.WAIT_S_MAX, 4.0]
    assert len(collector.messages()) == done.message_count


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {}, b"bad span"), "found status 400 bad span"),
        ((401, {}, b""), "found status 401"),
        ((200, {}, b"<html>"), "found an answer that is not OTLP"),
        (
            (
                200,
                {},
                ExportTraceServiceResponse(
                    partial_success=ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
                ).SerializeToString(),
            ),
            r"found 3 of \d+ spans rejected \(too old\)",
        ),
    ],
)
def test_what_is_not_accepted_is_an_error(collector: FakeCollector, lake: Path, answer: Answer, message: str) -> None:
    """At once, in words, without the secret; the next export sends it again."""
    collector.answers = [answer]
    with pytest.raises(CollectorError, match=message) as error:
        SpanExport(lake, client(collector)).once()
    assert "secret" not in str(error.value)
    assert len(collector.paths) == 1
    collector.received.clear()
    assert SpanExport(lake, client(collector)).once().message_count == len(collector.messages()) > 0


def test_no_collector(collector: FakeCollector, lake: Path) -> None:
    """A few tries, then an error that says what to do."""
    pauses: list[float] = []
    nowhere = Collector("http://127.0.0.1:1", pause=pauses.append)
    with pytest.raises(CollectorError, match=r"127\.0\.0\.1:1/v1/traces: found ConnectionRefused.*expected"):
        SpanExport(lake, nowhere).once()
    assert len(pauses) == otlp.TRIES_MAX - 1


def two_hours(lake: Path, tmp_path: Path) -> Path:
    """Return the lake with a second hour of the same messages, in files of their own."""
    for name in ("trajectories", "verdicts"):
        table = Lake.open(lake)[name]
        made = []
        for path in table.paths(table.files()):
            later = Path(path).parent.parent / "part-later" / "0.parquet"
            later.parent.mkdir(exist_ok=True)
            made.append(_moved(Path(path), later))
        table.commit(made, app="test", batch=1)
    return lake


def _moved(path: Path, later: Path) -> Path:
    """Write the rows of a file with ids of the next hour."""
    rows = pq.read_table(path)
    hour = pc.add(rows["publish_hour"], 1).cast(rows.schema.field("publish_hour").type)
    ids = pc.replace_substring(rows["msg_id"], "0A000001", "0B000001")
    rows = rows.set_column(rows.schema.get_field_index("publish_hour"), rows.schema.field("publish_hour"), hour)
    rows = rows.set_column(rows.schema.get_field_index("msg_id"), rows.schema.field("msg_id"), ids)
    write_parquet(rows, later)
    return later


def test_one_cluster(collector: FakeCollector, lake: Path) -> None:
    """Its messages alone, with a position of its own. An unknown cluster is named with the known ones."""
    for cluster in ("consumed after retry", "dead, attempts exhausted"):  # each story has a cluster of its own
        assert SpanExport(lake, client(collector), cluster=cluster).once().message_count == 1
        assert set(collector.messages()) == {id_of(cluster)}
        assert SpanExport(lake, client(collector), cluster=cluster).once().message_count == 0
        collector.received.clear()
    assert SpanExport(lake, client(collector)).once().message_count > 2
    with pytest.raises(LakeError, match="found no cluster 'north', expected one of consumed after retry, dead"):
        SpanExport(lake, client(collector), cluster="north")


def test_it_continues_at_the_hour_that_failed(collector: FakeCollector, lake: Path, tmp_path: Path) -> None:
    """The first hour was accepted: it is not sent again."""
    two_hours(lake, tmp_path)
    collector.answers = [OK, (400, {}, b"")]
    with pytest.raises(CollectorError):
        SpanExport(lake, client(collector)).once()
    first = collector.messages()
    collector.received.clear()
    done = SpanExport(lake, client(collector)).once()
    assert len(first) == len(collector.messages()) == done.message_count > 0
    assert not set(first) & set(collector.messages())
    assert SpanExport(lake, client(collector)).once().message_count == 0


def test_a_stop_between_hours(collector: FakeCollector, lake: Path, tmp_path: Path) -> None:
    """A stopped export says so; the next one continues."""
    two_hours(lake, tmp_path)
    stop = Event()
    stop.set()
    done = SpanExport(lake, client(collector)).once(stop)
    assert (done.message_count, done.is_whole) == (0, False)
    assert SpanExport(lake, client(collector)).once().message_count == len(collector.messages()) > 0


def test_from_a_time_on(collector: FakeCollector, lake: Path, tmp_path: Path) -> None:
    """Messages of earlier hours are left out, also by later exports."""
    two_hours(lake, tmp_path)
    SpanExport(lake, client(collector), from_ms=1_700_000_000_000 + 3_600_000).once()
    assert collector.messages()
    assert not [msg_id for msg_id in collector.messages() if msg_id.startswith("0A")]
    assert SpanExport(lake, client(collector)).once().message_count == 0


def test_requests_are_bounded(collector: FakeCollector, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of spans; a message is never divided."""
    monkeypatch.setattr(export, "SPANS_MAX", 4)
    done = SpanExport(lake, client(collector)).once()
    assert len(collector.paths) > 2
    assert len(collector.messages()) == done.message_count
    assert len(collector.received) == done.span_count


def test_collectors_have_positions_of_their_own(collector: FakeCollector, lake: Path) -> None:
    """Two endpoints each get all messages."""
    first = SpanExport(lake, client(collector)).once()
    other = Collector(f"{collector.url}/other")
    assert SpanExport(lake, other).once().message_count == first.message_count
    assert collector.paths[-1] == "/other"


def test_a_damaged_position(collector: FakeCollector, lake: Path) -> None:
    """It is neither ignored nor taken for the beginning."""
    SpanExport(lake, client(collector)).once()
    [place] = (lake / FOLDER).iterdir()
    for text in ("", "[]", '{"after_ms": "x", "until_ms": null, "hour": null}'):
        place.write_text(text)
        with pytest.raises(LakeDamaged, match=r"expected the position of an export.*remove the file"):
            SpanExport(lake, client(collector)).once()


def test_an_empty_lake(collector: FakeCollector, tmp_path: Path) -> None:
    """Nothing to export is no error."""
    make_lake(tmp_path / "lake", {**rows_of(())})
    done = SpanExport(tmp_path / "lake", client(collector)).once()
    assert (done.message_count, done.as_of_ms) == (0, None)


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://h", "http://", "http://h:port"])
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(ValueError):
        Collector(endpoint)
