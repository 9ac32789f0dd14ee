"""`audit`: checks and lists the changes that a console recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .config import load
from .exits import Exit
from .operate import table
from .options import ConfigFile, Json
from .output import say, show_json, warn


def audit(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Audit log. [default: DATA/audit.jsonl]", readable=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of changes, newest first.")] = 20,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Check the audit log of a console, and list the last changes. Exit code 1: a line was changed or removed."""
    from mqtrail.answers import as_json
    from mqtrail.answers.changes import read_audit
    from mqtrail.net import AUDIT_FILE

    found = read_audit(file or load(config).data(None) / AUDIT_FILE, limit)
    if json:
        show_json(as_json(found))
    else:
        rows = []
        for one in found.changes:
            fates = [str(outcome.get("fate")) for outcome in one.outcomes]
            counts = ", ".join(f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates))
            state = " ".join(filter(None, (counts, one.error))) if one.ended_at else "not ended"
            parameters = " ".join(f"{name}={value}" for name, value in one.parameters.items())
            rows.append((one.asked_at, one.who or one.address, one.action, parameters, state))
        table(("time", "who", "action", "parameters", "outcome"), rows)
        say(f"{found.line_count} lines; SHA-256 of the last: {found.last_digest}")
        for problem in found.problems:
            warn(problem)
    return Exit.FAILED if found.problems else Exit.OK
