"""`incidents ack`, `reopen`, `mute` and `unmute`: in the file that console and alerts of the data folder read too."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.clock import now_ms

from .answers import exit_of
from .config import Config, load
from .exits import Exit, UsageError
from .options import ConfigFile, Json, LakeCluster, LakeFolder, duration_ms
from .output import say, show_json

if TYPE_CHECKING:
    from mqtrail.answers.handling import HandledIncidents

IncidentId = Annotated[str, typer.Argument(metavar="ID", help="Id of the incident, or its first characters.")]
Since = Annotated[
    str, typer.Option("--from", help="Begin: a time (UTC), or an age such as 2h. [default: the lake's last 24 h]")
]
Until = Annotated[str, typer.Option("--to", help="End (exclusive). [default: the lake's end]")]
Why = Annotated[str, typer.Option("--why", help="Reason; it is kept in the history.")]


def handled_incidents(settings: Config, audit_log: Path | None = None, cluster: str = "") -> HandledIncidents:
    """Return the acknowledged and muted incidents of the data folder. audit_log: None: that of the folder.

    cluster: name of the cluster in a console with several.
    """
    from mqtrail.answers.handling import HANDLED_FILE, HandledIncidents
    from mqtrail.net import AUDIT_FILE

    data = settings.data(None)
    return HandledIncidents(data / HANDLED_FILE, audit_log or data / AUDIT_FILE, cluster)


def incidents_ack(
    incident: IncidentId,
    why: Why = "",
    since: Since = "",
    until: Until = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Acknowledge an incident: somebody works on it. A later incident with the same cause is open again."""
    return _act("acknowledge", incident, why, 0, (since, until, lake, cluster), config, json)


def incidents_reopen(
    incident: IncidentId,
    why: Why = "",
    since: Since = "",
    until: Until = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Take back the acknowledgement of an incident."""
    return _act("reopen", incident, why, 0, (since, until, lake, cluster), config, json)


def incidents_mute(
    incident: IncidentId,
    why: Annotated[str, typer.Option("--why", help="Reason; it is kept in the history.", show_default=False)],
    hold: Annotated[str, typer.Option("--for", help="How long, at most 90d, for example 4h.")] = "1d",
    since: Since = "",
    until: Until = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Mute an incident: until then, `alerts run` raises no alert about it or a later one with the same cause."""
    return _act(
        "mute", incident, why, now_ms() + duration_ms(hold, "--for"), (since, until, lake, cluster), config, json
    )


def incidents_unmute(
    incident: IncidentId,
    why: Why = "",
    since: Since = "",
    until: Until = "",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """End the mute of an incident."""
    return _act("unmute", incident, why, 0, (since, until, lake, cluster), config, json)


def _act(
    kind: str,
    incident: str,
    why: str,
    until_ms: int,
    where: tuple[str, str, str | None, str],
    config: ConfigFile,
    json: bool,
) -> int:
    from mqtrail.answers import IncidentActKind, as_json
    from mqtrail.answers.handling import InvalidAct, UnknownIncident, check_act
    from mqtrail.net import Actor

    from .draw_incidents import handling_text
    from .incidents import chosen

    wanted = IncidentActKind(kind)
    try:
        check_act(wanted, why.strip(), until_ms, now_ms())  # before a search
        since, until, lake, cluster = where
        found = chosen(incident, since, until, None, lake, cluster, config, json)
        if isinstance(found, UnknownIncident):
            return exit_of(found.scope, Exit.FAILED)
        actor = Actor(getpass.getuser(), "", "command")
        handling = handled_incidents(load(config)).act(found, wanted, actor, now_ms(), why=why, until_ms=until_ms)
    except InvalidAct as error:
        raise UsageError(str(error)) from None
    if json:
        show_json(as_json(handling))
    else:
        say(f"{found.incident_id}: {handling_text(handling) or 'open'}")
    return Exit.OK
