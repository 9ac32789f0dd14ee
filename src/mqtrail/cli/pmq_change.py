"""`pmq topic|group|offset|message`: what an operator changes through an HTTP door. `pmq audit`: what was changed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer, OperatedDoor

from .exits import Exit, UsageError
from .operate import DryRun, Yes, confirm_change, table
from .options import Json, moment_ms
from .output import say, show_json, warn
from .pmq_door import CaFile, DoorUrl, TokenFile, door_at

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]
Drop = Annotated[
    bool,
    typer.Option(
        "--drop",
        help="Remove messages that are left instead of waiting for retention; those that a receiver over HTTP holds "
        "and does not acknowledge are not delivered again.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Delete even if members are online.")]


def topic_create(
    topic: TopicName,
    queues: Annotated[int, typer.Option("--queues", min=1, max=1_024, help="Number of queues.")] = 4,
    dry_run: DryRun = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Create a topic, or give it more queues."""
    change = {"action": "create-topic", "topic": topic, "queues": queues}
    return _change(door_at(url, token_file, ca), change, None, yes=True, dry_run=dry_run, json=json)


def topic_shrink(
    topic: TopicName,
    queues: Annotated[int, typer.Option("--queues", min=1, max=1_024, help="Number of queues that remain.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Remove queues of a topic: for publishers at once, for consumers when all groups have consumed them.

    Exit code 1 while a group has messages left: repeat the command later.
    """
    change = {"action": "shrink-topic", "topic": topic, "queues": queues}
    sure = f"leave topic {topic!r} {queues} queues; later groups cannot read what the others keep"
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def queue_free(
    topic: TopicName,
    drop: Drop = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Free the tables of queues that a shrunk topic has no more, for other queues.

    Exit code 1 while a table has messages: repeat the command when retention has removed them, or pass --drop.
    """
    change = {"action": "free-tables", "topic": topic, "drop": drop}
    sure = f"empty the tables of the queues that topic {topic!r} has no more" if drop else None
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def queue_move(
    topic: TopicName,
    queue: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="Queue id.")],
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="Database where the queue goes on.")] = "",
    drop: Drop = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Let publishers use the queue again, instead of moving it.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Move a queue to another database of the store: for publishers at once, when all groups have consumed it.

    Exit code 1 while messages are left: repeat the command later. A restart of the broker opens the queue to publishers
    again.
    """
    if bool(to) == cancel:
        raise UsageError("expected --to, or --cancel: pass one of them")
    change = {"action": "move-queue", "topic": topic, "queue": queue, "node": to, "drop": drop, "cancel": cancel}
    sure = f"remove the consumed messages of queue {queue} of topic {topic!r}" if drop else None
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def set_node_over(
    door: OperatedDoor, name: str, *, state: str | None, kind: str | None, force: bool, json: bool
) -> int:
    """Change the state or kind of a database through a door."""
    change = {"action": "set-node", "node": name, "state": state, "kind": kind, "force": force}
    return _change(door, change, None, yes=True, dry_run=False, json=json)


def topic_perm(
    topic: TopicName,
    perm: Annotated[str, typer.Argument(metavar="PERM", help="Permission: r, w or rw.")],
    dry_run: DryRun = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Set whether consumers may read a topic and publishers may write to it."""
    if perm not in ("r", "w", "rw"):
        raise UsageError(f"PERM: found {perm!r}, expected r, w or rw")
    change = {"action": "set-topic-permission", "topic": topic, "permission": perm}
    return _change(door_at(url, token_file, ca), change, None, yes=True, dry_run=dry_run, json=json)


def topic_delete(
    topic: TopicName,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Delete a topic and its messages."""
    change = {"action": "delete-topic", "topic": topic, "force": force}
    sure = f"delete topic {topic!r} and its messages"
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def group_create(
    group: GroupName,
    retries: Annotated[
        int,
        typer.Option("--retries", min=0, max=1_000, help="Number of retries before a message becomes a dead letter."),
    ] = 16,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="For pmq's own clients: cluster (each message goes to one of them) or broadcast (to each one). "
            "[default: unchanged; cluster for a new group]",
        ),
    ] = None,
    dry_run: DryRun = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Create a group, or change its number of retries and its mode."""
    if mode not in (None, "cluster", "broadcast"):
        raise UsageError(f"--mode: found {mode!r}, expected cluster or broadcast")
    change = {"action": "create-group", "group": group, "retries_max": retries, "mode": mode}
    return _change(door_at(url, token_file, ca), change, None, yes=True, dry_run=dry_run, json=json)


def group_pause(
    group: GroupName,
    dry_run: DryRun = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Stop the delivery of messages to a group. Its offsets stay."""
    change = {"action": "pause-group", "group": group, "paused": True}
    return _change(door_at(url, token_file, ca), change, None, yes=True, dry_run=dry_run, json=json)


def group_resume(
    group: GroupName,
    dry_run: DryRun = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Resume the delivery of messages to a paused group, from its offsets."""
    change = {"action": "pause-group", "group": group, "paused": False}
    return _change(door_at(url, token_file, ca), change, None, yes=True, dry_run=dry_run, json=json)


def group_delete(
    group: GroupName,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Delete a group and its offsets."""
    change = {"action": "delete-group", "group": group, "force": force}
    sure = f"delete group {group!r} and its offsets"
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def offset_set(
    group: GroupName,
    topic: TopicName,
    to: Annotated[str | None, typer.Option("--to", help="first, end, a time (UTC), or an age such as 2h.")] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="Set this offset on --queue, instead of --to.")
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue. [default: all]")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Move the offsets of a group on a topic, and show how many messages it skips or receives again.

    Later commits of its current members have no effect.
    """
    from mqtrail.clock import now_ms

    if (to is None) == (offset is None) or (offset is not None and queue is None):
        raise UsageError("expected --to, or --offset with --queue: pass one of them")
    change: dict[str, Any] = {"action": "set-offsets", "group": group, "topic": topic, "queue": queue}
    if to is not None:
        at_ms = {"first": 0, "end": -1}.get(to)
        change["at_ms"] = moment_ms(to, now_ms(), "--to") if at_ms is None else at_ms
    else:
        change["offset"] = offset
    sure = f"move group {group!r} on topic {topic!r}, which skips messages or delivers them again"
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def message_resend(
    group: GroupName,
    id: Annotated[
        list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable. [default: all]")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of messages.")] = 1_000,
    to_topic: Annotated[
        bool,
        typer.Option(
            "--to-topic",
            help="Send to the original topic, so that all of its groups receive them, instead of to this group only.",
        ),
    ] = False,
    failed_of: Annotated[
        str,
        typer.Option(
            "--failed-of", metavar="TOPIC", help="Resend the messages of this topic that failed in pmq's own client."
        ),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Resend dead letters of a group with their ids. The dead letters are kept."""
    change: dict[str, Any] = {"action": "resend-messages", "group": group, "ids": id or [], "limit": limit}
    change |= {"to": "topic" if to_topic else "group", "failed_of": failed_of}
    sure = f"send these messages again to {'their topic' if to_topic else f'group {group!r}'}"
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def message_send(
    topic: TopicName,
    body: Annotated[str, typer.Option("--body", help="Text of the message.")],
    key: Annotated[str, typer.Option("--key", help="Word to find the message by.")] = "",
    tag: Annotated[str, typer.Option("--tag", help="Word that consumers filter by.")] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Send a message to a topic. The audit log has who sent it, without its body."""
    change = {"action": "send-message", "topic": topic, "body": body, "key": key, "tag": tag}
    sure = f"send this message to all groups of topic {topic!r}"
    return _change(door_at(url, token_file, ca), change, sure, yes=yes, dry_run=dry_run, json=json)


def audit(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of changes, newest first.")
    ] = 20,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Show the changes that a door recorded: who, what, before, after, outcome. Exit code 1: a line was changed."""
    found = operating.audited(door_at(url, token_file, ca), limit)
    if json:
        show_json(found)
    else:
        rows = [_audited(one) for one in found.rows("changes")]
        table(("time", "who", "address", "action", "part", "before", "after", "outcome"), rows)
        say(f"{found['line_count']} lines; SHA-256 of the last: {found['last_digest']}")
        for problem in found.texts("problems"):
            warn(problem)
    return Exit.FAILED if found.texts("problems") else Exit.OK


def _audited(one: DoorAnswer) -> tuple[str, ...]:
    """Return a change as one line: its first part, and how many follow."""
    steps = one.rows("steps")
    first = steps[0] if steps else DoorAnswer()
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    fates = [str(outcome["fate"]) for outcome in one.rows("outcomes")]
    counts = ", ".join(f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates))
    outcome = " ".join(filter(None, (counts, str(one["error"] or "")))) if one["ended_at"] else "not ended"
    before = first.get("before")
    return (
        one["asked_at"],
        one["who"],
        one["address"],
        one["action"],
        f"{first.get('target', '')}{more}",
        "-" if before is None else before,
        first.get("after", ""),
        outcome,
    )


def _change(
    door: OperatedDoor, change: dict[str, Any], sure: str | None, *, yes: bool, dry_run: bool, json: bool
) -> int:
    """Print what a change would do, ask, do it, and print what came of it.

    sure: what to ask; None: nothing. Exit code 1: a part was not done, or that is unknown.
    """
    plan = operating.planned(door, change)
    if dry_run and json:
        show_json(plan)
    elif not json:
        counted = list(dict.fromkeys(name for step in plan.rows("steps") for name in step.part("counts")))
        rows = [
            (step["target"], step["before"], step["after"], *(step.part("counts").get(name) for name in counted))
            for step in plan.rows("steps")
        ]
        table(("part", "before", "after", *counted), rows)
        for words in plan.texts("warnings"):
            warn(words)
    if dry_run:
        if not json:
            say("nothing was changed")
        return Exit.OK
    if sure is not None:
        confirm_change(sure, yes)
    report = operating.changed(door, change)
    outcomes = report.rows("outcomes")
    if json:
        show_json(report)
    else:
        for one in outcomes:
            say(f"{one['target']}: {one['fate']}{' ' if one['detail'] else ''}{one['detail']}")
    return Exit.OK if all(one["fate"] == "DONE" for one in outcomes) else Exit.FAILED
