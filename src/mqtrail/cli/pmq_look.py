"""`pmq topic|queue|group|subscription|message|node`: what an operator sees of an HTTP door, or of its database."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer

from .config import load
from .exits import Exit, UsageError
from .operate import table
from .options import ConfigFile, Json, moment_ms
from .output import say, say_lines, show_json
from .pmq_door import CaFile, DatabaseOf, DoorUrl, TokenFile, check_database_url, door_at

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]
OnlyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic. [default: all]")]
NODE_STATES = ("read-write", "read-only", "closed")
NODE_KINDS = ("normal", "failure")
OnlyGroup = Annotated[str | None, typer.Option("--group", help="Only this group. [default: all]")]


def topic_list(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List the topics of applications, with their queues, messages and groups."""
    found = operating.topics(door_at(url, token_file, ca))
    return show_rows(found, found.rows("topics"), json)


def topic_show(
    topic: TopicName, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """Show a topic, its queues, and the unconsumed messages of its groups."""
    found = operating.topic(door_at(url, token_file, ca), topic)
    if json:
        show_json(found)
        return Exit.OK
    draw_rows([{name: value for name, value in found.items() if name not in ("queues", "subscriptions")}])
    draw_rows(found.rows("queues"), "queues", leaves=("topic", "table", "size"))
    draw_rows(found.rows("subscriptions"), "groups", leaves=("topic",))
    return Exit.OK


def queue_list(
    topic: OnlyTopic = None,
    tables: Annotated[
        bool,
        typer.Option(
            "--tables", help="Show the table of each queue and its bytes; SQLite reads the whole file for this."
        ),
    ] = False,
    db: DatabaseOf = None,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """List queues: first and next offset, messages, last message. With --db: all tables, including free ones."""
    if db is None:
        found = operating.queues(door_at(url, token_file, ca), topic, tables=tables)
        return show_rows(found, found.rows("queues"), json, leaves=() if tables else ("table", "size"))
    _check_alone(url)
    rows = _facts_of(db, queues=True, sizes=tables)["queues"]
    rows = [row for row in rows if topic in (None, row["topic"])]
    return show_rows({"queues": rows}, rows, json, leaves=() if tables else ("size",))


def group_list(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List the groups of applications with their online members and unconsumed messages."""
    found = operating.groups(door_at(url, token_file, ca))
    return show_rows(found, found.rows("groups"), json)


def group_show(
    group: GroupName, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """Show a group, its members, and its offset on each queue."""
    found = operating.group(door_at(url, token_file, ca), group)
    if json:
        show_json(found)
        return Exit.OK
    draw_rows([{name: value for name, value in found.items() if name not in ("members", "queues")}])
    draw_rows(found.rows("members"), "members")
    draw_rows(found.rows("queues"), "queues")
    return Exit.OK


def subscription_list(
    group: OnlyGroup = None,
    topic: OnlyTopic = None,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """List which group consumes which topic, with its tags and unconsumed messages."""
    found = operating.subscriptions(door_at(url, token_file, ca), group, topic)
    return show_rows(found, found.rows("subscriptions"), json)


def message_list(
    topic: TopicName,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue. [default: all]")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Start at this offset of --queue.")] = None,
    since: Annotated[str, typer.Option("--from", help="Start at the first message stored at or after this time.")] = "",
    key: Annotated[str | None, typer.Option("--key", help="Only messages with this key, the newest ones.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of messages.")] = 20,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """List stored messages of a topic: the newest, those from an offset or time, or those with a key.

    Dead letters of a group are in the topic %DLQ%GROUP.
    """
    from mqtrail.clock import now_ms

    if sum((offset is not None, bool(since), key is not None)) > 1:
        raise UsageError("found several of --offset, --from and --key, expected one of them")
    if offset is not None and queue is None:
        raise UsageError("found --offset without --queue, expected both: an offset belongs to a queue")
    from_ms = moment_ms(since, now_ms(), "--from") if since else None
    door = door_at(url, token_file, ca)
    found = operating.messages(door, topic, queue=queue, offset=offset, from_ms=from_ms, key=key, count=limit)
    shown = [
        {name: row.get(name, "") for name in ("queue", "offset", "stored_ms", "id", "key", "tag", "attempt", "size")}
        for row in found.rows("messages")
    ]
    return show_rows(found, shown, json)


def message_show(
    topic: TopicName,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Queue of the message.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Offset of the message in --queue.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Message id, instead of queue and offset.")] = None,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Show stored messages with body and properties: the one at an offset, or all copies with an id."""
    if (id is None) == (queue is None and offset is None) or (queue is None) != (offset is None):
        raise UsageError("expected --queue with --offset, or --id: pass one of them")
    door = door_at(url, token_file, ca)
    if queue is not None and offset is not None:
        found = operating.message(door, topic, queue, offset)
    else:
        found = operating.messages_with_id(door, topic, id or "")
    messages = found.rows("messages")
    if json:
        show_json(found)
    else:
        for message in messages:
            _draw_message(message)
        if not messages:
            say(f"found no message {id} in {topic}")
    return Exit.OK if messages else Exit.FAILED


def _draw_message(message: DoorAnswer) -> None:
    properties = message.part("properties") if "properties" in message else {}
    draw_lines({name: value for name, value in message.items() if name not in ("body", "body_base64", "properties")})
    draw_lines({f"property {name}": value for name, value in properties.items()})
    say("body" if "body" in message else "body, base64")
    say_lines(str(message.get("body", message.get("body_base64", ""))))


def node(
    context: typer.Context,
    db: DatabaseOf = None,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    json: Json = False,
) -> int:
    """Show the broker behind a door and its database: server, version, size, connections, pending commits."""
    if context.invoked_subcommand is not None:
        return Exit.OK
    if db is None:
        found = operating.node(door_at(url, token_file, ca))
    else:
        _check_alone(url)
        facts = _facts_of(db)
        database = {name: value for name, value in facts.items() if name not in ("queues", "writers", "nodes")}
        found = DoorAnswer(database=DoorAnswer(database))
    if json:
        show_json(found)
        return Exit.OK
    draw_lines({name: value for name, value in found.items() if name != "database"})
    leaves = ("database", "nodes")
    draw_lines({f"database {name}": value for name, value in found.part("database").items() if name not in leaves})
    return Exit.OK


def node_list(
    db: DatabaseOf = None, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """List the databases of the store with kind, state, queues and parked messages."""
    if db is None:
        database = operating.node(door_at(url, token_file, ca)).part("database")
    else:
        _check_alone(url)
        database = DoorAnswer(_facts_of(db))
    rows = [DoorAnswer(one) for one in database["nodes"]]
    return show_rows({"nodes": rows}, rows, json)


def node_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Node; home: the database of --db itself.")],
    db: Annotated[
        str | None,
        typer.Option("--db", metavar="URL", help="Database of the store, its home. [env: MQTRAIL_STORE_URL]"),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="read-write, read-only or closed: what clients may do with its queues. [default: no change]",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="normal, or failure: new queues of retries, dead letters and failure topics only. "
            "[default: no change]",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also if topics are left without a queue that takes messages.")
    ] = False,
    url: DoorUrl = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Change the state or kind of a database of the store: with --url through a door, which records it, else in --db.

    A running broker follows within a second.
    """
    if state is None and kind is None:
        raise UsageError("found neither --state nor --kind, expected what to change: pass one of them")
    for option, given, known in (("--state", state, NODE_STATES), ("--kind", kind, NODE_KINDS)):
        if given is not None and given not in known:
            raise UsageError(f"{option}: found {given!r}, expected {', '.join(known[:-1])} or {known[-1]}")
    if url is not None:
        if db is not None:
            _check_alone(url)
        from .pmq_change import set_node_over

        return set_node_over(door_at(url, token_file, ca), name, state=state, kind=kind, force=force, json=json)
    return _set_node(
        db or load(config).room("node").store_url, name, state, kind, is_given=db is not None, force=force, json=json
    )


def _set_node(
    home: str | None, name: str, state: str | None, kind: str | None, *, is_given: bool, force: bool, json: bool
) -> int:
    """Change a node in the database of the home. is_given: its URL is on the command line."""
    from mqtrail.store.sql import set_node

    if is_given and home:
        check_database_url(home, "set MQTRAIL_STORE_URL instead")
    if not home:
        raise UsageError("found no --db, expected the URL of the home: pass it, or set MQTRAIL_STORE_URL")
    found = dataclasses.asdict(set_node(home, name, kind=kind, state=state, force=force))
    if json:
        show_json(found)
    else:
        draw_lines(found)
    return Exit.OK


def lock(
    db: DatabaseOf = None, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """Show which process may write to the database, since when, and which processes could before."""
    if db is None:
        found = operating.lock(door_at(url, token_file, ca))
    else:
        _check_alone(url)
        facts = _facts_of(db)
        starts = [DoorAnswer(one) for one in facts["writers"]]
        found = DoorAnswer(writer=facts["writer"], clock_ms=facts["clock_ms"], starts=starts)
    if json:
        show_json(found)
        return Exit.OK
    draw_lines({name: value for name, value in found.items() if name != "starts"})
    draw_rows(found.rows("starts"), "starts")
    return Exit.OK


def _check_alone(url: str | None) -> None:
    if url is not None:
        raise UsageError("found --db and --url, expected one of them")


def _facts_of(db: str, *, queues: bool = False, sizes: bool = False) -> dict[str, Any]:
    """Return the facts of a database. InvalidParameter, StoreError."""
    from mqtrail.store.sql import look_at

    check_database_url(db)
    return dataclasses.asdict(look_at(db, queues=queues, sizes=sizes))


# Output.


def show_rows(answer: Any, rows: Sequence[Mapping[str, Any]], json: bool, leaves: Sequence[str] = ()) -> int:
    """Print an answer as JSON, or its rows as a table. leaves: columns that the table leaves out."""
    if json:
        show_json(answer)
    else:
        draw_rows(rows, leaves=leaves)
    return Exit.OK


def draw_rows(rows: Sequence[Mapping[str, Any]], title: str | None = None, leaves: Sequence[str] = ()) -> None:
    """Print rows as a table."""
    if not rows:
        say(f"no {title or 'rows'}")
        return
    names = [name for name in rows[0] if name not in leaves]
    headings = [_heading(name) for name in names]
    table(headings, [[_cell(name, row[name]) for name in names] for row in rows], title)


def draw_lines(values: Mapping[str, Any]) -> None:
    """Print each value in a line with its name."""
    for name, value in values.items():
        cell = _cell(name, value)
        say(f"{_heading(name)}: {'-' if cell is None else cell}")


def _heading(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ") + (" (UTC)" if name.endswith("_ms") else "")


def _cell(name: str, value: Any) -> Any:
    """Return a value as a table shows it."""
    from .draw import day_clock

    if name.endswith("_ms") and isinstance(value, int | None):
        return None if not value else day_clock(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{count} {what}" for what, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
