"""`group`: list consumer groups, show their progress and members, change their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import load
from .exits import Exit, UsageError
from .lag import exit_of
from .operate import (
    Broker,
    Cluster,
    Yes,
    admin_of,
    confirm_change,
    failures_of,
    report_answer,
    report_change,
    table,
    warn_failures,
)
from .options import ConfigFile, Json, Namesrv
from .output import progress, say, say_lines, show_json

if TYPE_CHECKING:
    from mqtrail.client import QueueLag, SyncAdmin

Group = Annotated[str, typer.Argument(help="Group name.")]


def group_list(
    everything: Annotated[bool, typer.Option("--all", help="Include RocketMQ's internal groups.")] = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List the consumer groups of all brokers with their lag and their online members."""
    from mqtrail.wire import MQError, is_system_group

    internal: set[str] = set()
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        lag = admin.lag()
        for address in admin.masters().values() if everything else ():
            with suppress(MQError):  # the lag was read from this broker too, and reports its failure
                internal.update(filter(is_system_group, admin.groups(address).subscription_group_table))
    rows: dict[str, dict[str, Any]] = {}
    for name in internal.union(lag.idle_groups):  # which topics they read is unknown
        members = 0 if name in lag.idle_groups else None
        rows[name] = {"group": name, "members": members, "behind": None, "unknown_queues": None}
    for group in lag.groups:
        rows[group.group_name] = {"group": group.group_name, "members": group.member_count, **_behind(group.queues)}
    ordered = [rows[name] for name in sorted(rows)]
    if json:
        show_json({"groups": ordered, "problems": lag.problems})
    else:
        cells = [(row["group"], _known(row["members"]), _behind_cell(row)) for row in ordered]
        table(("group", "members", "behind"), cells)
    return exit_of(lag)


def _behind(queues: Sequence[QueueLag]) -> dict[str, int | None]:
    """Return the messages that wait in queues of known lag (None: of none), and the number of unknown queues."""
    counts = [queue.lag_count for queue in queues if queue.lag_count is not None]
    return {"behind": sum(counts) if counts or not queues else None, "unknown_queues": len(queues) - len(counts)}


def _behind_cell(row: Mapping[str, Any]) -> object:
    behind = row["behind"]
    return f"≥ {behind}" if behind is not None and row["unknown_queues"] else _known(behind)


def _known(value: object) -> object:
    return "?" if value is None else value


def group_show(
    group: Group,
    topic: Annotated[str | None, typer.Option(help="Show only this topic.")] = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show the progress of a group on each queue, and its online members. `mqtrail lag show` shows more."""
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        lag = admin.lag(group)
        stats = admin.consume_stats(group, topic)
        members = admin.group_connections(group)
    queues = [queue for one in lag.groups for queue in one.queues if topic in (None, queue.topic)]
    consumed_ms = {
        (queue.topic, queue.broker_name or name, queue.queue_id): reach.last_timestamp
        for name, found in stats.found.items()
        for queue, reach in found.offset_table.items()
    }
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "end": queue.max_offset,
            "consumed": queue.consumer_offset,
            "behind": queue.lag_count,
            "last_consumed_ms": consumed_ms.get((queue.topic, queue.broker_name, queue.queue_id)) or None,
        }
        for queue in sorted(queues, key=lambda one: (one.broker_name, one.topic, one.queue_id))
    ]
    clients = {
        one.client_id: {"client_id": one.client_id, "address": one.client_addr, "language": one.language}
        for found in members.values()
        for one in found.connection_set
    }
    behind = _behind(queues)
    if not json:
        _draw_progress(group, rows)
        say(f"behind: {_behind_cell(behind)} messages; members: {', '.join(sorted(clients)) or 'none is online'}")
    value = {"group": group, "queues": rows, **behind, "members": list(clients.values()), "problems": lag.problems}
    code = max(report_answer(value, failures_of(stats, members), json), exit_of(lag))
    return code if code != Exit.OK or rows or clients else Exit.FAILED


def _draw_progress(group: str, rows: list[dict[str, Any]]) -> None:
    from .draw import day_clock

    headings = ("topic", "broker", "queue", "end", "consumed", "behind", "last consumed (UTC)")
    cells = []
    for row in rows:
        topic, broker, queue, end, consumed, behind, last_ms = row.values()
        last = None if last_ms is None else day_clock(last_ms)
        cells.append((topic, broker, queue, _known(end), consumed, _known(behind), last))
    table(headings, cells, group)


def group_create(
    group: Annotated[str, typer.Argument(help="Group name: at most 120 letters, digits and % | - _")],
    attempts: Annotated[
        int, typer.Option("--attempts", min=0, help="Retries of a message before it becomes a dead letter.")
    ] = 16,
    retry_queues: Annotated[
        int, typer.Option("--retry-queues", min=0, help="Number of queues of its retry topic.")
    ] = 1,
    enabled: Annotated[bool, typer.Option("--enable/--disable", help="Allow or forbid the group to consume.")] = True,
    broadcast: Annotated[
        bool, typer.Option("--broadcast/--no-broadcast", help="Allow or forbid broadcast consumption.")
    ] = True,
    ordered: Annotated[bool, typer.Option("--ordered", help="Mark the group as one that consumes in order.")] = False,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Create or change a consumer group on every broker."""
    from mqtrail.wire import SubscriptionGroupConfig, validate_group

    validate_group(group)
    wanted = SubscriptionGroupConfig(
        group,
        consume_enable=enabled,
        consume_broadcast_enable=broadcast,
        consume_message_orderly=ordered,
        retry_queue_nums=retry_queues,
        retry_max_times=attempts,
    )
    with admin_of(load(config), namesrv) as admin:
        done = admin.create_group(wanted, cluster=cluster, broker=broker)
    return report_change(done, f"group {group}", f"did not create {group!r}", json, group=group)


def group_config(group: Group, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """Show the configuration of a group on each broker."""
    with admin_of(load(config), namesrv) as admin:
        found = admin.group_config(group)
    known = {name: one.members() for name, one in sorted(found.found.items()) if one is not None}
    if not json:
        for name, members in known.items():
            table(("setting", "value"), list(members.items()), f"{group} on {name}")
    code = report_answer({"group": group, "brokers": known}, failures_of(found), json)
    return code if code != Exit.OK or known else Exit.FAILED


def group_delete(
    group: Group,
    offsets: Annotated[bool, typer.Option("--offsets", help="Delete its offsets too.")] = False,
    topics: Annotated[bool, typer.Option("--topics", help="Delete its retry and dead-letter topics too.")] = False,
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete a consumer group; optionally its offsets, retry topic and dead letters too."""
    too = [text for text, on in (("its offsets", offsets), ("its retry and dead-letter topics", topics)) if on]
    confirm_change(f"delete group {group!r}{' with ' + ' and '.join(too) if too else ''}", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.delete_group(group, cluster=cluster, broker=broker, clean_offsets=offsets)
        gone = _delete_topics(admin, group, cluster) if topics else {}
    failures = failures_of(done) | {name: text for texts in gone.values() for name, text in texts.items()}
    if json:
        show_json({"group": group, "done": sorted(done.found), "topics": sorted(gone), "failures": failures})
    else:
        for name in sorted(done.found):
            say(f"{name}: deleted {group}")
        for topic, texts in gone.items():
            if not texts:
                say(f"{topic}: deleted")
    warn_failures(failures, f"did not delete {group!r}")
    return Exit.OK if not failures else Exit.FAILED


def _delete_topics(admin: SyncAdmin, group: str, cluster: str | None) -> dict[str, dict[str, str]]:
    """Delete the group's retry and dead-letter topics; return topic -> failures."""
    done = admin.delete_group_topics(group, cluster=cluster)
    return {topic: failures_of(one.brokers, one.name_servers) for topic, one in done.items()}


def group_members(
    group: Group,
    stacks: Annotated[bool, typer.Option("--stacks", help="Include the thread stacks of Java clients.")] = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show what the online members of a group report: subscriptions, queues, cached messages."""
    with admin_of(load(config), namesrv) as admin, progress("querying the members", enabled=not json):
        found = admin.members(group, jstack=stacks)
    failures = failures_of(found)
    rows: dict[str, dict[str, Any]] = {}
    for members in found.values():
        for member in members:
            row = rows.setdefault(
                member.client_id,
                {
                    "client_id": member.client_id,
                    "address": member.address,
                    "language": member.language,
                    "running": None,
                    "error": None if member.error is None else str(member.error),
                },
            )
            if member.running is not None:
                row |= {"running": member.running.members(), "error": None}
    if json:
        for row in rows.values():
            row["running"] = _plain(row["running"])
    else:
        for row in rows.values():
            _draw_member(row)
        if not rows:
            say(f"no member of {group} is online")
    code = report_answer({"group": group, "members": list(rows.values())}, failures, json)
    return code if code != Exit.OK or rows else Exit.FAILED


def _plain(running: Any) -> Any:
    """Convert keys that are queues to texts: JSON keys are texts."""
    if isinstance(running, dict):
        return {_name(key): _plain(value) for key, value in running.items()}
    return [_plain(one) for one in running] if isinstance(running, list) else running


def _name(key: Any) -> str:
    members = getattr(key, "members", None)
    if members is None:
        return str(key)
    queue = members()
    return f"{queue['topic']}/{queue['brokerName']}/{queue['queueId']}"


def _draw_member(row: dict[str, Any]) -> None:
    say(f"{row['client_id']}  {row['address']}  {row['language']}")
    running = row["running"]
    if running is None:
        say(f"  did not answer: {row['error']}")
        return
    for subscription in running["subscriptionSet"]:
        say(f"  subscribes to {subscription['topic']}: {subscription['subString']}")
    cells = [
        (_name(queue), held["commitOffset"], held["cachedMsgCount"], "yes" if held["locked"] else "no")
        for queue, held in running["mqTable"].items()
    ]
    if cells:
        table(("  queue", "committed", "cached", "locked"), [("  " + cell[0], *cell[1:]) for cell in cells])
    if running.get("jstack"):
        say_lines(running["jstack"])


def group_mode(
    group: Group,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    mode: Annotated[str, typer.Argument(help="Consume mode: PULL or POP.")],
    share: Annotated[int, typer.Option("--share", min=0, help="Number of queues that each member pops; 0: all.")] = 0,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Set whether a group consumes a topic by PULL or by POP (brokers 5.x)."""
    if mode.upper() not in ("PULL", "POP"):
        raise UsageError(f"mode: found {mode!r}, expected PULL or POP")
    with admin_of(load(config), namesrv) as admin:
        done = admin.set_consume_mode(
            group, topic, mode.upper(), pop_share_queue_num=share, cluster=cluster, broker=broker
        )
    text = f"{group} consumes {topic} by {mode.upper()}"
    return report_change(
        done, text, "did not change the consume mode", json, group=group, topic=topic, mode=mode.upper()
    )


def producer_list(namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """List the online producers of each group."""
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        found = admin.producers()
    rows = {
        (group, one.client_id): {
            "group": group,
            "client_id": one.client_id,
            "address": one.remote_ip,
            "language": one.language,
            "last_heartbeat_ms": one.last_update_timestamp,
        }
        for producers in found.values()
        for group, infos in producers.data.items()
        for one in infos
    }
    if not json:
        cells = [list(row.values())[:4] for _, row in sorted(rows.items())]
        table(("group", "client", "address", "language"), cells)
    return report_answer({"producers": [row for _, row in sorted(rows.items())]}, failures_of(found), json)
