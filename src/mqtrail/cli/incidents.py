"""`incidents`: find the causes of bad messages, and show one of them."""

from __future__ import annotations

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
    from mqtrail.answers import IncidentsAnswer, ShownIncident
    from mqtrail.answers.handling import UnknownIncident

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

    Searches like `list`. An incident that the search does not find is shown as stored, except with --status.
    """
    from mqtrail.answers import as_json
    from mqtrail.answers.handling import HandlingFailed, UnknownIncident

    one = chosen(incident, since, until, status, lake, cluster, config, json)
    if isinstance(one, UnknownIncident):
        return exit_of(one.scope, Exit.FAILED)
    try:
        (one,) = handled_incidents(load(config)).of([one], now_ms())
    except HandlingFailed as error:
        warn(str(error))
    if json:
        show_json(as_json(one))
    else:
        from .draw_incidents import incident as drawn

        show_answer(drawn, one)
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
) -> ShownIncident | UnknownIncident:
    """Return the one incident whose id begins so, as the console finds it; or why there is none, which was printed.

    UsageError: there are several.
    """
    from mqtrail.answers.handling import AmbiguousIncident, UnknownIncident, incident_with_id

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    codes = _codes(status)
    with reading("comparing bad messages with good ones", json):
        answers = lake_answers(load(config), lake, cluster)
        try:
            return incident_with_id(answers, incident, now, first_ms, end_ms, codes=codes, is_beginning=True)
        except AmbiguousIncident as error:
            raise UsageError(str(error)) from None
        except UnknownIncident as error:
            unknown = error
    warn(str(unknown))
    return unknown


def _found(
    since: str,
    until: str,
    status: list[str] | None,
    lake: str | None,
    cluster: str,
    config: ConfigFile,
    json: bool,
) -> IncidentsAnswer:
    from mqtrail.trail.incidents import IncidentSettings

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    codes = _codes(status)
    settings = IncidentSettings(codes=codes) if codes else IncidentSettings()
    with reading("comparing bad messages with good ones", json):
        return lake_answers(load(config), lake, cluster).incidents(now, first_ms, end_ms, settings=settings)


def _codes(status: list[str] | None) -> tuple[str, ...]:
    from mqtrail.trail import CODES

    codes = tuple(one.upper() for one in status or ())
    if unknown := [one for one in codes if one not in CODES]:
        raise UsageError(f"--status: found {unknown[0]!r}, expected a verdict code, for example DEAD_LETTERED")
    return codes
