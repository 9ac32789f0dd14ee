"""`cluster import`: make what an export of another cluster has, after a plan."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Config, load, user_passwords
from .exits import Exit, UsageError
from .operate import Cluster, table
from .options import ConfigFile, Json, Namesrv
from .output import progress, say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.mirror import ExportedCluster, ImportStep


def cluster_import(
    file: Annotated[Path, typer.Argument(readable=False, help="File with the output of `cluster export`.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Create everything that is missing. [default: only show the plan]")
    ] = False,
    change: Annotated[
        bool, typer.Option("--change", help="With --apply: also change everything that differs.")
    ] = False,
    offsets: Annotated[
        bool,
        typer.Option(
            "--offsets", help="Also write offsets, unchanged; correct only if the queues have the same messages."
        ),
    ] = False,
    passwords: Annotated[
        Path | None,
        typer.Option(
            "--passwords",
            readable=False,
            help="File with NAME=PASSWORD lines for users and accounts to create; an export has no passwords.",
        ),
    ] = None,
    cluster: Cluster = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Make topics, groups, access control and values of an export in a cluster: what is missing, and no more.

    Without --apply it shows what would be made and changed, what is equal, and what is in conflict.
    """
    from mqtrail.mirror import read_export

    if change and not apply:
        raise UsageError("found --change without --apply, expected both: without --apply nothing is changed")
    try:
        export = read_export(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}: expected the output of `mqtrail cluster export`") from None
    known = user_passwords(passwords) if passwords is not None else {}
    wanted = _WantedImport(export, cluster, known, offsets, apply, change)
    with progress("querying the brokers", enabled=not json):
        steps = asyncio.run(_import(wanted, load(config), namesrv))
    counts = Counter(str(one.action) for one in steps)
    if json:
        show_json({"is_applied": apply, "counts": counts, "steps": [one.facts() for one in steps]})
    else:
        rows = [
            (one.action, one.kind, one.name, one.broker, "done" if one.is_done else "", one.error or one.detail)
            for one in steps
            if one.action != "equal"
        ]
        table(("", "what", "name", "broker", "", "detail"), rows)
        say(", ".join(f"{counts[one]} {one}" for one in ("make", "change", "equal", "conflict")))
        if not apply:
            say("nothing was changed: pass --apply")
        elif left := sum(1 for one in steps if one.action == "change" and not one.is_done and not one.error):
            warn(f"{left} differ, and were not changed: pass --change")
    open_ = [one for one in steps if one.action != "equal" and not one.is_done]
    return Exit.FAILED if apply and open_ else Exit.OK


@dataclass(frozen=True, slots=True)
class _WantedImport:
    """The options of one run."""

    export: ExportedCluster
    cluster: str | None
    passwords: dict[str, str] = field(repr=False)
    offsets: bool
    apply: bool
    change: bool


async def _import(wanted: _WantedImport, settings: Config, namesrv: str | None) -> list[ImportStep]:
    from mqtrail.client import Admin
    from mqtrail.mirror import ClusterImport

    async with Admin(settings.namesrv(namesrv), config=settings.room("client")) as admin:
        one = ClusterImport(
            admin,
            wanted.export,
            cluster=wanted.cluster,
            passwords=wanted.passwords,
            with_offsets=wanted.offsets,
        )
        steps = await one.plan()
        return await one.apply(steps, may_change=wanted.change) if wanted.apply else steps
