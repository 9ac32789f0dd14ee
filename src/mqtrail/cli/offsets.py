"""`offset`: show and change the consumer offsets of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import load
from .exits import Exit, UsageError
from .operate import DryRun, Yes, admin_of, confirm_change, failures_of, report_answer, show_plan, table, warn_failures
from .options import ConfigFile, Json, Namesrv, moment_ms
from .output import progress, say, show_json

if TYPE_CHECKING:
    from mqtrail.wire import MessageQueue

Group = Annotated[str, typer.Argument(help="Consumer group.")]
Topic = Annotated[str, typer.Argument(help="Topic name.")]


def offset_show(
    group: Group, topic: Topic, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False
) -> int:
    """Show the committed offset of a group on each queue of a topic; '-': none."""
    from mqtrail.wire import MQError

    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
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
    return report_answer({"group": group, "topic": topic, "queues": rows}, failures, json)


def _place(queue: MessageQueue) -> dict[str, Any]:
    return {"broker": queue.broker_name, "queue": queue.queue_id}


def offset_reset(
    group: Group,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help="first, end, a time (UTC), or an age such as 2h.")],
    keep: Annotated[
        bool, typer.Option("--no-skip", help="Move backward only, so that no unconsumed message is skipped.")
    ] = False,
    queue: Annotated[
        int | None, typer.Option("--queue", min=0, help="Only this queue id on each broker (brokers 5.x).")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Move a group to the first message, to the end, or to the first message stored at or after a time."""
    from mqtrail.answers.changes import ResetOffsets
    from mqtrail.clock import now_ms

    at_ms = {"first": 0, "end": -1}.get(to)
    if at_ms is None:
        at_ms = moment_ms(to, now_ms(), "--to")
    if dry_run:
        change = ResetOffsets(group=group, topic=topic, at_ms=at_ms, is_backward_only=keep, queue_id=queue)
        return show_plan(change, load(config), namesrv, json)
    confirm_change(f"move group {group!r} on topic {topic!r} to {to}, which skips messages or delivers them again", yes)
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
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
    """Move a group to the end of a topic. It never consumes the messages that it skips."""
    confirm_change(f"make group {group!r} skip its backlog in topic {topic!r}", yes)
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        done = admin.skip_backlog(group, topic)
    moved = {queue: offset for found in done.values() for queue, offset in found.offset_table.items()}
    return _moved(group, topic, moved, failures_of(done), json)


def offset_set(
    group: Group,
    topic: Topic,
    place: Annotated[list[str], typer.Argument(help="BROKER/QUEUE=OFFSET, for example broker-a/0=42; repeatable.")],
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Set the offsets of a group on single queues. Brokers that reset offsets themselves (5.x) move live members, too.

    With others, stop the members first: they overwrite the offsets.
    """
    from mqtrail.wire import IdError, MessageQueue, number_of

    wanted: dict[MessageQueue, int] = {}
    for text in place:
        where, _, offset = text.partition("=")
        queue_offset = number_of(offset)
        try:
            queue = MessageQueue.at(topic, where)
        except IdError:
            queue = None
        if queue is None or queue_offset is None:
            raise UsageError(f"found {text!r}, expected BROKER/QUEUE=OFFSET, for example broker-a/0=42")
        wanted[queue] = queue_offset
    confirm_change(f"set {len(wanted)} offsets of group {group!r} on topic {topic!r}", yes)
    with admin_of(load(config), namesrv) as admin:
        moved, failed = admin.set_offsets(group, wanted)
    return _moved(group, topic, moved, _texts(failed), json)


def offset_clone(
    source: Annotated[str, typer.Argument(help="Group to copy the offsets from.")],
    target: Annotated[str, typer.Argument(help="Group to copy the offsets to.")],
    topic: Topic,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Copy the committed offsets of one group on a topic to another group, whose members move as with `offset set`."""
    confirm_change(f"overwrite the offsets of group {target!r} on topic {topic!r} with those of {source!r}", yes)
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        moved, failed = admin.clone_offsets(source, target, topic)
    return _moved(target, topic, moved, _texts(failed), json)


def _texts(failed: Mapping[MessageQueue, Exception]) -> dict[str, str]:
    return {f"{queue.broker_name}/{queue.queue_id}": str(error) for queue, error in failed.items()}


def _moved(group: str, topic: str, moved: Mapping[MessageQueue, int], failures: Mapping[str, str], json: bool) -> int:
    rows = [_place(queue) | {"offset": offset} for queue, offset in sorted(moved.items())]
    if json:
        show_json({"group": group, "topic": topic, "queues": rows, "failures": dict(failures)})
    else:
        table(("broker", "queue", "new offset"), [list(row.values()) for row in rows])
        if not rows:
            say("no queue was moved")
    warn_failures(failures, f"did not move {group!r}")
    return Exit.OK if rows and not failures else Exit.FAILED
