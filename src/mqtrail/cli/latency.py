"""`latency`: how long a stage of delivery takes, by time, topic and group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.answers import LatencySegment
from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import Exit, UsageError
from .options import ConfigFile, Json, LakeCluster, LakeFolder, time_range
from .output import show_answer, show_json

if TYPE_CHECKING:
    from mqtrail.answers import Answers


def latency(
    part: Annotated[
        LatencySegment | None, typer.Option(help="Stage of delivery to measure. [default: handler; with --against all]")
    ] = None,
    since: Annotated[
        str, typer.Option("--from", help="Earliest begin of the stage: a time (UTC), or an age such as 2h.")
    ] = "",
    until: Annotated[str, typer.Option("--to", help="Latest begin of the stage (exclusive).")] = "",
    against: Annotated[
        str, typer.Option(help="Compare with the span of the same length that begins then: a time (UTC), or an age.")
    ] = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show latency percentiles of one stage of delivery over time, for each topic and group."""
    from mqtrail.answers import as_json

    now = now_ms()
    if against:
        return _compare(lake_answers(load(config), lake, cluster), (since, until, against), now, part, json)
    first_ms, end_ms = time_range(since, until, now)
    with reading("reading the lake", json):
        answers = lake_answers(load(config), lake, cluster)
        found = answers.latency(part or LatencySegment.HANDLER, now, first_ms, end_ms)
    if json:
        show_json(as_json(found))
    else:
        from .draw_report import latency_history

        show_answer(latency_history, found)
    return exit_of(found.scope, Exit.OK if found.spans else Exit.FAILED)


def _compare(answers: Answers, times: tuple[str, str, str], now: int, part: LatencySegment | None, json: bool) -> int:
    """Show two spans side by side. times: --from, --to and --against."""
    from mqtrail.answers import as_json, compared_spans

    since, until, against = times
    if not since:
        raise UsageError("found --against without --from, expected both: the begins of the two spans")
    try:
        before, after = compared_spans(since, until, against, now)
    except ValueError as error:
        raise UsageError(f"--from, --to, --against: {error}") from None
    with reading("reading the lake", json):
        found = answers.compare_latency(before, after, now, part)
    if json:
        show_json(as_json(found))
    else:
        from .draw_report import latency_comparison

        show_answer(latency_comparison, found)
    return exit_of(found.scope, Exit.OK if found.changes else Exit.FAILED)
