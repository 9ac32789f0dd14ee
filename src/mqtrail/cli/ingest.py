"""`mqtrail pipeline`: a lake's verdicts from a cluster's trace, and its upkeep. `mqtrail sample`: its samples."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Config, Layer, assignments, load, namesrv_addresses
from .exits import Exit, SourceUnavailable, UsageError, lake_in_use
from .options import ConfigFile, Json, LakeFolder, Namesrv, duration_ms
from .output import progress, say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.lake import LakePath
    from mqtrail.pipeline import ClusterStatus, JobConfig, JobReport, PipelineStatus

SAMPLE_INTERVAL_MS_MIN = 1_000

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="Business topic whose messages are read as evidence, '*' for all; repeatable. "
        "[default: all topics of mqtrail brokers, none of Apache brokers]",
    ),
]
NoTopics = Annotated[bool, typer.Option("--no-topics", help="Read the trace topic only, no business topics.")]
Cluster = Annotated[
    str | None, typer.Option(help="Cluster name to store in the lake. [default: as registered with the name server]")
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="NAME|NAME=HOST:PORT[;…]",
        help="Cluster name to store in the lake; of several clusters, each one's name and name servers, repeatable. "
        "[default: as registered with the name server]",
    ),
]
TraceTopic = Annotated[str | None, typer.Option("--trace-topic", help="Trace topic of the clients.")]
ReadRateMax = Annotated[
    int | None, typer.Option(min=0, help="Maximum number of messages to read per second; 0: no limit.")
]
Thresholds = Annotated[
    list[str] | None, typer.Option("--threshold", metavar="FIELD=VALUE", help="Threshold of the judgement; repeatable.")
]
Master = Annotated[
    str | None, typer.Option(help="Spark master: local[N], spark://HOST:PORT, yarn or k8s://URL. [default: local[*]]")
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf", "--conf", metavar="KEY=VALUE", help="Spark setting, above spark-defaults.conf; repeatable."
    ),
]
SampleInterval = Annotated[
    str | None, typer.Option(help="Time between two samples of groups, offsets and clients. [default: 5s]")
]
MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65_535, help="Port of the Prometheus metrics; 0: any free. [default: none]")
]
MetricsHost = Annotated[str | None, typer.Option(help="IP address to serve the metrics on. [default: 127.0.0.1]")]
StartAt = Annotated[
    str | None,
    typer.Option(
        "--starting-offsets",
        help="Start of a new lake: earliest or latest; `pipeline backfill` reads older messages. [default: earliest]",
    ),
]
Retention = Annotated[str | None, typer.Option(help="Time that the lake keeps its data, for example 90d.")]


def once(
    namesrv: Namesrv = None,
    lake: LakeFolder = None,
    topic: Topics = None,
    no_topics: NoTopics = False,
    cluster: Cluster = None,
    trace_topic: TraceTopic = None,
    read_rate_max: ReadRateMax = None,
    fail_on_data_loss: Annotated[
        bool | None,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="When unread messages are gone from the cluster: fail, or record a gap and continue. [default: fail]",
        ),
    ] = None,
    threshold: Thresholds = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Ingest and judge the current messages of a cluster once."""
    started = job_config(
        config,
        namesrv,
        lake,
        {
            "topics": topics_of(topic, no_topics),
            "cluster": cluster,
            "trace_topic": trace_topic,
            "read_rate_max": read_rate_max,
            "fail_on_data_loss": fail_on_data_loss,
        },
        threshold,
        {"master": master},
        spark_conf,
    )
    from mqtrail.pipeline import PipelineJob

    with lake_in_use(), _progress_reports(json) as say, PipelineJob(started, say) as job:
        report = job.once()
    _show(report, json)
    return Exit.OK


def run(
    namesrv: Namesrv = None,
    lake: LakeFolder = None,
    topic: Topics = None,
    no_topics: NoTopics = False,
    cluster: Clusters = None,
    trace_topic: TraceTopic = None,
    read_rate_max: ReadRateMax = None,
    starting_offsets: StartAt = None,
    interval: Annotated[str | None, typer.Option(help="Time between the starts of two cycles. [default: 2s]")] = None,
    sample_interval: SampleInterval = None,
    retention: Retention = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    threshold: Thresholds = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Ingest and judge in a loop until SIGINT or SIGTERM. Unread messages that are gone become gaps."""
    started = job_config(
        config,
        namesrv,
        lake,
        {
            "topics": topics_of(topic, no_topics),
            **clusters_of(cluster, namesrv),
            "trace_topic": trace_topic,
            "read_rate_max": read_rate_max,
            "starting_offsets": starting_offsets,
            "sample_interval_ms": _sample_interval_ms(sample_interval),
            "interval_ms": None if interval is None else duration_ms(interval, "--interval"),
            "retention_ms": None if retention is None else duration_ms(retention, "--retention"),
            "metrics_port": metrics_port,
            "metrics_host": metrics_host,
        },
        threshold,
        {"master": master},
        spark_conf,
        several=True,
    )
    from mqtrail.pipeline import PipelineJob

    stop = Event()
    stop_on_signals(stop)
    port = started.metrics_port
    metrics = None if port is None else (started.metrics_host, port)
    with lake_in_use(), PipelineJob(started, warn) as job:
        stop_on_signals(stop)  # Spark has set its own handlers
        job.run(started.interval_ms, stop, metrics=metrics, show=_show_cycle if json else lambda report: None)
    return Exit.OK


def status(lake: LakeFolder = None, config: ConfigFile = None, json: Json = False) -> int:
    """Show what the pipeline of a lake does: its cluster, last cycle, freshness, problems and backfills.

    Exit code 1: it has a problem.
    """
    from mqtrail.clock import now_ms
    from mqtrail.pipeline import BackfillFiles, StatusFile, pipeline_faults, shown

    folder = load(config).lake_to_read(lake)
    with lake_in_use():
        found = StatusFile(folder).read()
        backfills = BackfillFiles(folder).all()
    if found is None:
        raise SourceUnavailable(
            f"{folder}: found no readable status, expected one: start `mqtrail pipeline run` on this lake"
        )
    wrong = pipeline_faults(found, now_ms())
    if json:
        own = [dataclasses.asdict(one) for one in backfills]
        show_json({**dataclasses.asdict(found), "backfills": own, "wrong": wrong})
    else:
        _show_status(found)
        for line in shown([one for one in backfills if one.is_open] or backfills[-1:]):
            say(line)
        for each in wrong:
            warn(each)
    return Exit.FAILED if wrong else Exit.OK


def stop_on_signals(stop: Event) -> None:
    """Let SIGINT and SIGTERM set an event."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def _show_cycle(report: JobReport) -> None:
    show_json(dataclasses.asdict(report))


def _show_status(found: PipelineStatus) -> None:
    from .draw import day_clock

    state = f"process {found.pid} on host {found.host}"
    say(f"{'running' if found.is_running else 'ended'}: {state}, started {day_clock(found.started_ms)} UTC")
    for one in found.clusters:
        _show_cluster(one)


def _show_cluster(found: ClusterStatus) -> None:
    from .draw import day_clock

    if found.cluster:
        say(f"cluster: {found.cluster}")
    if found.cycle_ended_ms is not None:
        say(f"last cycle: {day_clock(found.cycle_ended_ms)} UTC, {found.cycle_seconds} s")
    if found.as_of_ms is not None:
        say(f"last judgement: as of {day_clock(found.as_of_ms)} UTC")
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.counts.items())
    say(f"since its start: {found.cycles} cycles, {found.failures} failed; {counts}")
    say(f"behind: {'unknown' if found.behind is None else found.behind} messages")
    for source, fresh in found.freshness.items():
        newest = "unknown" if fresh.newest_ms is None else f"{day_clock(fresh.newest_ms)} UTC"
        within = (
            "nothing in the last five minutes"
            if fresh.p50_ms is None or fresh.p95_ms is None
            else f"in answers within {fresh.p50_ms / 1000:.1f} s (p50), {fresh.p95_ms / 1000:.1f} s (p95)"
        )
        say(f"{source}: newest in answers {newest}; {within}")
    for problem, since_ms in found.problems.items():
        say(f"problem since {day_clock(since_ms)} UTC: {problem}")


def sample(
    namesrv: Namesrv = None,
    lake: LakeFolder = None,
    topic: Topics = None,
    no_topics: NoTopics = False,
    cluster: Clusters = None,
    trace_topic: TraceTopic = None,
    sample_interval: SampleInterval = None,
    config: ConfigFile = None,
) -> int:
    """Sample groups, offsets and clients until SIGINT or SIGTERM, without Spark, beside a pipeline or alone."""
    started = job_config(
        config,
        namesrv,
        lake,
        {
            "topics": topics_of(topic, no_topics),
            **clusters_of(cluster, namesrv),
            "trace_topic": trace_topic,
            "sample_interval_ms": _sample_interval_ms(sample_interval),
        },
        None,
        {},
        None,
        several=True,
    )
    from mqtrail.pipeline import sample_alone

    stop = Event()
    stop_on_signals(stop)
    with lake_in_use():
        sample_alone(started, stop, warn)
    return Exit.OK


def migrate(lake: LakeFolder = None, config: ConfigFile = None) -> int:
    """Migrate a lake of mqtrail 0.1 to this version, in place. Stop its pipeline first.

    An interrupted migration is continued by the same command.
    """
    folder = _lake_folder(load(config), lake)
    from mqtrail.lake import migrate as steps

    return _show_steps(steps(folder))


def rebuild(lake: LakeFolder = None, config: ConfigFile = None) -> int:
    """Rebuild silver from bronze and empty gold: the next cycle judges every message again. Stop its pipeline first.

    An interrupted rebuild leaves the lake as it was.
    """
    folder = _lake_folder(load(config), lake)
    from mqtrail.lake import rebuild as steps

    return _show_steps(steps(folder))


def _show_steps(steps: Iterator[str]) -> int:
    with lake_in_use():
        for line in steps:
            say(line)
    return Exit.OK


def _sample_interval_ms(text: str | None) -> int | None:
    """Return the interval in ms; None: not given. UsageError: it is not a duration, or below a second."""
    if text is None:
        return None
    found = duration_ms(text, "--sample-interval")
    if found < SAMPLE_INTERVAL_MS_MIN:
        raise UsageError(f"found --sample-interval {text}, expected at least 1s: each sample asks for every group")
    return found


def topics_of(topics: list[str] | None, no_topics: bool) -> list[str] | None:
    """The setting of --topic and --no-topics. UsageError."""
    if topics and no_topics:
        raise UsageError("found --topic and --no-topics, expected at most one")
    return [] if no_topics else topics or None


def clusters_of(texts: list[str] | None, namesrv: str | None) -> dict[str, object]:
    """The settings of --cluster: one name, or names with addresses. UsageError."""
    if not texts or not any("=" in text for text in texts):
        if texts and len(texts) > 1:
            raise UsageError(f"found --cluster {texts[1]}, expected NAME=HOST:PORT for each of several clusters")
        return {"cluster": texts[0] if texts else None}
    if namesrv is not None:
        raise UsageError("found --namesrv and --cluster NAME=HOST:PORT, expected one of them")
    return {"clusters": texts}


def job_config(
    config: Path | None,
    namesrv: str | None,
    lake: str | None,
    job: dict[str, object],
    thresholds: list[str] | None,
    session: dict[str, object],
    spark_conf: list[str] | None,
    *,
    several: bool = False,
) -> JobConfig:
    """The settings of a job, from flags, the environment and a file. several: it may read more than one cluster.

    UsageError.
    """
    settings = load(config)
    folder = _lake_folder(settings, lake)
    conf = {name: str(value) for name, value in assignments(spark_conf or [], "--spark-conf").items()}
    started: JobConfig = settings.room(
        "pipeline",
        Layer("flag", {name: value for name, value in job.items() if value is not None}),
        fixed={
            "namesrv": settings.namesrv(namesrv),
            "lake": folder,
            "instance": settings.room("client"),
            "settings": settings.room("judge", Layer("--threshold", assignments(thresholds or [], "--threshold"))),
            "session": dataclasses.replace(
                settings.room("spark", Layer("flag", {n: v for n, v in session.items() if v is not None})),
                spark_conf={**settings.spark_conf(), **conf},
            ),
        },
    )
    for one in started.each() if started.clusters else ():
        namesrv_addresses(one.namesrv)
    return _chosen(started, job, several=several)


def _chosen(started: JobConfig, job: Mapping[str, object], *, several: bool) -> JobConfig:
    """Of several clusters, that of the flag --cluster. UsageError: one is needed, and none or another one is named."""
    if not started.clusters or job.get("clusters") or (several and job.get("cluster") is None):
        return started
    for one in started.each():
        if one.cluster == job.get("cluster"):
            return one
    names = ", ".join(one.cluster for one in started.each())
    found = f"--cluster {job['cluster']}" if job.get("cluster") else f"{len(started.clusters)} clusters"
    raise UsageError(f"found {found} and [pipeline] clusters, expected --cluster with one of {names}")


def _lake_folder(settings: Config, lake: str | None) -> LakePath:
    folder = settings.lake(lake)
    if folder is None:
        raise UsageError("found no --lake: pass the folder to write the tables to")
    return folder


@contextmanager
def _progress_reports(json: bool) -> Iterator[Callable[[str], None]]:
    """Yield the job's progress callback: one updated line in a terminal, otherwise one line each on standard error."""
    with progress("starting Spark", enabled=not json) as shown:
        if shown is not None:
            yield lambda text: shown.update(shown.task_ids[0], description=text)
        elif json:
            yield lambda text: None
        else:
            yield warn


def _show(report: JobReport, json: bool) -> None:
    for problem in report.problems:
        warn(problem)
    if json:
        show_json(dataclasses.asdict(report))
        return
    from .draw import day_clock

    say(
        f"read {report.trace_messages} trace messages with {report.trace_records} records ({report.rejects} did not "
        f"decode) and {report.messages} stored messages, {report.gaps} gaps; judged {report.trajectories} messages as "
        f"of {day_clock(report.as_of_ms)} UTC, in {report.seconds:.1f} s"
    )
