"""What the operators' commands share: the admin, asking before what cannot be undone, and results item by item."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exits import Exit, UsageError
from .output import confirm, say, show, show_json, warn

if TYPE_CHECKING:
    from mqtrail.client import Gathered, SyncAdmin

    from .config import Config

Cluster = Annotated[str | None, typer.Option("--cluster", help="Cluster whose brokers are meant. [default: all]")]
Broker = Annotated[str | None, typer.Option("--broker", help="One broker only: its name, or host:port. [default: all]")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def admin_of(settings: Config, namesrv: str | None) -> SyncAdmin:
    """An admin of the cluster that the settings name."""
    from mqtrail.client import SyncAdmin

    return SyncAdmin(settings.namesrv(namesrv), config=settings.room("client"))


def ask_before(what: str, yes: bool) -> None:
    """Ask the operator to confirm what cannot be undone. typer.Abort: no; UsageError: there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this command will {what}: found no terminal to ask for confirmation, expected --yes")
    confirm(f"This will {what}. Continue?")


def failures_of(*gathered: Gathered[Any]) -> dict[str, str]:
    """The failures of answers, as texts by broker or name server."""
    return {name: str(error) for one in gathered for name, error in one.failures.items()}


def warn_of(failures: Mapping[str, str], what: str) -> None:
    """A line for each that failed."""
    for name, text in failures.items():
        warn(f"{name} {what}: {text}")


def told(done: Gathered[Any], said: str, failed: str, json: bool, **more: Any) -> int:
    """Tell a change item by item, `NAME: said`; exit code 1 when one failed."""
    failures = failures_of(done)
    if json:
        show_json({**more, "done": sorted(done.found), "failures": failures})
    else:
        for name in sorted(done.found):
            say(f"{name}: {said}")
    warn_of(failures, failed)
    return Exit.OK if done.complete else Exit.FAILED


def asked(value: Mapping[str, Any], failures: Mapping[str, str], json: bool) -> int:
    """End a question: its JSON if wanted, its failures; exit code 3 when some could not be queried."""
    if json:
        show_json({**value, "failures": dict(failures)})
    warn_of(failures, "could not be queried")
    return Exit.OK if not failures else Exit.CANNOT_LOOK


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Draw rows; numbers to the right. None is a dash."""
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
