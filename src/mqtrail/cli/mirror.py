"""`mirror run`, `mirror offsets`, `mirror status`: messages and groups from one cluster of RocketMQ to another."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.clock import now_ms

from .config import Config, load
from .exits import Exit, SourceUnavailable, UsageError
from .feeds import run_feed, show_progress
from .operate import table
from .options import ConfigFile, Json, Namesrv, duration_ms, moment_ms
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.mirror import MirrorConfig, MirroredGroup, MirroredOffsets, MirrorState

FOLDER_DEFAULT = Path("mirror")

Source = Annotated[
    str, typer.Option("--source", metavar="HOST:PORT[;…]", help="Name server addresses of the source cluster.")
]
SourceConfig = Annotated[
    Path | None,
    typer.Option(
        "--source-config",
        readable=False,
        help="Settings file for the source: [client], [credentials], [tls]. [default: as for the target]",
    ),
]
SourceName = Annotated[
    str, typer.Option("--source-name", help="Name of the source for the loop guard. [default: that of the cluster]")
]
TargetName = Annotated[
    str, typer.Option("--target-name", help="Name of the target for the loop guard. [default: that of the cluster]")
]
Folder = Annotated[Path, typer.Option("--folder", readable=False, help="Folder with the state of this mirror.")]
Start = Annotated[
    str, typer.Option("--start", help="Start of a new topic: first, end, a time (UTC), or an age such as 2h.")
]
Skips = Annotated[
    list[str] | None,
    typer.Option("--skip-message", metavar="BROKER/TOPIC/QUEUE@OFFSET", help="Message to leave out; repeatable."),
]
OnlyOwn = Annotated[
    bool, typer.Option("--only-own", help="Leave out messages that another mirror copied to the source.")
]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Continue after messages that the source deleted before they were read.")
]
CopyAgain = Annotated[
    bool,
    typer.Option("--copy-again", help="Start even if the target has copies of the messages; it will have them twice."),
]
NewQueues = Annotated[
    bool, typer.Option("--new-queues", help="Choose the queues of the target anew; keys may change their queue.")
]
Once = Annotated[bool, typer.Option("--once", help="Stop at the offsets where the topics ended at the start.")]
RetryFor = Annotated[
    str, typer.Option("--retry-for", help="How long the source or brokers may be unreachable, for example 5m.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic of the mirror; repeatable. [default: all]")
]
AcceptGroupLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Write even if there are messages that the group would never get.")
]


def mirror_run(
    topics: Annotated[list[str], typer.Argument(metavar="TOPICS", help="Topics, which both clusters have.")],
    source: Source,
    folder: Folder = FOLDER_DEFAULT,
    source_name: SourceName = "",
    target_name: TargetName = "",
    start: Start = "first",
    skip: Skips = None,
    only_own: OnlyOwn = False,
    accept_loss: AcceptLoss = False,
    copy_again: CopyAgain = False,
    new_queues: NewQueues = False,
    once: Once = False,
    retry: RetryFor = "5m",
    source_config: SourceConfig = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Copy the messages of topics from a source cluster to the same topics of another, until SIGINT or SIGTERM.

    Run it again to continue. Two mirrors in opposite directions do not send a message back.
    """
    from mqtrail.mirror import MirrorConfig

    _check(topics, (source_name, target_name), skip or ())
    retry_ms = duration_ms(retry, "--retry-for")
    begin: str | int = start if start in ("first", "end") else moment_ms(start, now_ms(), "--start")
    of_source, settings = _source_settings(source_config, config), load(config)
    wanted = MirrorConfig(
        source=source_name,
        target=target_name,
        topics=tuple(dict.fromkeys(topics)),
        folder=folder,
        namesrv=of_source.namesrv(source),
        instance=of_source.room("client"),
        start=begin,
        skip=frozenset(skip or ()),
        only_own=only_own,
        may_lose=accept_loss,
        may_repeat=copy_again,
        takes_new_queues=new_queues,
        is_once=once,
        retry_ms=retry_ms,
    )
    found = run_feed(_run(wanted, settings, namesrv))
    if json:
        show_json(_facts(found, is_running=False))
    else:
        say(f"{_counts(found)}; {_lag(found)}; run it again to continue")
    return Exit.OK


def _check(topics: Sequence[str], names: tuple[str, str], skip: Sequence[str]) -> None:
    """Check the texts of options. UsageError, InvalidParameter."""
    from mqtrail.wire import parse_place, validate_topic

    for one in topics:
        validate_topic(one)
    for name, option in zip(names, ("--source-name", "--target-name"), strict=True):
        if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", name):
            raise UsageError(f"{option}: found {name!r}, expected at most 64 of A-Z a-z 0-9 _ . -")
    for place in skip:
        try:
            parse_place(place)
        except ValueError:
            raise UsageError(
                f"--skip-message: found {place!r}, expected BROKER/TOPIC/QUEUE@OFFSET, for example broker-a/orders/3@17"
            ) from None


def _source_settings(source_config: Path | None, config: Path | None) -> Config:
    """Return the settings of the source: of its own file, without the environment, else those of the target."""
    return load(config) if source_config is None else load(source_config, {})


async def _run(wanted: MirrorConfig, settings: Config, namesrv: str | None) -> MirrorState:
    from mqtrail.client import Admin
    from mqtrail.mirror import Mirror, name_of
    from mqtrail.net import stop_on_signals

    address = settings.namesrv(namesrv)
    if not wanted.source:
        async with Admin(wanted.namesrv, config=wanted.instance) as admin:
            wanted = replace(wanted, source=await name_of(admin, "--source-name"))
    if not wanted.target:
        async with Admin(address, config=settings.room("client")) as admin:
            wanted = replace(wanted, target=await name_of(admin, "--target-name"))
    mirror = Mirror(wanted, address, settings.client("producer"))
    stop_on_signals(mirror.stop)
    return await mirror.run()


def mirror_offsets(
    group: Annotated[str, typer.Argument(help="Consumer group of the source.")],
    source: Source,
    to: Annotated[str, typer.Option("--to", help="Consumer group of the target. [default: the same name]")] = "",
    topics: Topics = None,
    folder: Folder = FOLDER_DEFAULT,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the offsets. [default: only show what it would write]")
    ] = False,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Also move back on queues where the group is already further.")
    ] = False,
    accept_loss: AcceptGroupLoss = False,
    source_config: SourceConfig = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Translate the offsets of a group of the source to the target, and count what is repeated or skipped."""
    from mqtrail.mirror import MirroredOffsets
    from mqtrail.wire import validate_group

    validate_group(group)
    validate_group(to or group)
    wanted = MirroredOffsets(
        folder=folder,
        group=group,
        target_group=to or group,
        topics=tuple(dict.fromkeys(topics or ())),
        is_applied=apply,
        may_rewind=rewind,
        may_lose=accept_loss,
    )
    of_source, settings = _source_settings(source_config, config), load(config)
    found = asyncio.run(_offsets(wanted, of_source, source, settings, namesrv))
    if json:
        show_json([asdict(one) | {"repeated": one.repeated, "skipped": one.skipped} for one in found])
    else:
        for one in found:
            _draw(one)
        if not apply:
            say("nothing was written: pass --apply")
    return Exit.OK if not apply or all(one.is_complete for one in found) else Exit.FAILED


async def _offsets(
    wanted: MirroredOffsets, of_source: Config, source: str, settings: Config, namesrv: str | None
) -> list[MirroredGroup]:
    from mqtrail.client import Admin
    from mqtrail.mirror import mirrored_offsets

    async with (
        Admin(of_source.namesrv(source), config=of_source.room("client")) as there,
        Admin(settings.namesrv(namesrv), config=settings.room("client")) as here,
    ):
        return await mirrored_offsets(wanted, there, here)


def _draw(found: MirroredGroup) -> None:
    rows = [
        (
            one.queue,
            one.before,
            one.after,
            one.end,
            one.repeated,
            one.skipped,
            "kept" if one.is_kept else "",
            one.reason,
        )
        for one in found.queues
    ]
    headings = ("queue", "before", "after", "end", "repeated", "skipped", "", "why")
    table(headings, rows, f"{found.target_group} on {found.topic}")
    say(f"{found.repeated} repeated, {found.skipped} skipped, {found.missing} without a copy")
    if found.behind:
        warn(f"the group is {found.behind} messages ahead of the mirror: it gets them again. Let the mirror catch up")
    for one in found.queues:
        if one.error:
            warn(f"{one.queue}: not written: {one.error}")


def mirror_status(folder: Folder = FOLDER_DEFAULT, json: Json = False) -> int:
    """Show the progress of a mirror: its lag, what it copied and what it left out."""
    from mqtrail.mirror import is_running, read_mirror

    found = read_mirror(folder)
    if found is None:
        raise SourceUnavailable(
            f"found no mirror in {str(folder)!r}, expected its state: start `mqtrail mirror run`, or pass --folder"
        )
    facts = _facts(found, is_running=is_running(folder))
    rows = [
        ("from", f"{found.source}, {len(found.next_offsets)} queues of {', '.join(found.queues)}"),
        ("to", f"{found.target}, by sharding key: {', '.join(found.keyed) or '-'}"),
        ("lag", _lag(found)),
        ("messages", _counts(found)),
        ("left out", ", ".join(found.skipped) or "-"),
        ("lost", ", ".join(f"{count} of {queue}" for queue, count in found.lost.items()) or "-"),
        ("away", ", ".join(found.away) or "-"),
    ]
    return show_progress(facts, rows, str(folder), json)


def _facts(state: MirrorState, *, is_running: bool) -> dict[str, Any]:
    further = {"is_running": is_running, "lag": state.lag(), "saved_ago_ms": max(0, now_ms() - state.saved_ms)}
    return asdict(state) | further


def _lag(state: MirrorState) -> str:
    lag = state.lag()
    if lag is None:
        return "lag unknown"
    return f"{lag} messages behind the source {(now_ms() - state.ends_ms) / 1000:.1f} s ago"


def _counts(state: MirrorState) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(state.counts.items())) or "0 copied"
