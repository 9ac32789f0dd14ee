"""`migrate back`: the offsets of a group from RocketMQ back to Kafka."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Config, load
from .exits import Exit
from .migrate import FOLDER_DEFAULT, Folder, Kafka, KafkaSettings, kafka_of
from .operate import table
from .options import ConfigFile, Json, Namesrv
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.migrate import GroupReturn, KafkaConfig


def migrate_back(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group of Kafka.")],
    kafka: Kafka,
    source: Annotated[str, typer.Option("--of", help="Consumer group of RocketMQ. [default: the same name]")] = "",
    folder: Folder = FOLDER_DEFAULT,
    apply: Annotated[
        bool, typer.Option("--apply", help="Commit the offsets. [default: only show what it would commit]")
    ] = False,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Also move back on partitions where the Kafka group is already further.")
    ] = False,
    accept_unknown: Annotated[
        bool,
        typer.Option(
            "--accept-unknown", help="Commit even if it is unknown whether Kafka has all that the group lacks."
        ),
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Commit even if Kafka lacks records that the group has not consumed.")
    ] = False,
    kafka_settings: KafkaSettings = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Translate the offsets of a RocketMQ group back to the committed offsets of a Kafka group.

    The group may get some records again, and misses none.
    """
    flags = {
        "is_applied": apply,
        "may_rewind": rewind,
        "accepts_unknown": accept_unknown,
        "may_lose": accept_loss,
    }
    place = kafka_of(kafka, kafka_settings)
    found = asyncio.run(_back(folder, place, (group, source or group), flags, load(config), namesrv))
    if json:
        show_json(asdict(found))
        return Exit.OK
    rows = [
        (one.partition, one.before, one.after, one.end, "kept" if one.is_kept else "", one.reason)
        for one in found.partitions
    ]
    table(("partition", "before", "after", "end", "", "why"), rows)
    say(
        f"the group reads {found.to_read} records in Kafka: {found.unread} messages that it has not consumed in "
        f"RocketMQ, about {found.repeated} again"
    )
    for text in found.unknown:
        warn(f"not known: {text}")
    if found.lost:
        warn(f"up to {found.lost} records that the group has not consumed are no longer in Kafka")
    if found.members:
        warn(f"{found.members} members of the RocketMQ group run: what they consume from now on is repeated in Kafka")
    if not apply:
        say("nothing was committed: pass --apply")
    return Exit.OK


async def _back(
    folder: Path,
    kafka: KafkaConfig,
    groups: tuple[str, str],
    flags: dict[str, bool],
    settings: Config,
    namesrv: str | None,
) -> GroupReturn:
    from mqtrail.client import Admin
    from mqtrail.migrate import return_group

    async with Admin(settings.namesrv(namesrv), config=settings.room("client")) as admin:
        return await return_group(folder, kafka, admin, groups, **flags)
