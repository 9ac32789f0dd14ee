"""`backlog`: what slows a group down, and the ways out."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.wire import MQError

from .config import load
from .exits import Exit, SourceUnavailable, UsageError
from .lag import OVER_MS_MAX
from .operate import admin_of
from .options import ConfigFile, Json, Namesrv, duration_ms
from .output import progress, show_answer, show_json, warn

Group = Annotated[str, typer.Argument(help="Consumer group.")]


def backlog_show(
    group: Group,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only this topic. [default: all that the group reads]")
    ] = None,
    over: Annotated[str, typer.Option("--over", help="Time between the two readings of the rates.")] = "10s",
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show why messages of a group wait: queues, members, rates, time to drain, and what each way out would give."""
    over_ms = duration_ms(over, "--over")
    if not 0 < over_ms <= OVER_MS_MAX:
        raise UsageError(f"--over: found {over!r}, expected more than 0s and at most 1h")
    from mqtrail.answers import as_json
    from mqtrail.answers.backlog import read_backlog

    what = f"reading twice, {over} apart, then querying the members"
    with admin_of(load(config), namesrv) as admin, progress(what, enabled=not json):
        try:
            found = read_backlog(admin, group, topic, over_ms)
        except MQError as error:  # no name server answers
            raise SourceUnavailable(str(error)) from error
    if found is None:
        warn(f"found no group {group!r}: brokers have neither a configuration, nor an offset, nor a member of it")
        return Exit.FAILED
    if json:
        show_json(as_json(found))
    else:
        from .draw_backlog import draw_backlog

        show_answer(draw_backlog, found)
    for problem in found.problems:
        warn(problem)
    if found.problems:
        return Exit.CANNOT_LOOK
    if topic is not None and not found.topics:
        warn(f"group {group!r} has neither an offset nor a subscription in topic {topic!r}")
        return Exit.FAILED
    return Exit.OK
