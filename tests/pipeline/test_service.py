"""The loop of `pipeline run`: good cycles, failed ones, faults of Spark, and a stop."""

import dataclasses
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import PySparkException

from mqtrail.net import BindError
from mqtrail.pipeline import ClusterStatus, JobFailed, JobReport, PipelineStatus, StatusFile, pipeline_faults
from mqtrail.pipeline.freshness import Freshness
from mqtrail.pipeline.service import FAULTS_MAX, Service, served, summary
from mqtrail.pipeline.status import METRICS, PROBLEMS_MAX, STALE_MS, exposition
from mqtrail.wire import MQError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def report(*problems: str, messages: int = 2, behind: int = 0) -> JobReport:
    return JobReport(
        as_of_ms=1_000,
        trace_messages=1,
        trace_records=5,
        rejects=0,
        messages=messages,
        gaps=0,
        trajectories=2,
        seconds=0.5,
        problems=problems,
        behind=behind,
    )


class NoUpkeep:
    def slice(self, at_ms: int) -> dict[str, int]:
        return {"compacted": 1}

    def end(self) -> None:
        pass


class Cycles:
    """Cycles of one cluster that end as written."""

    def __init__(self, name: str, *turns: JobReport | Exception) -> None:
        self.name = name
        self.turns = list(turns)
        self.freshness = Freshness()
        self.step: Callable[[str], None] = lambda text: None
        self.is_shared = False

    def begin(self) -> Callable[[], JobReport]:
        return self.cycle

    def cycle(self) -> JobReport:
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return dataclasses.replace(turn, cluster=self.name)


class Script(Cycles):
    """Those of a run; the last one sets the stop."""

    def __init__(self, lake: Path, *turns: JobReport | Exception, stops: bool = True) -> None:
        super().__init__("", *turns)
        self.lines: list[str] = []
        self.stop = Event()
        self.stops = stops
        self.service = Service(lake, [self], NoUpkeep(), self.lines.append)

    def cycle(self) -> JobReport:
        if len(self.turns) == 1 and self.stops:
            self.stop.set()
        return super().cycle()

    def run(self) -> PipelineStatus:
        self.service.run(1, self.stop)
        found = StatusFile(self.service._file.path.parent).read()
        assert found is not None
        return found


def test_good_cycles_and_a_problem(tmp_path: Path) -> None:
    """The loop prints sums and one line a cycle, and each problem once when it begins and once when it ends."""
    script = Script(tmp_path, report("no answer"), report("no answer"), report())
    found = script.run()
    [one] = found.clusters
    assert (one.cycles, one.failures, found.is_running, one.problems) == (3, 0, False, {})
    assert one.counts["messages"] == 6
    assert found.upkeep == {"compacted": 2}  # none after the stop
    assert [line for line in script.lines if "no answer" in line] == [
        "problem: no answer",
        "no longer a problem: no answer",
    ]
    assert sum("2 judged" in line for line in script.lines) == 3


def test_failed_cycles_are_tried_again(tmp_path: Path) -> None:
    """Neither an unreachable cluster nor faults of Spark end the run; a good cycle resets the count of failures."""
    faults = [PySparkException("Python worker exited unexpectedly")] * (FAULTS_MAX - 1)
    script = Script(tmp_path, MQError("no name server"), *faults, report(), *faults, report())
    [found] = script.run().clusters
    assert (found.cycles, found.failures, found.failed_in_row) == (2, 2 * FAULTS_MAX - 1, 0)
    assert "this cycle failed: no name server; the next one is in 0 s" in script.lines


def test_spark_that_keeps_failing_ends_the_run_in_words(tmp_path: Path) -> None:
    """The run ends with an error text, so that the process's supervisor restarts it."""
    script = Script(tmp_path, *[PySparkException("out of memory\nand more")] * FAULTS_MAX, stops=False)
    with pytest.raises(JobFailed, match=r"Spark failed 3 times in a row \(out of memory\), expected"):
        script.run()
    found = StatusFile(tmp_path).read()
    assert found is not None
    assert not found.is_running


class Silent(Cycles):
    """A cluster that answers when another one has had its last cycle."""

    def __init__(self, other: "Counted", *turns: JobReport | Exception) -> None:
        super().__init__("west", *turns)
        self.other = other

    def begin(self) -> Callable[[], JobReport]:
        assert self.other.has_ended.wait(60), "the other cluster waits for this one"
        return super().begin()

    def cycle(self) -> JobReport:
        if len(self.turns) == 1:
            self.other.stop.set()
        return super().cycle()


class Counted(Cycles):
    """A cluster that answers at once, and has nothing to do after its last cycle."""

    def __init__(self, *turns: JobReport | Exception) -> None:
        super().__init__("east", *turns)
        self.has_ended = Event()
        self.stop = Event()

    def begin(self) -> Callable[[], JobReport]:
        if not self.turns:
            self.has_ended.set()
            self.stop.wait(60)
        return super().begin()


def test_a_silent_cluster_holds_up_no_other(tmp_path: Path) -> None:
    """The others go on; its failures, problems and counts are its own, and each line names its cluster."""
    east = Counted(report(), MQError("no route"), report(messages=3))
    west = Silent(east, MQError("no name server"), report("no answer", messages=5))
    lines: list[str] = []
    service = Service(tmp_path, [east, west], NoUpkeep(), lines.append)
    service.run(1, east.stop)
    found = StatusFile(tmp_path).read()
    assert found is not None
    assert [(one.cycles, one.failures, one.counts["messages"]) for one in found.clusters] == [(2, 1, 5), (1, 1, 5)]
    assert [list(one.problems) for one in found.clusters] == [[], ["no answer"]]
    assert "west: this cycle failed: no name server; the next one is in 0 s" in lines
    assert lines.index("east: this cycle failed: no route; the next one is in 0 s") < lines.index(
        "west: problem: no answer"
    )


@pytest.mark.parametrize(
    ("other", "is_shared"), [("ready", True), ("due", True), ("later", False), ("asked, no answer", False)]
)
def test_a_cycle_reads_less_while_another_cluster_waits(tmp_path: Path, other: str, is_shared: bool) -> None:
    """Not because of one that does not answer, or that is not due for longer than an interval."""
    one = Cycles("east", report())
    service = Service(tmp_path, [one, Cycles("west")], NoUpkeep(), print)
    turns, west = service._turns
    turns.ask()
    turns.end(60)
    if other == "ready":
        west.ask()
        west.end(60)
    elif other == "asked, no answer":
        west._asking = Thread()
    else:
        west.due_s = time.monotonic() + {"due": 0, "later": 3600}[other]
    service._turn(turns, 2_000, Event())
    assert one.is_shared is is_shared


def test_the_longest_waiting_cluster_is_next(tmp_path: Path) -> None:
    """Of those that have answered, so that one with much to read takes turns with the others."""
    stop = Event()
    service = Service(tmp_path, [Cycles(name) for name in ("a", "b", "c")], NoUpkeep(), print)
    order = []
    for turns, due_s in zip(service._turns, (-1.0, -3.0, -2.0), strict=True):
        turns.due_s = due_s
        turns.ask()
        turns.end(60)
    for _ in range(3):
        found = service._next(stop)
        assert found is not None
        order.append(found.cycles.name)
        found.due_s = 0.0
    assert order == ["b", "c", "a"]


def test_a_summary() -> None:
    """One line has the numbers of read, judged and waiting messages, and the freshness."""
    status = ClusterStatus()
    status.note_problems(["one"], 1)
    assert summary(report(behind=7), status) == (
        "read 1 trace messages (5 records, 0 did not decode) and 2 messages, 0 gaps; 2 judged; 7 messages behind; "
        "1 problems; 0.5 s"
    )


def write(path: Path, *stored_ms: int) -> Path:
    pq.write_table(pa.table({"store_ms": pa.array(stored_ms, pa.int64())}), path)
    return path


def test_freshness(tmp_path: Path) -> None:
    """Freshness is the time from storing to the answer; unjudged messages are not counted; old answers leave the
    percentiles."""
    freshness = Freshness({"trace": 5})
    freshness.read({"message_meta": [write(tmp_path / "a", *range(10_000, 10_100))]})
    assert freshness.of()["messages"].p50_ms is None
    freshness.answered(11_000)
    found = freshness.of()["messages"]
    assert found.newest_ms == 10_099
    assert found.p50_ms == pytest.approx(950, rel=0.1)
    assert found.p95_ms == pytest.approx(995, rel=0.1)
    freshness.read({"message_meta": [write(tmp_path / "b", 400_000)]})
    freshness.answered(402_000)
    found = freshness.of()["messages"]
    assert found.newest_ms == 400_000
    assert found.p50_ms == pytest.approx(2_000, rel=0.1)
    assert freshness.of()["trace"].newest_ms == 5


def test_the_status_file(tmp_path: Path) -> None:
    """The file is read back as written; a damaged one is no status; the error names what is wrong."""
    file = StatusFile(tmp_path)
    assert file.read() is None
    one = ClusterStatus(freshness=Freshness({"trace": 5}).of())
    status = PipelineStatus(clusters=[one])
    one.note_cycle(report(), 7)
    one.note_problems((f"problem {number}" for number in range(2 * PROBLEMS_MAX)), 9)
    file.write(status)
    assert file.read() == status
    assert len(one.problems) == PROBLEMS_MAX
    assert pipeline_faults(status, status.written_ms) == []
    assert "died or hangs" in pipeline_faults(status, status.written_ms + STALE_MS + 1)[0]
    one.note_failure("no name server")
    status.is_running = False
    assert len(pipeline_faults(status, status.written_ms)) == 2
    other = '{"clusters": [], "written_ms": "5"}'
    for damaged in ("", "[]", "{", "{}", other, '{"clusters": [{"freshness": {"trace": 5}}]}', "[" * 100_000):
        file.path.write_bytes(damaged.encode())
        assert file.read() is None, damaged[:10]


def test_the_metrics() -> None:
    """All metrics are served; an unknown value has no sample; each metric has its entry in the reference."""

    def read(status: PipelineStatus) -> dict[str, float]:
        families = text_string_to_metric_families(exposition(status, "/lake").decode())
        return {f"{one.name}{sorted(one.labels.items())}": one.value for family in families for one in family.samples}

    east, west = ClusterStatus("east"), ClusterStatus("west")
    status = PipelineStatus(clusters=[east, west])
    assert not any("freshness" in name or "behind" in name for name in read(status))
    east.note_cycle(dataclasses.replace(report(behind=3), cluster="east"), 7_000)
    status.upkeep["swept"] = 4
    east.freshness = {"trace": Freshness({"trace": 5_000}).of()["trace"]}
    found = read(status)
    of_east = "('cluster', 'east'), ('lake', '/lake')"
    assert found[f"mqtrail_pipeline_behind_messages[{of_east}]"] == 3
    assert found[f"mqtrail_pipeline_newest_answered_timestamp_seconds[{of_east}, ('source', 'trace')]"] == 5
    assert found["mqtrail_pipeline_cycles_total[('cluster', 'west'), ('lake', '/lake'), ('outcome', 'ok')]"] == 0
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        assert f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} |" in PAGE.read_text("utf-8"), name


def test_the_port_of_the_metrics() -> None:
    """A thread serves the text while the block runs; a port in use is an error."""

    def text() -> bytes:
        return b"up 1\n"

    with served(text, "127.0.0.1", 0) as address:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            assert answer.read() == b"up 1\n"
        with pytest.raises(BindError, match="--metrics-port"), served(text, "127.0.0.1", int(address.split(":")[1])):
            pass
    with pytest.raises(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=5):
        pass
