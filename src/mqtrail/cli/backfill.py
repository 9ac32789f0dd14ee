"""`mqtrail pipeline backfill`: what a pipeline left out, read in pieces by it or by this command."""

from __future__ import annotations

import dataclasses
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.clock import now_ms

from .exits import Exit, UsageError, lake_in_use
from .ingest import (
    Cluster,
    Master,
    NoTopics,
    ReadRateMax,
    SparkConf,
    Thresholds,
    Topics,
    TraceTopic,
    job_config,
    stop_on_signals,
    topics_of,
)
from .options import ConfigFile, Json, LakeFolder, Namesrv, moment_ms
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.lake import LakePath
    from mqtrail.pipeline import Backfill, BackfillFiles, JobConfig

POLL_S = 1.0


def backfill(
    begin: Annotated[
        str | None, typer.Option("--from", help="Earliest store time (UTC), or an age such as 7d.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Latest store time. [default: now]")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show the progress until a running pipeline has finished it.")
    ] = False,
    cancel: Annotated[
        str | None, typer.Option(metavar="ID", help="End this backfill; the data it has read is kept.")
    ] = None,
    namesrv: Namesrv = None,
    lake: LakeFolder = None,
    topic: Topics = None,
    no_topics: NoTopics = False,
    cluster: Cluster = None,
    trace_topic: TraceTopic = None,
    read_rate_max: ReadRateMax = None,
    threshold: Thresholds = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Read messages and trace that the pipeline skipped, stored in a given period.

    The running pipeline of the lake reads it in pieces, between its cycles. If none runs, this command reads and judges
    it itself; interrupted, it is continued by the same command or by the next pipeline.
    """
    settings = job_config(
        config,
        namesrv,
        lake,
        {
            "topics": topics_of(topic, no_topics),
            "cluster": cluster,
            "trace_topic": trace_topic,
            "read_rate_max": read_rate_max,
        },
        threshold,
        {"master": master},
        spark_conf,
    )
    from mqtrail.pipeline import BackfillFiles

    stop = Event()
    stop_on_signals(stop)
    with lake_in_use():
        files = BackfillFiles(settings.lake)
        if cancel is not None:
            return _cancelled(files, cancel, json)
        return _asked(files, settings, _times(begin, end), stop, wait=wait, json=json)


def _times(begin: str | None, end: str | None) -> tuple[int, int]:
    now = now_ms()
    if begin is None:
        raise UsageError("found no --from, expected the earliest store time to read, or --cancel ID")
    times = moment_ms(begin, now, "--from"), now if end is None else moment_ms(end, now, "--to")
    if times[0] >= times[1]:
        raise UsageError("found --from at or after --to, expected --from to be earlier")
    return times


def _cancelled(files: BackfillFiles, backfill_id: str, json: bool) -> int:
    found = files.cancel(backfill_id)
    if json:
        show_json(dataclasses.asdict(found))
    elif found.is_open:
        say(f"backfill {found.id} ends after the current piece; the lake's pipeline ends it, when one runs")
    else:
        say(f"backfill {found.id} has ended before: {found.state}")
    return Exit.OK


def _asked(
    files: BackfillFiles, settings: JobConfig, times: tuple[int, int], stop: Event, *, wait: bool, json: bool
) -> int:
    from mqtrail.lake import Lake, LakeBusy
    from mqtrail.pipeline import PipelineJob, StartingOffsets

    Lake.create(settings.lake)
    if not settings.cluster:
        _check_single(settings.lake)
    asked = files.add(*times, settings.cluster)
    show_progress = _ProgressPrinter(json=json)
    # A new lake gets what was asked for, not all that there is.
    alone = dataclasses.replace(settings, starting_offsets=StartingOffsets.LATEST)
    try:
        with PipelineJob(alone, warn) as job:
            stop_on_signals(stop)  # Spark has set its own handlers
            job.backfill(stop, show_progress)
            return _result(files.one(asked.id), show_progress)
    except LakeBusy:
        if not wait:
            show_progress(asked)
            warn("the process that writes to this lake reads it between its cycles: `mqtrail pipeline status` shows it")
            return Exit.OK
    now = asked
    while now.is_open and not stop.wait(POLL_S):
        now = files.one(asked.id)
        show_progress(now)
    return _result(now, show_progress)


def _check_single(lake: LakePath) -> None:
    """UsageError: the pipeline of a lake reads several clusters."""
    from mqtrail.pipeline import StatusFile

    found = StatusFile(lake).read()
    if found is not None and found.is_running and len(found.clusters) > 1:
        names = ", ".join(one.cluster for one in found.clusters)
        raise UsageError(f"found no --cluster, expected one of those that the lake's pipeline reads: {names}")


class _ProgressPrinter:
    """Prints the progress of a backfill if it has changed."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._last: Backfill | None = None

    def __call__(self, one: Backfill) -> None:
        from mqtrail.pipeline import shown

        seen = dataclasses.replace(one, updated_ms=0)
        if seen == self._last:
            return
        self._last = seen
        if self._json:
            show_json(dataclasses.asdict(one))
        else:
            for line in shown([one]):
                say(line)


def _result(one: Backfill, show_progress: _ProgressPrinter) -> int:
    """Report how it ended; 1 if something is left."""
    show_progress(one)
    if not one.is_open:
        return Exit.OK
    warn(f"found backfill {one.id} not ended, expected all of it to be read: run the same command again to continue")
    return Exit.FAILED
