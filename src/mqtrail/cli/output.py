"""Where a command's words go: answers to standard output, progress and warnings to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress


def show_json(value: Any) -> None:
    """One JSON value on one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def stdout_console() -> Console:
    """The console of answers. Piped, lines are as long as they are: tables shall not be cut for nobody's screen."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False)


def show(drawn: RenderableType) -> None:
    """Draw an answer."""
    stdout_console().print(drawn)


def warn(text: str) -> None:
    """A line for the operator."""
    sys.stderr.write(f"mqtrail: {text}\n")


@contextmanager
def progress(text: str, *, enabled: bool = True) -> Iterator[Progress | None]:
    """A progress display on standard error while the block runs; none where nobody watches."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(text, total=None)
        yield shown
