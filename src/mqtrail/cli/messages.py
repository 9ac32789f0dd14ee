"""`message`: find messages by id, key, position or time; let a consumer consume one; resend dead letters."""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import load
from .exits import Exit, UsageError
from .operate import DryRun, Yes, admin_of, confirm_change, report_answer, show_plan, table, warn_failures
from .options import ConfigFile, Json, Namesrv, moment_ms, queue_of
from .output import progress, say, say_lines, show_json, shown_body, warn

if TYPE_CHECKING:
    from mqtrail.client import SyncAdmin
    from mqtrail.wire import MessageExt

Topic = Annotated[str, typer.Argument(help="Topic name.")]
TopicOfId = Annotated[str | None, typer.Option("--topic", help="Topic of the message; required with a client's id.")]
Body = Annotated[bool, typer.Option("--body/--no-body", help="Print the body.")]
Begin = Annotated[str | None, typer.Option("--from", help="Earliest store time: a time (UTC), or an age such as 2h.")]
End = Annotated[str | None, typer.Option("--to", help="Latest store time (exclusive).")]

TEXT_WIDTH = 200  # characters of a body in a text line


def message_show(
    msg_id: Annotated[
        str, typer.Argument(metavar="ID", help="Message id: the broker's, or with --topic the client's.")
    ],
    topic: TopicOfId = None,
    tracks: Annotated[
        bool, typer.Option("--groups", help="Show for each group whether it consumed the message.")
    ] = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show a stored message: position, times, properties and body."""
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        found, failures = _by_id(admin, msg_id, topic)
        groups = {one.msg_id + one.offset_msg_id: admin.message_tracks(one) for one in found} if tracks else {}
    rows = []
    for message in found:
        row = message_row(message, body=True)
        if tracks:
            found_tracks = groups[message.msg_id + message.offset_msg_id]
            row["groups"] = {one.group: one.status.value for one in found_tracks}
            failures |= {one.group: str(one.error) for one in found_tracks if one.status == "UNKNOWN" and one.error}
        rows.append(row)
        if not json:
            _draw(row)
    if not rows and not json:
        warn(f"found no message {msg_id} in topic {topic}")
    code = report_answer({"messages": rows}, failures, json)
    return code if code != Exit.OK or rows else Exit.FAILED


def _by_id(admin: SyncAdmin, msg_id: str, topic: str | None) -> tuple[tuple[MessageExt, ...], dict[str, str]]:
    """Return the messages of an id, read as the broker's id or else by the index, and the failed brokers' errors."""
    from mqtrail.wire import IdError, MQError

    try:
        return (admin.message_at(msg_id),), {}
    except IdError as error:
        if topic is None:
            raise UsageError(f"{error}. For a client's id, pass --topic") from error
    except MQError as error:
        if topic is None:
            raise UsageError(
                f"no message has the broker's id {msg_id} ({error}). For a client's id, pass --topic"
            ) from error
    assert topic is not None
    result = admin.message_by_id(topic, msg_id)
    return result.messages, {name: str(error) for name, error in result.failures.items()}


def message_find(
    topic: Topic,
    key: Annotated[str, typer.Argument(help="Message key.")],
    begin: Begin = None,
    end: End = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=64, help="Maximum number of messages per broker.")] = 64,
    body: Body = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Find messages of a topic by key, with the index of the brokers."""
    begin_ms, end_ms = _range(begin, end)
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        result = admin.query(topic, key, begin_ms, end_ms, count_max=limit)
    rows = [message_row(message, body=body) for message in result.messages]
    if not json:
        _list(rows)
    if result.cut_off:
        warn(f"there may be more: each broker returns the newest {limit} at most; narrow --from and --to")
    failures = {name: str(error) for name, error in result.failures.items()}
    code = report_answer({"messages": rows, "cut_off": result.cut_off}, failures, json)
    return code if code != Exit.OK or rows else Exit.FAILED


def message_print(
    topic: Topic,
    begin: Begin = None,
    end: End = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER/QUEUE", help="Only this queue, for example broker-a/0.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="Only the message at this offset of --queue.")
    ] = None,
    tags: Annotated[str | None, typer.Option(help="Tag filter, for example 'PAID || REFUNDED'.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of messages; 0: no limit.")] = 100,
    body: Body = True,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Print the messages of a topic, queue by queue. No offset is committed."""
    from mqtrail.wire import SubscriptionData

    begin_ms, end_ms = _range(begin, end)
    place = queue_of(topic, queue)
    if offset is not None and place is None:
        raise UsageError("found --offset without --queue, expected both")
    wanted = SubscriptionData.build(topic, tags)
    count = 0
    with admin_of(load(config), namesrv) as admin:
        if offset is not None:
            assert place is not None
            print_message(message_row(admin.message_at_offset(place, offset), body=body), json)
            return Exit.OK
        found = (one for one in admin.messages(topic, begin_ms, end_ms, queue=place) if wanted.matches_tag(one.tags))
        for message in itertools.islice(found, limit or None):
            print_message(message_row(message, body=body), json)
            count += 1
    if limit and count == limit:
        warn(f"stopped after {limit} messages; pass --limit 0 to print all")
    return Exit.OK if count else Exit.FAILED


def message_index(
    topic: Topic,
    queue: Annotated[str, typer.Argument(help="BROKER/QUEUE, for example broker-a/0.")],
    first: Annotated[int, typer.Argument(help="First queue offset to show.")] = 0,
    count: Annotated[int, typer.Option("--count", min=1, max=1_024, help="Number of entries.")] = 16,
    group: Annotated[str | None, typer.Option(help="Show whether the filter of this group matches each entry.")] = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show ConsumeQueue entries: CommitLog offset, size and tag hash of each message."""
    place = queue_of(topic, queue)
    assert place is not None
    with admin_of(load(config), namesrv) as admin:
        found = admin.consume_queue(place, first, count, group=group)
    rows = [
        {
            "queue_offset": first + number,
            "physical_offset": entry.physic_offset,
            "size": entry.physic_size,
            "tags_code": entry.tags_code,
            "taken": entry.eval if group else None,
        }
        for number, entry in enumerate(found.queue_data)
    ]
    if json:
        show_json({"first": found.min_queue_index, "next": found.max_queue_index, "entries": rows})
    else:
        table(("offset", "CommitLog offset", "bytes", "tag hash", "matches"), [list(row.values()) for row in rows])
        say(f"the queue holds [{found.min_queue_index}, {found.max_queue_index})")
    return Exit.OK if rows else Exit.FAILED


def message_consume(
    msg_id: Annotated[
        str, typer.Argument(metavar="ID", help="Message id: the broker's, or with --topic the client's.")
    ],
    group: Annotated[str, typer.Argument(help="Consumer group.")],
    client: Annotated[str | None, typer.Option(help="Only the member with this client id.")] = None,
    topic: TopicOfId = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Make the online members of a group consume a stored message now. No offset is committed."""
    with admin_of(load(config), namesrv) as admin:
        found, failures = _by_id(admin, msg_id, topic)
        if len(found) != 1:
            raise UsageError(f"found {len(found)} messages with id {msg_id}, expected one: pass the broker's id")
        confirm_change(f"make {client or f'each member of {group}'} consume message {msg_id} again", yes)
        with progress("waiting for the consumers", enabled=not json):
            done = admin.consume_directly(found[0], group, client_id=client)
    failures |= {name: str(error) for name, error in done.failures.items()}
    rows = [{"client_id": name, **result.members()} for name, result in sorted(done.found.items())]
    if json:
        show_json({"msg_id": msg_id, "group": group, "results": rows, "failures": failures})
    else:
        for row in rows:
            remark = f": {row['remark']}" if row.get("remark") else ""
            say(f"{row['client_id']}: {row['consumeResult']} in {row['spentTimeMills']} ms{remark}")
    warn_failures(failures, "did not consume it")
    good = rows and all(row["consumeResult"] == "CR_SUCCESS" for row in rows)
    return Exit.OK if good and not failures else Exit.FAILED


def message_recall(
    topic: Topic,
    handle: Annotated[str, typer.Argument(help="Recall handle, as printed by `send --json`.")],
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Recall a delayed message before it is delivered (brokers 5.3.2 and later)."""
    from mqtrail.client import SyncProducer

    settings = load(config)
    with SyncProducer("mqtrail-cli", settings.namesrv(namesrv), config=settings.client("producer")) as producer:
        msg_id = producer.recall(topic, handle)
    if json:
        show_json({"msg_id": msg_id})
    else:
        say(f"recalled {msg_id}")
    return Exit.OK


def message_resend(
    group: Annotated[str, typer.Argument(help="Group whose dead letters are resent.")],
    msg_id: Annotated[
        list[str] | None, typer.Option("--id", help="Resend only the dead letter with this client's id; repeatable.")
    ] = None,
    to_topic: Annotated[
        bool,
        typer.Option(
            "--to-topic",
            help="Resend to the original topic (property RETRY_TOPIC), so that all of its groups receive the messages. "
            "A letter is reported, not sent, if its RETRY_TOPIC is missing or not a topic of an application.",
        ),
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of messages; 0: all.")] = 0,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Resend dead letters with their ids, by default to their group only. The dead letters are kept."""
    if dry_run:
        from mqtrail.answers.changes import LETTERS_MAX, ResendDeadLetters

        change = ResendDeadLetters(
            group=group, msg_ids=tuple(msg_id or ()), is_to_topic=to_topic, count_max=limit or LETTERS_MAX
        )
        return show_plan(change, load(config), namesrv, json)
    which = f"{len(msg_id)} dead letters" if msg_id else "the dead letters"
    confirm_change(f"resend {which} of group {group!r} {'to their topics' if to_topic else 'to the group'}", yes)
    wanted = frozenset(msg_id) if msg_id else None
    count = failed = 0
    with admin_of(load(config), namesrv) as admin, progress("sending dead letters", enabled=not json) as shown:
        for one in admin.resend_dead_letters(group, msg_ids=wanted, to_topic=to_topic, count_max=limit or None):
            count += 1
            failed += one.result is None
            if shown is not None:
                shown.update(shown.task_ids[0], description=f"sent {count - failed} dead letters")
            row = {
                "msg_id": one.message.msg_id,
                "done": one.result is not None,
                "error": None if one.error is None else str(one.error),
            }
            if json:
                show_json(row)
            elif one.error is not None:
                warn(f"{one.message.msg_id} was not sent: {one.error}")
            else:
                say(f"{one.message.msg_id}: sent again")
    if not count:
        warn(f"found no dead letter of group {group!r}{' with these ids' if msg_id else ''}")
    return Exit.OK if count and not failed else Exit.FAILED


# -- output ------------------------------------------------------------------------------------------------------------


def _range(begin: str | None, end: str | None) -> tuple[int, int]:
    from mqtrail.client import END_MS_MAX
    from mqtrail.clock import now_ms

    now = now_ms()
    begin_ms = moment_ms(begin, now, "--from") if begin else 0
    end_ms = moment_ms(end, now, "--to") if end else END_MS_MAX
    if begin_ms >= end_ms:
        raise UsageError("found --from at or after --to, expected --from to be earlier")
    return begin_ms, end_ms


def message_row(message: MessageExt, *, body: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "topic": message.topic,
        "broker": message.broker_name or str(message.store_host),
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "tags": message.tags,
        "keys": list(message.keys),
        "born_ms": message.born_timestamp_ms,
        "born_host": str(message.born_host),
        "store_ms": message.store_timestamp_ms,
        "attempt": message.reconsume_times + 1,
        "size": message.store_size,
        "properties": message.properties,
    }
    if message.undecodable is not None:
        row["undecodable"] = message.undecodable
    if body:
        try:
            row["body"] = message.body.decode()
        except UnicodeDecodeError:
            row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def print_message(row: dict[str, Any], json: bool) -> None:
    if json:
        show_json(row)
        return
    keys = f"  keys {' '.join(row['keys'])}" if row["keys"] else ""
    place = f"{row['broker']}/{row['queue']}@{row['queue_offset']}"
    body = row.get("body") or (f"base64 {row['body_base64']}" if "body_base64" in row else "")
    say(f"{row['msg_id']}  {place}  tag {row['tags'] or '-'}{keys}  {body[:TEXT_WIDTH]}".rstrip())


def _list(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print_message(row, json=False)


def _draw(row: dict[str, Any]) -> None:
    from .draw import day_clock

    shown = {name: value for name, value in row.items() if name not in ("properties", "body", "body_base64", "groups")}
    shown |= {
        "keys": " ".join(row["keys"]),
        "born_ms": day_clock(row["born_ms"]),
        "store_ms": day_clock(row["store_ms"]),
    }
    table(("field", "value"), list(shown.items()), row["msg_id"])
    table(("property", "value"), sorted(row["properties"].items()))
    if row.get("groups"):
        table(("group", "status by its offset"), sorted(row["groups"].items()))
    say_lines(shown_body(row["body"]) if "body" in row else f"base64 {shown_body(row['body_base64'])}")
