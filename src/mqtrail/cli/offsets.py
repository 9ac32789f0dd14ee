"""`offset`: where a group stands, and moving it by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.cli.config import load
from mqtrail.cli.exits import Exit, UsageError
from mqtrail.cli.operate import Yes, admin_of, ask_before, asked, failures_of, table, warn_of
from mqtrail.cli.options import ConfigFile, Json, Namesrv, moment_ms
from mqtrail.cli.output import progress, say, show_json

if TYPE_CHECKING:
    from mqtrail.wire import MessageQueue

Group = Annotated[str, typer.Argument(help="Consumer group.")]
Topic = Annotated[str, typer.Argument(help="Topic.")]


def offset_show(
    group: Group, topic: Topic, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False
) -> int:
    """Show what a group committed on each queue of a topic; '-' where it committed nothing."""
    from mqtrail.wire import MQError

    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with admin_of(load(config), namesrv) as admin, progress("asking the brokers", enabled=not json):
        for queue in admin.queues(topic):
            try:
                first, end = admin.min_offset(queue), admin.max_offset(queue)
                consumed = admin.consumer_offset(group, queue)
            except MQError as error:
                failures[f"{queue.broker_name}/{queue.queue_id}"] = str(error)
                continue
            behind = None if consumed is None else max(0, end - consumed)
            rows.append(_place(queue) | {"first": first, "end": end, "committed": consumed, "behind": behind})
    if not json:
        table(("broker", "queue", "first", "end", "committed", "behind"), [list(row.values()) for row in rows])
    return asked({"group": group, "topic": topic, "queues": rows}, failures, json)


def _place(queue: MessageQueue) -> dict[str, Any]:
    return {"broker": queue.broker_name, "queue": queue.queue_id}


def offset_reset(
    group: Group,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help="first, end, a moment (UTC), or an age as in 2h.")],
    keep: Annotated[bool, typer.Option("--no-skip", help="Never forwards, past messages it has not consumed.")] = False,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="This queue of each broker alone (5.x).")] = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Move a group to the first message, to the end, or to what was stored from a moment on."""
    from mqtrail.client.identity import now_ms

    at_ms = {"first": 0, "end": -1}.get(to)
    if at_ms is None:
        at_ms = moment_ms(to, now_ms(), "--to")
    ask_before(f"move group {group!r} on topic {topic!r} to {to}: messages are skipped, or come again", yes)
    with admin_of(load(config), namesrv) as admin, progress("asking the brokers", enabled=not json):
        done = admin.reset_offset(group, topic, at_ms, force=not keep, queue_id=queue)
    moved = {one: offset for found in done.values() for one, offset in found.offset_table.items()}
    return _moved(group, topic, moved, failures_of(done), json)


def offset_skip(
    group: Group,
    topic: Topic,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Move a group to the end of a topic: what waits is never consumed by it."""
    ask_before(f"have group {group!r} skip all that waits in topic {topic!r}", yes)
    with admin_of(load(config), namesrv) as admin, progress("asking the brokers", enabled=not json):
        done = admin.skip_backlog(group, topic)
    moved = {queue: offset for found in done.values() for queue, offset in found.offset_table.items()}
    return _moved(group, topic, moved, failures_of(done), json)


def offset_set(
    group: Group,
    topic: Topic,
    place: Annotated[list[str], typer.Argument(help="BROKER/QUEUE=OFFSET, as broker-a/0=42; several.")],
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Write a group's offsets queue by queue. Its live members write over it: stop them first."""
    from mqtrail.wire import MessageQueue

    wanted: dict[MessageQueue, int] = {}
    for text in place:
        where, _, offset = text.partition("=")
        broker, _, number = where.rpartition("/")
        if not broker or not number.isdigit() or not offset.isdigit():
            raise UsageError(f"found {text!r}, expected BROKER/QUEUE=OFFSET, as in broker-a/0=42")
        wanted[MessageQueue(topic, broker, int(number))] = int(offset)
    ask_before(f"write {len(wanted)} offsets of group {group!r} on topic {topic!r}", yes)
    with admin_of(load(config), namesrv) as admin:
        moved, failed = admin.set_offsets(group, wanted)
    return _moved(group, topic, moved, _texts(failed), json)


def offset_clone(
    source: Annotated[str, typer.Argument(help="The group whose offsets are taken.")],
    target: Annotated[str, typer.Argument(help="The group that gets them.")],
    topic: Topic,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Give a group the offsets that another has committed on a topic."""
    ask_before(f"write the offsets of group {source!r} over those of {target!r} on topic {topic!r}", yes)
    with admin_of(load(config), namesrv) as admin, progress("asking the brokers", enabled=not json):
        moved, failed = admin.clone_offsets(source, target, topic)
    return _moved(target, topic, moved, _texts(failed), json)


def _texts(failed: Mapping[MessageQueue, Exception]) -> dict[str, str]:
    return {f"{queue.broker_name}/{queue.queue_id}": str(error) for queue, error in failed.items()}


def _moved(group: str, topic: str, moved: Mapping[MessageQueue, int], failures: Mapping[str, str], json: bool) -> int:
    rows = [_place(queue) | {"offset": offset} for queue, offset in sorted(moved.items())]
    if json:
        show_json({"group": group, "topic": topic, "queues": rows, "failures": dict(failures)})
    else:
        table(("broker", "queue", "now at"), [list(row.values()) for row in rows])
        if not rows:
            say("no queue was moved")
    warn_of(failures, f"did not move {group!r}")
    return Exit.OK if rows and not failures else Exit.FAILED
