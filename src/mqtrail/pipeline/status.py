"""The status of a running pipeline: in memory, in a file of the lake, and as Prometheus metrics.

<lake>/_status.json    replaced every few seconds; read by `mqtrail pipeline status`
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from mqtrail.clock import now_ms
from mqtrail.lake import LakePath, LakeUnreadable, ObjectStoreError, write_whole
from mqtrail.wire import visible

from .answered import NOTHING, Answered, Sample, samples_of
from .config import JobReport
from .freshness import SourceFreshness

FILE: Final = "_status.json"
STALE_MS: Final = 60_000  # a running pipeline writes its status much more often
PROBLEMS_MAX: Final = 100  # problems that the status lists
COUNTED: Final = ("trace_messages", "trace_records", "rejects", "messages", "gaps", "trajectories")
"""The fields of JobReport that are summed over the cycles of a run."""


@dataclass(slots=True)
class ClusterStatus:
    """What a run has done with one cluster. Times are epoch ms; None: not known, or not yet."""

    cluster: str = ""  # its name in the lake; '': not known yet
    cycles: int = 0  # that ended well
    failures: int = 0  # cycles that failed
    failed_in_row: int = 0  # since the last that ended well
    last_error: str = ""
    cycle_ended_ms: int | None = None  # the last that ended well
    cycle_seconds: float | None = None
    as_of_ms: int | None = None  # instant of the last judgement
    behind: int | None = None  # messages that the last cycle left for the next
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    freshness: dict[str, SourceFreshness] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)  # problem -> since when

    def note_problems(self, problems: Iterable[str], at_ms: int) -> tuple[list[str], list[str]]:
        """Note the problems of a cycle; return the new ones and those that no longer exist."""
        found = {problem: self.problems.get(problem, at_ms) for problem in list(dict.fromkeys(problems))[:PROBLEMS_MAX]}
        new = [problem for problem in found if problem not in self.problems]
        gone = [problem for problem in self.problems if problem not in found]
        self.problems = found
        return new, gone

    def note_cycle(self, report: JobReport, at_ms: int) -> None:
        """Note the report of a successful cycle."""
        self.cluster = report.cluster
        self.cycles += 1
        self.failed_in_row = 0
        self.last_error = ""
        self.cycle_ended_ms, self.cycle_seconds = at_ms, round(report.seconds, 3)
        self.as_of_ms = report.as_of_ms or self.as_of_ms
        self.behind = report.behind
        for name in COUNTED:
            self.counts[name] += getattr(report, name)

    def note_failure(self, error: str) -> None:
        """Note the error of a failed cycle."""
        self.failures += 1
        self.failed_in_row += 1
        self.last_error = error


@dataclass(slots=True)
class PipelineStatus:
    """The state of one run of `mqtrail pipeline run`. Times are epoch ms."""

    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    is_running: bool = True
    started_ms: int = 0
    written_ms: int = 0
    interval_ms: int = 0
    doing: str = ""  # what the cycle under way does
    upkeep: dict[str, int] = field(default_factory=dict)  # files that compaction, retention and sweep dealt with
    clusters: list[ClusterStatus] = field(default_factory=list)

    def named(self, name: str, text: str) -> str:
        """Return a text about a cluster, with its name if there are several."""
        return f"{name}: {text}" if len(self.clusters) > 1 else text


class StatusFile:
    """The file of a lake that holds a PipelineStatus."""

    def __init__(self, lake: LakePath) -> None:
        self.path = lake / FILE
        self._lock = Lock()

    def write(self, status: PipelineStatus) -> None:
        """Replace the file. OSError."""
        with self._lock:
            status.written_ms = now_ms()
            text = json.dumps(dataclasses.asdict(status), ensure_ascii=False)
            write_whole(self.path, text.encode())

    def read(self) -> PipelineStatus | None:
        """The status; None: no pipeline has written one, or the file is damaged. LakeUnreadable: the object store."""
        try:
            values = json.loads(self.path.read_text("utf-8"))
            found = msgspec.convert(values, PipelineStatus)
            return found if "clusters" in values else None
        except ObjectStoreError as error:
            raise LakeUnreadable(str(error)) from None
        except (OSError, ValueError, RecursionError, msgspec.ValidationError):
            return None


def pipeline_faults(status: PipelineStatus, at_ms: int) -> list[str]:
    """Return a sentence for each fault of the pipeline; empty if there is none. Excludes problems of the cluster."""
    found = []
    if not status.is_running:
        found.append("found a pipeline that has ended, expected a running one: start `mqtrail pipeline run`")
    elif at_ms - status.written_ms > STALE_MS:
        found.append(
            f"found a status of {(at_ms - status.written_ms) // 1000} s ago, expected one of the last "
            f"{STALE_MS // 1000} s: process {status.pid} on host {status.host} died or hangs, start it again"
        )
    for one in status.clusters:
        if one.failed_in_row:
            failed = f"the last {one.failed_in_row} cycles failed: {one.last_error}"
            found.append(status.named(one.cluster, failed))
    return found


# -- Prometheus --------------------------------------------------------------------------------------------------------


class PipelineMetric(NamedTuple):
    """kind: counter or gauge. labels: besides the common one, lake. meaning: with the unit.

    cluster: its name in the lake; '' before the first cycle of one without --cluster.
    """

    kind: str
    labels: tuple[str, ...]
    meaning: str


METRICS: Final[Mapping[str, PipelineMetric]] = {
    "mqtrail_pipeline_cycles_total": PipelineMetric(
        "counter", ("cluster", "outcome"), "cycles since the start; outcome: ok, failed"
    ),
    "mqtrail_pipeline_failed_cycles_in_row": PipelineMetric(
        "gauge", ("cluster",), "cycles that failed since the last good one"
    ),
    "mqtrail_pipeline_cycle_seconds": PipelineMetric("gauge", ("cluster",), "duration of the last good cycle, s"),
    "mqtrail_pipeline_cycle_end_timestamp_seconds": PipelineMetric(
        "gauge", ("cluster",), "when the last good cycle ended, epoch s"
    ),
    "mqtrail_pipeline_rows_total": PipelineMetric(
        "counter",
        ("cluster", "kind"),
        "read and judged since the start; kind: trace_messages, trace_records, rejects, messages, gaps, trajectories",
    ),
    "mqtrail_pipeline_behind_messages": PipelineMetric(
        "gauge", ("cluster",), "messages that the last cycle left for the next one"
    ),
    "mqtrail_pipeline_newest_answered_timestamp_seconds": PipelineMetric(
        "gauge",
        ("cluster", "source"),
        "when a broker stored the newest event in the answers, epoch s; source: trace, messages",
    ),
    "mqtrail_pipeline_freshness_seconds": PipelineMetric(
        "gauge",
        ("cluster", "source", "quantile"),
        "time from a broker's storing to the answer, in the last five minutes, s; quantile: 0.5, 0.95",
    ),
    "mqtrail_pipeline_problems": PipelineMetric(
        "gauge",
        ("cluster",),
        "brokers not asked, topics not opted in, queues not read, and so on, as of the last cycle",
    ),
    "mqtrail_pipeline_upkeep_files_total": PipelineMetric(
        "counter", ("work",), "files of the lake since the start; work: compacted, expired, swept"
    ),
    "mqtrail_answered_messages": PipelineMetric(
        "gauge", ("cluster", "code"), "messages of the last hour with the code, counted once a minute"
    ),
    "mqtrail_group_lag_messages": PipelineMetric(
        "gauge", ("cluster", "group", "topic"), "messages that the group has not read, as of the latest sample"
    ),
    "mqtrail_group_lag_seconds": PipelineMetric(
        "gauge", ("cluster", "group", "topic"), "age of the first message that the group has not read, s"
    ),
}  # fmt: skip


def _samples(status: PipelineStatus) -> Iterator[Sample]:
    """Yield the samples of the status. An unknown value has no sample."""
    for one in status.clusters:
        for name, labels, value in _samples_of(one):
            yield "mqtrail_pipeline_" + name, (one.cluster, *labels), value
    for work, count in list(status.upkeep.items()):
        yield "mqtrail_pipeline_upkeep_files_total", (work,), count


def _samples_of(status: ClusterStatus) -> Iterator[Sample]:
    yield "cycles_total", ("ok",), status.cycles
    yield "cycles_total", ("failed",), status.failures
    yield "failed_cycles_in_row", (), status.failed_in_row
    if status.cycle_seconds is not None:
        yield "cycle_seconds", (), status.cycle_seconds
    if status.cycle_ended_ms is not None:
        yield "cycle_end_timestamp_seconds", (), status.cycle_ended_ms / 1000
        yield "problems", (), len(status.problems)
    for kind, count in list(status.counts.items()):
        yield "rows_total", (kind,), count
    if status.behind is not None:
        yield "behind_messages", (), status.behind
    for source, found in list(status.freshness.items()):
        if found.newest_ms is not None:
            yield "newest_answered_timestamp_seconds", (source,), found.newest_ms / 1000
        for quantile, value in (("0.5", found.p50_ms), ("0.95", found.p95_ms)):
            if value is not None:
                yield "freshness_seconds", (source, quantile), value / 1000


def exposition(status: PipelineStatus, lake: str, answers: Answered = NOTHING) -> bytes:
    """Return the status and what the lake says in Prometheus' text exposition format. Any thread may call this."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    # Its base class is not inherited from, because prometheus_client is imported only where there is a port.
    collector: Any = _PipelineCollector([*_samples(status), *samples_of(answers)], visible(lake))
    registry.register(collector)
    return generate_latest(registry)


class _PipelineCollector:
    """Gives prometheus_client the metric families of one answer."""

    def __init__(self, samples: Iterable[Sample], lake: str) -> None:
        self._samples = samples
        self._lake = lake

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, labels, value in self._samples:
            if name not in families:
                metric = METRICS[name]
                families[name] = kinds[metric.kind](name, metric.meaning, labels=("lake", *metric.labels))
            families[name].add_metric((self._lake, *labels), value)
        yield from families.values()
