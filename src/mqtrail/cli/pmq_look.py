"""`pmq topic|queue|group|subscription|message|node`: what an operator sees of an HTTP door, or of its database."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from .config import load
from .exits import Exit, UsageError
from .operate import table
from .options import ConfigFile, Json, moment_ms
from .output import say, say_lines, show_json
from .pmq_door import CaFile, DatabaseOf, DoorAnswer, DoorUrl, TokenFile, check_database_url, door_at, segment

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]
OnlyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic. [default: all]")]
NODE_STATES = ("read-write", "read-only", "closed")
NODE_KINDS = ("normal", "failure")
OnlyGroup = Annotated[str | None, typer.Option("--group", help="Only this group. [default: all]")]


def topic_list(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List the topics of applications, with their queues, messages and groups."""
    found = door_at(url, token_file, ca).get("topics")
    return _show(found, found.rows("topics"), json)


def topic_show(
    topic: TopicName, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """Show a topic, its queues, and the unconsumed messages of its groups."""
    door = door_at(url, token_file, ca)
    found = door.get(f"topics/{segment(topic)}")
    queues = door.get("queues", topic=topic).rows("queues")
    everyone = door.get("subscriptions").rows("subscriptions")
    subscriptions = [one for one in everyone if one["topic"] == topic]
    found.update(queues=queues, subscriptions=subscriptions)
    if json:
        show_json(found)
        return Exit.OK
    _draw([{name: value for name, value in found.items() if name not in ("queues", "subscriptions")}])
    _draw(queues, "queues", leaves=("topic", "table", "size"))
    _draw(subscriptions, "groups", leaves=("topic",))
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
        found = door_at(url, token_file, ca).get("queues", topic=topic, tables=tables or None)
        return _show(found, found.rows("queues"), json, leaves=() if tables else ("table", "size"))
    _check_alone(url)
    rows = _facts_of(db, queues=True, sizes=tables)["queues"]
    rows = [row for row in rows if topic in (None, row["topic"])]
    return _show({"queues": rows}, rows, json, leaves=() if tables else ("size",))


def group_list(url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False) -> int:
    """List the groups of applications with their online members and unconsumed messages."""
    found = door_at(url, token_file, ca).get("groups")
    return _show(found, found.rows("groups"), json)


def group_show(
    group: GroupName, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """Show a group, its members, and its offset on each queue."""
    found = door_at(url, token_file, ca).get(f"groups/{segment(group)}")
    if json:
        show_json(found)
        return Exit.OK
    _draw([{name: value for name, value in found.items() if name not in ("members", "queues")}])
    _draw(found.rows("members"), "members")
    _draw(found.rows("queues"), "queues")
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
    rows = door_at(url, token_file, ca).get("subscriptions").rows("subscriptions")
    rows = [row for row in rows if group in (None, row["group"]) and topic in (None, row["topic"])]
    return _show({"subscriptions": rows}, rows, json)


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
    asked = {"queue": queue, "from": offset, "from_ms": from_ms, "key": key, "count": limit}
    found = door_at(url, token_file, ca).get(f"topics/{segment(topic)}/messages", **asked)
    shown = [
        {name: row.get(name, "") for name in ("queue", "offset", "stored_ms", "id", "key", "tag", "attempt", "size")}
        for row in found.rows("messages")
    ]
    return _show(found, shown, json)


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
    if id is None:
        messages = [door.get(f"topics/{segment(topic)}/queues/{queue}/messages/{offset}")]
    else:
        messages = door.get(f"topics/{segment(topic)}/messages", id=id, count=100).rows("messages")
    if json:
        show_json({"messages": messages})
    else:
        for message in messages:
            _draw_message(message)
        if not messages:
            say(f"found no message {id} in {topic}")
    return Exit.OK if messages else Exit.FAILED


def _draw_message(message: DoorAnswer) -> None:
    properties = message.part("properties") if "properties" in message else {}
    _lines({name: value for name, value in message.items() if name not in ("body", "body_base64", "properties")})
    _lines({f"property {name}": value for name, value in properties.items()})
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
        found = door_at(url, token_file, ca).get("node")
    else:
        _check_alone(url)
        facts = _facts_of(db)
        database = {name: value for name, value in facts.items() if name not in ("queues", "writers", "nodes")}
        found = DoorAnswer(database=DoorAnswer(database))
    if json:
        show_json(found)
        return Exit.OK
    _lines({name: value for name, value in found.items() if name != "database"})
    leaves = ("database", "nodes")
    _lines({f"database {name}": value for name, value in found.part("database").items() if name not in leaves})
    return Exit.OK


def node_list(
    db: DatabaseOf = None, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """List the databases of the store with kind, state, queues and parked messages."""
    if db is None:
        database = door_at(url, token_file, ca).get("node").part("database")
    else:
        _check_alone(url)
        database = DoorAnswer(_facts_of(db))
    rows = [DoorAnswer(one) for one in database["nodes"]]
    return _show({"nodes": rows}, rows, json)


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
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Change the state or kind of a database of the store. A running broker follows within a second."""
    from mqtrail.store.sql import set_node

    if state is None and kind is None:
        raise UsageError("found neither --state nor --kind, expected what to change: pass one of them")
    for option, given, known in (("--state", state, NODE_STATES), ("--kind", kind, NODE_KINDS)):
        if given is not None and given not in known:
            raise UsageError(f"{option}: found {given!r}, expected {', '.join(known[:-1])} or {known[-1]}")
    if db is not None:
        check_database_url(db, "set MQTRAIL_STORE_URL instead")
    home = db or load(config).room("node").store_url
    if not home:
        raise UsageError("found no --db, expected the URL of the home: pass it, or set MQTRAIL_STORE_URL")
    found = dataclasses.asdict(set_node(home, name, kind=kind, state=state, force=force))
    if json:
        show_json(found)
    else:
        _lines(found)
    return Exit.OK


def lock(
    db: DatabaseOf = None, url: DoorUrl = None, token_file: TokenFile = None, ca: CaFile = None, json: Json = False
) -> int:
    """Show which process may write to the database, since when, and which processes could before."""
    if db is None:
        found = door_at(url, token_file, ca).get("lock")
    else:
        _check_alone(url)
        facts = _facts_of(db)
        starts = [DoorAnswer(one) for one in facts["writers"]]
        found = DoorAnswer(writer=facts["writer"], clock_ms=facts["clock_ms"], starts=starts)
    if json:
        show_json(found)
        return Exit.OK
    _lines({name: value for name, value in found.items() if name != "starts"})
    _draw(found.rows("starts"), "starts")
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


def _show(answer: Any, rows: Sequence[Mapping[str, Any]], json: bool, leaves: Sequence[str] = ()) -> int:
    """Print an answer as JSON, or its rows as a table. leaves: columns that the table leaves out."""
    if json:
        show_json(answer)
    else:
        _draw(rows, leaves=leaves)
    return Exit.OK


def _draw(rows: Sequence[Mapping[str, Any]], title: str | None = None, leaves: Sequence[str] = ()) -> None:
    if not rows:
        say(f"no {title or 'rows'}")
        return
    names = [name for name in rows[0] if name not in leaves]
    headings = [_heading(name) for name in names]
    table(headings, [[_cell(name, row[name]) for name in names] for row in rows], title)


def _lines(values: Mapping[str, Any]) -> None:
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
