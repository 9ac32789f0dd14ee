"""`clocks`: how far the clocks of hosts differ from those of brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import Exit
from .options import ConfigFile, Json, LakeCluster, LakeFolder, time_range
from .output import show_answer, show_json


def clocks(
    since: Annotated[str, typer.Option("--from", help="Begin: a time (UTC), or an age such as 2h.")] = "",
    until: Annotated[str, typer.Option("--to", help="End (exclusive).")] = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Estimate from the order of events how far the clocks of hosts differ from those of brokers."""
    from mqtrail.answers import as_json

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    with reading("reading the lake", json):
        found = lake_answers(load(config), lake, cluster).clocks(now, first_ms, end_ms)
    if json:
        show_json(as_json(found))
    else:
        from .draw_clocks import host_clocks

        show_answer(host_clocks, found)
    return exit_of(found.scope, Exit.OK if found.clocks else Exit.FAILED)
