"""`alerts`: checks rules for lake and cluster, and sends what changed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from mqtrail.clock import now_ms

from .config import load
from .exits import Exit
from .incident_acts import handled_incidents
from .operate import table
from .options import ConfigFile, Json, LakeFolder, Namesrv
from .output import say, show_json, warn
from .serving import sources_of

RulesFile = Annotated[Path, typer.Option("--rules", readable=False, help="TOML file of rules and channels.")]


def alerts_run(
    rules: RulesFile = Path("alerts.toml"),
    once: Annotated[bool, typer.Option("--once", help="Check the rules once, then exit.")] = False,
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
) -> int:
    """Check the rules and send alerts until SIGINT or SIGTERM.

    Exit code 1 with --once: a channel did not accept an alert.
    """
    from mqtrail.answers.alerts import ALERTS_FILE, AlertHistory, read_rules, watch

    known = read_rules(rules)
    sources = sources_of(lake, namesrv, config)
    settings = load(config)
    history = AlertHistory(settings.data(None) / ALERTS_FILE)
    handled = handled_incidents(settings)
    end = threading.Event()
    if not once:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: end.set())
        say(f"{len(known.rules)} rules, checked every {known.interval}; Ctrl-C ends it")
    try:
        while True:
            failed = watch(known, sources, history, now_ms(), handled=handled)
            for channel, why in failed:
                warn(f"channel {channel}: {why}; will be retried")
            if once:
                return Exit.FAILED if failed else Exit.OK
            if end.wait(known.interval_ms / 1_000):
                return Exit.OK
    finally:
        history.close()
        sources.close()


def alerts_list(
    is_open: Annotated[bool, typer.Option("--open", help="Only open alerts.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of alerts, newest first.")] = 50,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List alerts of the last 90 days, each with the search that shows its messages."""
    from mqtrail.answers import as_json, moment_text
    from mqtrail.answers.alerts import ALERTS_FILE, AlertHistory

    history = AlertHistory(load(config).data(None) / ALERTS_FILE)
    found = history.open()[:limit] if is_open else history.latest(limit)
    history.close()
    if json:
        show_json([as_json(one) for one in found])
        return Exit.OK
    rows = [
        (
            moment_text(one.at_ms, "%Y-%m-%d %H:%M:%S"),
            one.phase.value,
            one.rule,
            one.subject,
            "?" if one.value is None else f"{one.value:g}",
            one.why,
            one.query,
            f"{', '.join(one.unsent)} {one.failure}".strip(),
        )
        for one in found
    ]
    table(("time", "phase", "rule", "subject", "value", "why", "search", "not sent"), rows)
    return Exit.OK


def alerts_test(
    rules: RulesFile = Path("alerts.toml"),
    channel: Annotated[str, typer.Option(help="Only this channel. [default: all]")] = "",
) -> int:
    """Send a test alert to each channel. Exit code 1: a channel did not accept it."""
    from mqtrail.answers.alerts import Alert, AlertPhase, read_rules, send

    known, at_ms = read_rules(rules), now_ms()
    alert = Alert(
        at_ms, "test", "", "info", AlertPhase.BAD, AlertPhase.GOOD, 0, "this is a test of mqtrail alerts", "", ()
    )
    is_failed = False
    for one in known.channels:
        if channel in ("", one.name):
            try:
                send(one, [alert], known.console, at_ms)
                say(f"{one.name}: accepted")
            except Exception as error:  # of any kind of server
                warn(f"{one.name}: {type(error).__name__}: {error}")
                is_failed = True
    return Exit.FAILED if is_failed else Exit.OK
