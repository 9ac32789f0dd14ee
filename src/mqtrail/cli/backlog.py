"""`backlog`: what slows a group down, and the remedies."""

from __future__ import annotations

import getpass
import itertools
import re
import shlex
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.wire import MQError

from .config import load
from .exits import Exit, SourceUnavailable, UsageError
from .lag import OVER_MS_MAX
from .messages import Body, message_row, print_message
from .operate import DryRun, Yes, admin_of, confirm_change, table, warn_failures
from .options import ConfigFile, Json, Namesrv, duration_ms, moment_ms
from .output import progress, say, show_answer, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers.backlog import SkipPlan

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
    """Show why a group has a backlog: queues, members, rates, time to drain, and the effect of each remedy."""
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


def backlog_skip(
    group: Group,
    topic: Annotated[str, typer.Option("--topic", help="Topic whose backlog is skipped.")],
    to: Annotated[
        str, typer.Option("--to", help="Skip messages stored before this time (UTC) or age such as 2h; end: all.")
    ],
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            readable=False,
            help="New file for the record. [default: backlog-skip-GROUP-TOPIC-MS.jsonl, MS: the time in ms]",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Skip the backlog of a group in a topic, and keep a record of the skipped messages. No queue moves backward."""
    from mqtrail.answers.backlog import add_outcomes, perform_skip, plan_skip, write_record
    from mqtrail.clock import now_ms

    at_ms = now_ms()
    to_ms = None if to == "end" else moment_ms(to, at_ms, "--to")
    settings = load(config)
    with admin_of(settings, namesrv) as admin:
        with progress("querying the brokers", enabled=not json):
            plan = plan_skip(admin, group, topic, to_ms)
        value = _planned(plan)
        if not json:
            _draw_plan(plan)
        if dry_run or not plan.queues:
            if json:
                show_json(value | {"record": None, "outcomes": []})
            else:
                say("nothing was changed")
            return Exit.OK if dry_run or plan.kept_count else Exit.FAILED
        confirm_change(f"make group {group!r} skip {plan.count} messages of topic {topic!r}", yes)
        path = record or Path(f"backlog-skip-{_of_file(group)}-{_of_file(topic)}-{at_ms}.jsonl")
        write_record(path, plan, f"{getpass.getuser()}@{socket.gethostname()}", at_ms)
        outcomes = perform_skip(admin, plan)
        add_outcomes(path, outcomes)
    failures = {one.place: one.error for one in outcomes if one.error}
    if json:
        show_json(value | {"record": str(path), "outcomes": [asdict(one) for one in outcomes]})
    else:
        say(f"skipped {len(outcomes) - len(failures)} of {len(outcomes)} queues; record: {path}")
        say(f"to read what was skipped: {shlex.join(('mqtrail', 'backlog', 'skipped', str(path)))}")
    warn_failures(failures, f"did not move {group!r}")
    return Exit.FAILED if failures else Exit.OK


def _planned(plan: SkipPlan) -> dict[str, Any]:
    queues = [asdict(one) | {"count": one.count} for one in plan.queues]
    return {"group": plan.group_name, "topic": plan.topic, "to_ms": plan.to_ms, "count": plan.count, "queues": queues}


def _draw_plan(plan: SkipPlan) -> None:
    from .draw import day_clock

    rows = [
        (one.place, one.consumer_offset, one.end_offset, one.count, day_clock(one.first_ms), day_clock(one.last_ms))
        for one in plan.queues
    ]
    if rows:
        headings = ("queue", "offset", "new offset", "skipped", "stored from (UTC)", "to")
        table(headings, rows, f"{plan.group_name} on {plan.topic}: {plan.count} messages")
    if plan.kept_count:
        say(f"{plan.kept_count} queues have nothing to skip")


def _of_file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def backlog_skipped(
    record: Annotated[Path, typer.Argument(readable=False, help="Record of `mqtrail backlog skip`.")],
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of messages; 0: no limit.")] = 100,
    body: Body = True,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Print the messages listed in a record that the queues still keep. No offset is committed."""
    from mqtrail.answers.backlog import read_record, skipped_messages

    topic, queues = read_record(record)
    wanted = sum(one.count for one in queues)
    count = 0
    with admin_of(load(config), namesrv) as admin:
        for message in itertools.islice(skipped_messages(admin, topic, queues), limit or None):
            print_message(message_row(message, body=body), json)
            count += 1
    if limit and count == limit < wanted:
        warn(f"stopped after {limit} messages; pass --limit 0 to print all")
    elif count < wanted:
        warn(f"found {count} of {wanted} messages: the others expired, or their queue was deleted")
    return Exit.OK if count else Exit.FAILED
