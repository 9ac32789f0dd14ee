"""`latency`: how long a stage of delivery takes, by time, topic and group."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.answers import LatencySegment
from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import Exit
from .options import ConfigFile, Json, LakeCluster, LakeFolder, time_range
from .output import show_answer, show_json


def latency(
    part: Annotated[LatencySegment, typer.Option(help="Stage of delivery to measure.")] = LatencySegment.HANDLER,
    since: Annotated[
        str, typer.Option("--from", help="Earliest begin of the stage: a time (UTC), or an age such as 2h.")
    ] = "",
    until: Annotated[str, typer.Option("--to", help="Latest begin of the stage (exclusive).")] = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show latency percentiles of one stage of delivery over time, for each topic and group."""
    from mqtrail.answers import as_json

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    with reading("reading the lake", json):
        found = lake_answers(load(config), lake, cluster).latency(part, now, first_ms, end_ms)
    if json:
        show_json(as_json(found))
    else:
        from .draw_report import latency_history

        show_answer(latency_history, found)
    return exit_of(found.scope, Exit.OK if found.spans else Exit.FAILED)
