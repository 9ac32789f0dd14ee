"""`dead-letters`: why each failed, and how many failed alike."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import Exit
from .options import ConfigFile, Json, LakeCluster, LakeFolder, SentFrom, SentTo, time_range
from .output import show_answer, show_json


def dead_letters(
    group: Annotated[str, typer.Option(help="Consumer group of the dead letters. [default: all]")] = "",
    topic: Annotated[str, typer.Option(help="Topic of the messages. [default: all]")] = "",
    error: Annotated[
        str | None,
        typer.Option(help="Only this error, as shown in the counts; '': unknown. [default: any]", show_default=False),
    ] = None,
    since: SentFrom = "",
    until: SentTo = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of letters, newest first.")] = 20,
    skip: Annotated[int, typer.Option(min=0, help="Number of newest matches to skip.")] = 0,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List the dead letters of the lake with the error of each attempt, and count those that failed alike."""
    from mqtrail.answers import DeadLetterConditions, as_json

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    wanted = DeadLetterConditions(
        group_name=group,
        topic=topic,
        error=error,
        first_ms=first_ms,
        end_ms=end_ms,
        limit=limit,
        skip=skip,
    )
    with reading("reading the lake", json):
        found = lake_answers(load(config), lake, cluster).dead_letters(wanted, now)
    if json:
        show_json(as_json(found))
    else:
        from .draw_dead_letters import letters

        show_answer(letters, found)
    return exit_of(found.scope, Exit.OK if found.letters else Exit.FAILED)
