"""`topic`: list topics, show their queues and routes, change their configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import load
from .exits import Exit, UsageError
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
from .output import progress, say, show_json

if TYPE_CHECKING:
    from mqtrail.client import SyncAdmin
    from mqtrail.wire import BrokerStatsData


Topic = Annotated[str, typer.Argument(help="Topic name.")]


def topic_list(
    namesrv: Namesrv = None,
    everything: Annotated[bool, typer.Option("--all", help="Include system, retry and dead-letter topics.")] = False,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List the topics that the name server knows."""
    with admin_of(load(config), namesrv) as admin:
        names = admin.topics() if everything else _business_topics(admin)
    if json:
        show_json({"topics": names})
    else:
        for name in names:
            say(name)
    return Exit.OK


def _business_topics(admin: SyncAdmin) -> list[str]:
    from mqtrail.wire import business_topics

    known = admin.cluster()
    return business_topics(admin.topics(), known.cluster_addr_table, known.broker_addr_table)


def topic_create(
    topic: Annotated[str, typer.Argument(help="Topic name: at most 127 letters, digits and % | - _")],
    queues: Annotated[int, typer.Option(min=1, max=16_384, help="Number of queues on each broker.")] = 8,
    perm: Annotated[str, typer.Option(help="Permission: r, w or rw.")] = "rw",
    ordered: Annotated[bool, typer.Option("--ordered", help="Mark the topic as ordered.")] = False,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Attribute, for example message.type=FIFO; repeatable."),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Create or change a topic on every broker."""
    from mqtrail.wire import TopicConfig, validate_topic

    from .config import assignments

    validate_topic(topic)
    attributes = {name: str(value) for name, value in assignments(attribute or [], "--attribute").items()}
    wanted = TopicConfig(topic, queues, queues, _bits(perm), order=ordered, attributes=attributes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.create_topic(wanted, cluster=cluster, broker=broker)
    failures = failures_of(done)
    if json:
        show_json({"topic": topic, "brokers": sorted(done.found), "failures": failures})
    else:
        for name in sorted(done.found):
            say(f"{topic}: {queues} queues on {name}")
    warn_failures(failures, f"did not create {topic!r}")
    return Exit.OK if done.complete else Exit.FAILED


def _bits(perm: str) -> int:
    from mqtrail.wire import PERMISSIONS

    if perm not in PERMISSIONS:
        raise UsageError(f"--perm: found {perm!r}, expected r, w or rw")
    return PERMISSIONS[perm]


def topic_show(topic: Topic, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """Show the queues of a topic with their offsets, and the groups that consume it."""
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        stats = admin.topic_stats(topic)
        groups = admin.groups_of_topic(topic)
    rows = [
        {
            "broker": queue.broker_name or name,
            "queue": queue.queue_id,
            "min_offset": reach.min_offset,
            "max_offset": reach.max_offset,
            "last_stored_ms": reach.last_update_timestamp or None,
        }
        for name, found in sorted(stats.found.items())
        for queue, reach in sorted(found.offset_table.items())
    ]
    names = sorted({group for found in groups.values() for group in found.group_list})
    if not json:
        _draw_queues(topic, rows, names)
    return report_answer({"topic": topic, "queues": rows, "groups": names}, failures_of(groups, stats), json)


def _draw_queues(topic: str, rows: list[dict[str, Any]], groups: list[str]) -> None:
    from .draw import day_clock

    cells = [
        (
            row["broker"],
            row["queue"],
            row["min_offset"],
            row["max_offset"],
            None if row["last_stored_ms"] is None else day_clock(row["last_stored_ms"]),
        )
        for row in rows
    ]
    table(("broker", "queue", "first", "next", "last stored (UTC)"), cells, topic)
    say(f"consumer groups: {', '.join(groups) or 'none'}")


def topic_route(topic: Topic, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """Show the route of a topic: brokers, addresses, queues and permissions."""
    from mqtrail.wire import PERMISSIONS

    with admin_of(load(config), namesrv) as admin:
        route = admin.route(topic)
    letters = {int(bits): found for found, bits in PERMISSIONS.items()}
    addresses = {broker.broker_name: broker for broker in route.broker_datas}
    rows: list[dict[str, Any]] = [
        {
            "cluster": addresses[data.broker_name].cluster if data.broker_name in addresses else "",
            "broker": data.broker_name,
            "read_queues": data.read_queue_nums,
            "write_queues": data.write_queue_nums,
            "perm": letters.get(data.perm & 6, "-"),
            "addresses": {
                str(broker_id): address
                for broker_id, address in sorted(addresses[data.broker_name].broker_addrs.items())
            }
            if data.broker_name in addresses
            else {},
        }
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
    ]
    if json:
        show_json({"topic": topic, "brokers": rows, "order": route.order_topic_conf})
        return Exit.OK
    cells = [
        (
            row["cluster"],
            row["broker"],
            row["read_queues"],
            row["write_queues"],
            row["perm"],
            " ".join(f"{number}:{address}" for number, address in row["addresses"].items()),
        )
        for row in rows
    ]
    table(("cluster", "broker", "read", "write", "perm", "addresses"), cells, topic)
    if route.order_topic_conf:
        say(f"order: {route.order_topic_conf}")
    return Exit.OK


def topic_stats(
    topic: Annotated[list[str] | None, typer.Argument(help="Topic names; omitted: all business topics.")] = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show how many messages topics receive and deliver, as counted by their brokers."""
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json) as shown:
        for name in topic or _business_topics(admin):
            if shown is not None:
                shown.update(shown.task_ids[0], description=f"querying the brokers of {name}")
            found = admin.topic_rates(name)
            failures |= failures_of(found)
            rates = found.values()
            rows.append(_rates(name, None, [one.stored for one in rates]))
            for group in sorted({group for one in rates for group in one.consumed}):
                rows.append(_rates(name, group, [one.consumed[group] for one in rates if group in one.consumed]))
    if not json:
        table(("topic", "delivered to", "per second", "last hour", "last day"), [list(row.values()) for row in rows])
    return report_answer({"topics": rows}, failures, json)


def _rates(topic: str, group: str | None, counted: Sequence[BrokerStatsData]) -> dict[str, Any]:
    """Return a row with the messages received (no group) or delivered to a group, summed over all brokers."""
    return {
        "topic": topic,
        "group": group,
        "a_second": round(sum(one.stats_minute.tps for one in counted), 2),
        "last_hour": sum(one.stats_hour.sum for one in counted),
        "last_day": sum(one.stats_day.sum for one in counted),
    }


def topic_perm(
    topic: Topic,
    perm: Annotated[str, typer.Argument(help="Permission: r, w or rw.")],
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Set the read and write permission of a topic on each of its brokers."""
    bits = _bits(perm)
    with admin_of(load(config), namesrv) as admin:
        done = admin.set_topic_perm(topic, bits, broker=broker)
    return report_change(
        done, f"permission of {topic} is now {perm}", f"did not change {topic!r}", json, topic=topic, perm=perm
    )


def topic_delete(
    topic: Topic,
    cluster: Cluster = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete a topic and its messages on every broker and name server."""
    where = f"of cluster {cluster}" if cluster else "of every cluster"
    confirm_change(f"delete topic {topic!r} and its messages on the brokers {where}", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.delete_topic(topic, cluster=cluster)
    failures = failures_of(done.brokers, done.name_servers)
    gone = [*sorted(done.brokers.found), *sorted(done.name_servers.found)]
    if json:
        show_json({"topic": topic, "done": gone, "failures": failures})
    else:
        for name in gone:
            say(f"{name}: deleted {topic}")
    warn_failures(failures, f"did not delete {topic!r}")
    return Exit.OK if done.complete else Exit.FAILED


def topic_order(
    topic: Topic,
    value: Annotated[
        str | None, typer.Argument(help="Queues per broker, for example broker-a:4;broker-b:4; omitted: show them.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the configuration.")] = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show, set or delete the fixed queues of an ordered topic, which do not change while a broker is down."""
    if value and delete:
        raise UsageError("found a value and --delete, expected one of them")
    with admin_of(load(config), namesrv) as admin:
        if delete:
            return report_change(admin.delete_order_config(topic), "deleted", "did not delete it", json, topic=topic)
        if value:
            _check_order(value)
            return report_change(
                admin.set_order_config(topic, value), f"set to {value}", "did not set it", json, topic=topic
            )
        found = admin.order_config(topic)
    if json:
        show_json({"topic": topic, "order": found})
    else:
        say(found or f"{topic} has no order configuration")
    return Exit.OK if found else Exit.FAILED


def _check_order(value: str) -> None:
    from mqtrail.wire import number_of

    for part in value.split(";"):
        name, _, count = part.rpartition(":")
        if not name or number_of(count) is None:
            raise UsageError(f"order configuration: found {part!r}, expected BROKER:QUEUES;BROKER:QUEUES")


def topic_clean(
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete the queues that deleted topics left behind on brokers."""
    confirm_change("delete the queues of deleted topics", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.clean_unused_topics(cluster=cluster, broker=broker)
    return report_change(done, "cleaned", "did not clean", json)
