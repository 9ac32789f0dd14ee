"""`mqtrail pipeline`: a lake's verdicts from a cluster's trace, and its upkeep. `mqtrail sample`: its samples."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Config, Layer, assignments, load
from .exits import Exit, UsageError, lake_in_use
from .options import ConfigFile, Json, LakeFolder, Namesrv, duration_ms
from .output import progress, say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.pipeline import JobConfig, JobReport

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
TraceTopic = Annotated[str | None, typer.Option("--trace-topic", help="Trace topic of the clients.")]
ReadRateMax = Annotated[
    int | None, typer.Option(min=0, help="Maximum number of messages to read per second; 0: no limit.")
]
Thresholds = Annotated[
    list[str] | None, typer.Option("--threshold", metavar="FIELD=VALUE", help="Threshold of the judgement; repeatable.")
]
Master = Annotated[str | None, typer.Option(help="Spark master. [default: local[*]]")]
SparkConf = Annotated[
    list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="Spark setting; repeatable.")
]
SampleInterval = Annotated[
    str | None, typer.Option(help="Time between two samples of groups, offsets and clients. [default: 5s]")
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
    job_config = _job_config(
        config,
        namesrv,
        lake,
        {
            "topics": _topics(topic, no_topics),
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

    with lake_in_use(), _progress_reports(json) as say, PipelineJob(job_config, say) as job:
        report = job.once()
    _show(report, json)
    return Exit.OK


def run(
    namesrv: Namesrv = None,
    lake: LakeFolder = None,
    topic: Topics = None,
    no_topics: NoTopics = False,
    cluster: Cluster = None,
    trace_topic: TraceTopic = None,
    read_rate_max: ReadRateMax = None,
    interval: Annotated[str, typer.Option(help="Time between the starts of two cycles, for example 30s.")] = "30s",
    sample_interval: SampleInterval = None,
    retention: Retention = None,
    threshold: Thresholds = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Ingest and judge in a loop until SIGINT or SIGTERM. Unread messages that are gone become gaps."""
    interval_ms = duration_ms(interval, "--interval")
    job_config = _job_config(
        config,
        namesrv,
        lake,
        {
            "topics": _topics(topic, no_topics),
            "cluster": cluster,
            "trace_topic": trace_topic,
            "read_rate_max": read_rate_max,
            "sample_interval_ms": _sample_interval_ms(sample_interval),
            "retention_ms": None if retention is None else duration_ms(retention, "--retention"),
        },
        threshold,
        {"master": master},
        spark_conf,
    )
    from mqtrail.pipeline import PipelineJob

    stop = Event()
    with lake_in_use(), _progress_reports(json) as say, PipelineJob(job_config, say) as job:
        for number in (signal.SIGINT, signal.SIGTERM):  # after Spark has set its own handlers
            signal.signal(number, lambda *_: stop.set())
        job.run(interval_ms, stop)
    return Exit.OK


def sample(
    namesrv: Namesrv = None,
    lake: LakeFolder = None,
    topic: Topics = None,
    no_topics: NoTopics = False,
    cluster: Cluster = None,
    trace_topic: TraceTopic = None,
    sample_interval: SampleInterval = None,
    config: ConfigFile = None,
) -> int:
    """Sample groups, offsets and clients until SIGINT or SIGTERM, without Spark, beside a pipeline or alone."""
    job_config = _job_config(
        config,
        namesrv,
        lake,
        {
            "topics": _topics(topic, no_topics),
            "cluster": cluster,
            "trace_topic": trace_topic,
            "sample_interval_ms": _sample_interval_ms(sample_interval),
        },
        None,
        {},
        None,
    )
    from mqtrail.pipeline import sample_alone

    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with lake_in_use():
        sample_alone(job_config, stop, warn)
    return Exit.OK


def migrate(lake: LakeFolder = None, config: ConfigFile = None) -> int:
    """Bring a lake that mqtrail 0.1 wrote to this version, in its place. Stop its pipeline first.

    An interrupted migration is continued by the same command.
    """
    folder = _lake_folder(load(config), lake)
    from mqtrail.lake import migrate as steps

    return _show_steps(steps(folder))


def rebuild(lake: LakeFolder = None, config: ConfigFile = None) -> int:
    """Make silver anew from bronze and empty gold: the next cycle judges every message again. Stop its pipeline first.

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
    """The interval in ms; None: not given. UsageError: it is no time, or below a second."""
    if text is None:
        return None
    found = duration_ms(text, "--sample-interval")
    if found < SAMPLE_INTERVAL_MS_MIN:
        raise UsageError(f"found --sample-interval {text}, expected at least 1s: each sample asks for every group")
    return found


def _topics(topics: list[str] | None, no_topics: bool) -> list[str] | None:
    if topics and no_topics:
        raise UsageError("found --topic and --no-topics, expected at most one")
    return [] if no_topics else topics or None


def _job_config(
    config: Path | None,
    namesrv: str | None,
    lake: Path | None,
    job: dict[str, object],
    thresholds: list[str] | None,
    session: dict[str, object],
    spark_conf: list[str] | None,
) -> JobConfig:
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
    return started


def _lake_folder(settings: Config, lake: Path | None) -> Path:
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
