"""`migrate bridge`, `migrate offsets`, `migrate status`: topics and groups from Kafka to RocketMQ."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.clock import now_ms

from .config import Config, kafka_settings_text, load
from .exits import Exit, SourceUnavailable, UsageError
from .feeds import run_feed, show_progress
from .operate import table
from .options import ConfigFile, Json, Namesrv, duration_ms, moment_ms
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.migrate import BridgeConfig, BridgeState, GroupMove, KafkaConfig

FOLDER_DEFAULT = Path("migration")

Kafka = Annotated[str, typer.Option("--kafka", metavar="HOST:PORT[,…]", help="Addresses of Kafka.")]
KafkaSettings = Annotated[
    Path | None,
    typer.Option(
        "--kafka-settings",
        readable=False,
        help="File with name=value lines to log in to Kafka: security.protocol, sasl.mechanism, sasl.username, …",
    ),
]
Folder = Annotated[Path, typer.Option("--folder", readable=False, help="Folder with the files of this migration.")]
Skips = Annotated[
    list[str] | None,
    typer.Option("--skip-record", metavar="TOPIC:PARTITION:OFFSET", help="Record to leave out; repeatable."),
]

Order = Annotated[
    str, typer.Option("--order", help="Choose a record's queue by partition, or by key as the clients' by_hash does.")
]
Headers = Annotated[
    str, typer.Option("--headers", help="Headers that do not fit properties: encode (in KAFKA_HEADERS) or refuse.")
]
Start = Annotated[
    str, typer.Option("--start", help="Start of a new folder: first, end, a time (UTC), or an age such as 2h.")
]
Compacted = Annotated[bool, typer.Option("--compacted", help="Accept a compacted topic: RocketMQ does not compact.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Continue after records that Kafka deleted before they were read.")
]
IntoUsedTopic = Annotated[
    bool, typer.Option("--into-used-topic", help="Begin even if the topic of RocketMQ has messages.")
]
NewQueues = Annotated[
    bool,
    typer.Option("--new-queues", help="Continue although the topic's queues changed; keys may change their queue."),
]
AcceptGroupLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Write even if RocketMQ lacks records that the group has not consumed.")
]
Once = Annotated[bool, typer.Option("--once", help="Stop at the offsets where Kafka's topic ended at the start.")]
RetryFor = Annotated[
    str, typer.Option("--retry-for", help="How long Kafka or brokers may be unreachable, for example 5m.")
]


def kafka_of(address: str, settings: Path | None) -> KafkaConfig:
    """Return where Kafka is. UsageError, MigrateError."""
    for one in address.split(","):
        found = re.fullmatch(r".+:(\d{1,5})", one)
        if not found or not 0 < int(found[1]) < 65_536:
            raise UsageError(
                f"--kafka: found {address!r}, expected host:port, several with commas, ports from 1 to 65535"
            )
    from mqtrail.migrate import KafkaConfig, kafka_settings

    return KafkaConfig(address, kafka_settings(kafka_settings_text(settings)) if settings is not None else {})


def migrate_bridge(
    topic: Annotated[str, typer.Argument(help="Topic of Kafka.")],
    kafka: Kafka,
    to: Annotated[str, typer.Option("--to", help="Topic of RocketMQ; it must exist. [default: the same name]")] = "",
    folder: Folder = FOLDER_DEFAULT,
    order: Order = "partition",
    headers: Headers = "encode",
    start: Start = "first",
    skip: Skips = None,
    compacted: Compacted = False,
    accept_loss: AcceptLoss = False,
    into_used_topic: IntoUsedTopic = False,
    new_queues: NewQueues = False,
    once: Once = False,
    retry: RetryFor = "5m",
    kafka_settings: KafkaSettings = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Send the records of a Kafka topic to a topic of RocketMQ, in order, until SIGINT or SIGTERM.

    Run it again to continue.
    """
    if order not in ("partition", "key"):
        raise UsageError(f"--order: found {order!r}, expected partition or key")
    if headers not in ("encode", "refuse"):
        raise UsageError(f"--headers: found {headers!r}, expected encode or refuse")
    for one in skip or ():
        if not re.fullmatch(r"[^:]+:\d+:\d+", one):
            raise UsageError(f"--skip-record: found {one!r}, expected topic:partition:offset, for example orders:3:17")
    retry_ms = duration_ms(retry, "--retry-for")
    begin: str | int = start if start in ("first", "end") else moment_ms(start, now_ms(), "--start")
    source = kafka_of(kafka, kafka_settings)
    from mqtrail.migrate import BridgeConfig, HeaderRule, OrderBy
    from mqtrail.wire import validate_topic

    validate_topic(to or topic)
    wanted = BridgeConfig(
        kafka=source,
        topic=topic,
        target=to or topic,
        folder=folder,
        order=OrderBy(order),
        headers=HeaderRule(headers),
        start=begin,
        skip=frozenset(skip or ()),
        may_be_compacted=compacted,
        may_lose=accept_loss,
        may_be_used=into_used_topic,
        takes_new_queues=new_queues,
        is_once=once,
        retry_ms=retry_ms,
    )
    found = run_feed(_bridge(wanted, load(config), namesrv))
    if json:
        show_json(_facts(found, is_running=False))
    else:
        say(f"{_counts(found)}; {_lag(found)}; run it again to continue")
    return Exit.OK


async def _bridge(wanted: BridgeConfig, settings: Config, namesrv: str | None) -> BridgeState:
    from mqtrail.migrate import Bridge
    from mqtrail.net import stop_on_signals

    bridge = Bridge(wanted, settings.namesrv(namesrv), settings.client("producer"))
    stop_on_signals(bridge.stop)
    return await bridge.run()


def migrate_offsets(
    source_group: Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group of Kafka.")],
    kafka: Kafka,
    to: Annotated[str, typer.Option("--to", help="Consumer group of RocketMQ. [default: the same name]")] = "",
    folder: Folder = FOLDER_DEFAULT,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the offsets. [default: only show what it would write]")
    ] = False,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Also move back on queues where the RocketMQ group is already further.")
    ] = False,
    accept_loss: AcceptGroupLoss = False,
    kafka_settings: KafkaSettings = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Translate the committed offsets of a Kafka group to a RocketMQ group, by the bridge's offset map.

    The group may get some records again, and misses none.
    """
    from mqtrail.wire import validate_group

    validate_group(to or source_group)
    wanted = (source_group, to or source_group)
    flags = {"is_applied": apply, "may_rewind": rewind, "may_lose": accept_loss}
    found = asyncio.run(_offsets(folder, kafka_of(kafka, kafka_settings), wanted, flags, load(config), namesrv))
    if json:
        show_json(asdict(found))
    else:
        rows = [
            (one.queue, one.before, one.after, one.end, "kept" if one.is_kept else "", one.reason)
            for one in found.queues
        ]
        table(("queue", "before", "after", "end", "", "why"), rows)
        if not apply:
            say("nothing was written: pass --apply")
    if found.behind:
        warn(
            f"the Kafka group is {found.behind} records ahead of the bridge: it gets them again. Let the bridge catch "
            "up, then translate again"
        )
    if lost := found.before_start + found.expired:
        warn(
            f"the group lacks {lost} records that RocketMQ does not have: {found.before_start} from before the start "
            f"of the bridge, up to {found.expired} that have expired: let it consume them in Kafka first"
        )
    for one in found.queues:
        if one.error:
            warn(f"{one.queue}: not written: {one.error}")
    return Exit.OK if found.is_complete or not apply else Exit.FAILED


async def _offsets(
    folder: Path,
    kafka: KafkaConfig,
    groups: tuple[str, str],
    flags: dict[str, bool],
    settings: Config,
    namesrv: str | None,
) -> GroupMove:
    from mqtrail.client import Admin
    from mqtrail.migrate import move_group

    async with Admin(settings.namesrv(namesrv), config=settings.room("client")) as admin:
        return await move_group(folder, kafka, admin, groups, **flags)


def migrate_status(folder: Folder = FOLDER_DEFAULT, json: Json = False) -> int:
    """Show the progress of a migration: the bridge's lag, what it sent and what it left out."""
    from mqtrail.migrate import is_running, read_bridge

    found = read_bridge(folder)
    if found is None:
        raise SourceUnavailable(
            f"found no bridge in {str(folder)!r}, expected its state: start `mqtrail migrate bridge`, or pass --folder"
        )
    facts = _facts(found, is_running=is_running(folder))
    rows = [
        ("from", f"Kafka topic {found.topic}, {len(found.next_offsets)} partitions"),
        ("to", f"topic {found.target}, {len(found.queues)} queues, order by {found.order}"),
        ("lag", _lag(found)),
        ("sent", _counts(found)),
        ("left out", ", ".join(found.skipped) or "-"),
        ("lost", ", ".join(f"{count} of partition {one}" for one, count in found.lost.items()) or "-"),
    ]
    return show_progress(facts, rows, str(folder), json)


def _facts(state: BridgeState, *, is_running: bool) -> dict[str, Any]:
    now = now_ms()
    further = {"is_running": is_running, "lag": state.lag(), "saved_ago_ms": max(0, now - state.saved_ms)}
    return asdict(state) | {"sent": sum(state.counts.values())} | further


def _lag(state: BridgeState) -> str:
    lag = state.lag()
    return "lag unknown" if lag is None else f"{lag} offsets behind Kafka {(now_ms() - state.ends_ms) / 1000:.1f} s ago"


def _counts(state: BridgeState) -> str:
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(state.counts.items()))
    return f"{sum(state.counts.values())} records{f' ({found})' if found else ''}"
