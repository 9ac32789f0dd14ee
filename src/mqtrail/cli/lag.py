"""`lag`: what groups still have to read, of all groups or of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.wire import MQError

from .config import Config, load
from .exits import Exit, SourceUnavailable, UsageError
from .operate import admin_of
from .options import REPORT_ROWS, ConfigFile, Json, LakeCluster, LakeFolder, Namesrv, duration_ms
from .output import progress, show_answer, show_json, warn

if TYPE_CHECKING:
    from mqtrail.client import ClusterLag, GroupLag

OVER_MS_MAX = 3_600_000
Over = Annotated[
    str,
    typer.Option(
        "--over",
        help="Time between the two readings of the trend, such as 10s. [default: one reading; of a lake 10m]",
    ),
]
Rows = Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows of each table.")]


def lag(
    context: typer.Context,
    over: Over = "",
    rows: Rows = 2 * REPORT_ROWS,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show what groups still have to read, the longest wait first: now, or as of the last sample in a lake."""
    if context.invoked_subcommand is not None:
        return Exit.OK
    found = _read(load(config), _Source(namesrv, lake, cluster), None, over, 0, json)
    found = replace(found, groups=tuple(replace(group, queues=()) for group in found.groups))
    if json:
        show_json(_as_json(found))
    else:
        from .draw_lag import cluster_lag

        show_answer(partial(cluster_lag, rows_max=rows), found)
    return exit_of(found)


def lag_show(
    group: Annotated[str, typer.Argument(help="Group name.")],
    over: Over = "",
    messages: Annotated[int, typer.Option(min=0, max=32, help="Number of oldest waiting messages to show.")] = 10,
    rows: Rows = 2 * REPORT_ROWS,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show the lag of one group in each queue, and the messages that have waited longest."""
    found = _read(load(config), _Source(namesrv, lake, cluster), group, over, messages, json)
    if json:
        show_json(_as_json(found))
    elif found.groups:
        from .draw_lag import group_lag

        show_answer(partial(group_lag, rows_max=rows), found)
    code = exit_of(found)
    if not found.groups and code == Exit.OK:
        where = "brokers have" if lake is None else "the samples of the lake have"
        warn(f"found no group {group!r}: {where} neither a configuration, nor an offset, nor a member of it")
        return Exit.FAILED
    return code


@dataclass(frozen=True, slots=True)
class _Source:
    """Where to read: the options of the command."""

    namesrv: str | None
    lake: str | None
    cluster: str


def _read(settings: Config, source: _Source, group: str | None, over: str, count: int, json: bool) -> ClusterLag:
    over_ms = duration_ms(over, "--over") if over else None
    if source.lake is not None:
        if source.namesrv is not None:
            raise UsageError("found --lake and --namesrv, expected one of them")
        return _read_lake(settings, source, group, over_ms, count, json)
    if over_ms is not None and not 0 < over_ms <= OVER_MS_MAX:
        raise UsageError(f"--over: found {over!r}, expected more than 0s and at most 1h")
    with admin_of(settings, source.namesrv) as admin, progress("querying the brokers", enabled=not json):
        try:
            return admin.lag(group, over_ms=over_ms, oldest_count=count)
        except MQError as error:  # no name server answers
            raise SourceUnavailable(str(error)) from error


def _read_lake(
    settings: Config, source: _Source, group: str | None, over_ms: int | None, count: int, json: bool
) -> ClusterLag:
    from mqtrail.clock import now_ms

    from .answers import lake_answers, reading

    over = {} if over_ms is None else {"over_ms": over_ms}
    with reading("reading the lake", json):
        return lake_answers(settings, source.lake, source.cluster).lag(now_ms(), group, oldest_count=count, **over)


def exit_of(found: ClusterLag) -> Exit:
    """Return the exit code: CANNOT_LOOK if a part of the cluster could not be read. The reasons are printed."""
    for problem in found.problems:
        warn(problem)
    return Exit.CANNOT_LOOK if found.problems else Exit.OK


def _as_json(found: ClusterLag) -> dict[str, Any]:
    value = asdict(found)
    for group, one in zip(value["groups"], found.groups, strict=True):
        group |= _derived(one)
    return value


def _derived(group: GroupLag) -> dict[str, Any]:
    return {"lag_ms": group.lag_ms, "is_unknown": group.is_unknown}
