"""Shared parts of operators' commands: the admin client, confirmations, and results per broker."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exits import Exit, UsageError
from .output import confirm, progress, say, show, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers.changes import Change
    from mqtrail.client import Gathered, SyncAdmin

    from .config import Config

Cluster = Annotated[str | None, typer.Option("--cluster", help="Only brokers of this cluster. [default: all]")]
Broker = Annotated[str | None, typer.Option("--broker", help="Only this broker: name, or host:port. [default: all]")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and change nothing.")]


def admin_of(settings: Config, namesrv: str | None) -> SyncAdmin:
    """Return an admin client for the cluster in the settings."""
    from mqtrail.client import SyncAdmin

    return SyncAdmin(settings.namesrv(namesrv), config=settings.room("client"))


def confirm_change(what: str, yes: bool) -> None:
    """Ask the operator to confirm a change. typer.Abort: the answer is no. UsageError: there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this command will {what}: found no terminal to ask for confirmation, expected --yes")
    confirm(f"This will {what}. Continue?")


def show_plan(change: Change, settings: Config, namesrv: str | None, json: bool) -> int:
    """Print what a change would do: each part before and after; return exit code 3 if a part is unknown."""
    from mqtrail.answers import as_json
    from mqtrail.answers.changes import plan_of

    with admin_of(settings, namesrv) as admin, progress("querying the brokers", enabled=not json):
        plan = plan_of(change, admin, settings.namesrv(namesrv))
    if json:
        show_json(as_json(plan))
    else:
        counted = list(dict.fromkeys(name for step in plan.steps for name in step.counts))
        rows = [
            (
                step.target,
                step.before,
                step.after,
                *("?" if step.counts[name] is None else step.counts[name] for name in counted),
            )
            for step in plan.steps
        ]
        table(("part", "before", "after", *counted), rows)
        totals = ((name, plan.total(name)) for name in counted)
        say(", ".join(["nothing was changed", *(f"{name}: {'?' if sum_ is None else sum_}" for name, sum_ in totals)]))
        for words in (*plan.warnings, *plan.scope.omissions):
            warn(words)
    return Exit.CANNOT_LOOK if plan.scope.omissions else Exit.OK


def failures_of(*gathered: Gathered[Any]) -> dict[str, str]:
    """Return broker or name server -> error text, of all failures."""
    return {name: str(error) for one in gathered for name, error in one.failures.items()}


def warn_failures(failures: Mapping[str, str], what: str) -> None:
    """Print a warning for each failure."""
    for name, text in failures.items():
        warn(f"{name} {what}: {text}")


def report_change(done: Gathered[Any], success: str, failed: str, json: bool, **more: Any) -> int:
    """Print the result of a change per broker, `NAME: success`; return exit code 1 if one failed."""
    failures = failures_of(done)
    if json:
        show_json({**more, "done": sorted(done.found), "failures": failures})
    else:
        for name in sorted(done.found):
            say(f"{name}: {success}")
    warn_failures(failures, failed)
    return Exit.OK if done.complete else Exit.FAILED


def report_answer(value: Mapping[str, Any], failures: Mapping[str, str], json: bool) -> int:
    """Print a query's failures, and its value as JSON if json; return exit code 3 if a query failed."""
    if json:
        show_json({**value, "failures": dict(failures)})
    warn_failures(failures, "could not be queried")
    return Exit.OK if not failures else Exit.CANNOT_LOOK


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Print a table. Numbers are aligned right; None is shown as a dash."""
    from rich.table import Table
    from rich.text import Text

    from mqtrail.wire import visible

    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, heading in enumerate(headings):
        numeric = bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        drawn.add_column(heading, justify="right" if numeric else "left")
    for row in rows:
        drawn.add_row(*(Text("-" if cell is None else visible(str(cell))) for cell in row))
    show(drawn)
