"""`incidents`: find the causes of bad messages, and show one of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import Exit, UsageError
from .incident_acts import IncidentId, Since, Until, handled_incidents
from .options import ConfigFile, Json, LakeCluster, LakeFolder, time_range
from .output import show_answer, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers import IncidentsAnswer, Scope, ShownIncident

SHOWN_MAX = 10
Statuses = Annotated[
    list[str] | None,
    typer.Option("--status", help="Only bad messages with this verdict code; repeatable. [default: all bad codes]"),
]
Rows = Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of incidents to print.")]


def incidents(
    context: typer.Context,
    since: Since = "",
    until: Until = "",
    status: Statuses = None,
    rows: Rows = SHOWN_MAX,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List the causes of bad messages, the largest first, and store them in the lake."""
    if context.invoked_subcommand is not None:
        return Exit.OK
    from mqtrail.answers import as_json

    found = _found(since, until, status, lake, cluster, config, json)
    found = handled_incidents(load(config)).shown_in(found, now_ms())
    if found.not_kept:
        warn(f"not kept in the lake: {found.not_kept}")
    if json:
        show_json(as_json(found))
    else:
        from .draw_incidents import incident_list

        show_answer(partial(incident_list, rows_max=rows), found)
    return exit_of(found.scope, Exit.OK)


def incidents_show(
    incident: IncidentId,
    since: Since = "",
    until: Until = "",
    status: Statuses = None,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show one incident: extent, conditions with their certainty, messages as proof, and advice.

    Searches like `list`. Without --from, --to and --status, incidents stored in the lake are shown without a search.
    """
    from mqtrail.answers import as_json
    from mqtrail.answers.handling import HandlingFailed

    kept, scope = chosen(incident, since, until, status, lake, cluster, config, json)
    if scope is not None:
        return exit_of(scope, Exit.FAILED)
    try:
        kept = handled_incidents(load(config)).of(kept, now_ms())
    except HandlingFailed as error:
        warn(str(error))
    if json:
        show_json(as_json(kept[0]))
    else:
        from .draw_incidents import incident as drawn

        show_answer(drawn, kept[0])
    return Exit.OK


def chosen(
    incident: str,
    since: str,
    until: str,
    status: list[str] | None,
    lake: str | None,
    cluster: str,
    config: ConfigFile,
    json: bool,
) -> tuple[tuple[ShownIncident, ...], Scope | None]:
    """Return the one incident whose id begins so: of the lake, or of a search; or what was searched without finding it.

    UsageError: there are several.
    """
    kept: tuple[ShownIncident, ...] = ()
    if not (since or until or status):
        with reading("reading the lake", json):
            kept = lake_answers(load(config), lake, cluster).kept_incidents(incident)
    if not kept:
        found = _found(since, until, status, lake, cluster, config, json)
        kept = tuple(one for one in found.incidents if one.incident_id.startswith(incident))
        if not kept:
            warn(f"found no incident {incident!r} in the searched time: pass its --from and --to")
            return (), found.scope
    if len(kept) > 1:
        names = ", ".join(one.incident_id for one in kept[:SHOWN_MAX])
        raise UsageError(f"found {len(kept)} incidents that begin with {incident!r}, expected one: {names}")
    return kept, None


def _found(
    since: str,
    until: str,
    status: list[str] | None,
    lake: str | None,
    cluster: str,
    config: ConfigFile,
    json: bool,
) -> IncidentsAnswer:
    from mqtrail.trail import CODES
    from mqtrail.trail.incidents import IncidentSettings

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    settings = IncidentSettings()
    if status:
        codes = tuple(one.upper() for one in status)
        if unknown := [one for one in codes if one not in CODES]:
            raise UsageError(f"--status: found {unknown[0]!r}, expected a verdict code, for example DEAD_LETTERED")
        settings = replace(settings, codes=codes)
    with reading("comparing bad messages with good ones", json):
        return lake_answers(load(config), lake, cluster).incidents(now, first_ms, end_ms, settings=settings)
