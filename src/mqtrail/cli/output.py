"""The output of commands: answers go to standard output, progress and warnings to standard error.

All output goes through this module, because bodies, names and remarks come from peers: control characters are escaped
here (wire/visible.py). A test checks that no command bypasses it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

T = TypeVar("T")
PIPED_WIDTH = 10_000  # longer lines wrap
BODY_SHOWN_MAX = 16 * 1024  # characters or bytes of one body in text output


def show_json(value: Any) -> None:
    """Print one JSON value on one line, with control and invisible characters escaped."""
    from mqtrail.wire import visible_json

    sys.stdout.write(visible_json(json.dumps(value, ensure_ascii=False, default=str)) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line of an answer."""
    from mqtrail.wire import visible

    sys.stdout.write(visible(text) + "\n")


def shown_body(body: str | bytes) -> str:
    """Return a body for a terminal: of a long one its beginning, and how much is left out. A few KB can expand to
    32 MiB."""
    begin = body[:BODY_SHOWN_MAX]
    left = len(body) - len(begin)
    unit = "characters" if isinstance(body, str) else "bytes"
    more = f"… and {left} more {unit}, which --json prints" if left else ""
    return f"{begin if isinstance(begin, str) else repr(begin)}{more}"


def say_lines(text: str) -> None:
    """Print a peer's text of several lines, indented, so that it cannot imitate mqtrail's own lines."""
    from mqtrail.wire import visible_block

    sys.stdout.write(f"  {visible_block(text, '  ')}\n")


@cache
def _safe_console() -> type[Console]:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.text import Text

    from mqtrail.wire import visible, visible_lines

    class SafeConsole(Console):
        """Interprets no markup and no emoji codes, and escapes control characters."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options, markup=False, emoji=False, highlight=False, soft_wrap=False)

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(visible_lines(segment.text), segment.style)

    return SafeConsole


def stdout_console() -> Console:
    """Return the console for answers. Piped output has lines as long as they are: one line is one row or sentence."""
    return _safe_console()(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def show(drawn: RenderableType) -> None:
    """Print a rendered answer."""
    stdout_console().print(drawn)


def show_answer(draw: Callable[[T], RenderableType], answer: T) -> None:
    """Render and print an answer with texts from peers: line breaks in them are escaped."""
    show(draw(made_visible(answer)))


def made_visible(value: T) -> T:
    """Return a copy of an answer (a dataclass of dataclasses) with control characters escaped in every text."""
    from mqtrail.wire import visible

    found: Any = value
    if isinstance(value, str) and type(value) is str:
        found = visible(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [one.name for one in dataclasses.fields(value) if one.init]
        found = dataclasses.replace(value, **{name: made_visible(getattr(value, name)) for name in fields})
    elif isinstance(value, Mapping):
        found = {made_visible(name): made_visible(one) for name, one in value.items()}
    elif type(value) in (list, tuple, set, frozenset):
        kind: Any = type(value)
        found = kind(made_visible(one) for one in found)
    return cast("T", found)


def confirm(question: str) -> None:
    """Ask whether to continue. typer.Abort: no."""
    import typer

    from mqtrail.wire import visible

    typer.confirm(visible(question), abort=True, err=True)


def warn(text: str) -> None:
    """Print a warning on standard error. Further lines of a peer's text are indented."""
    from mqtrail.wire import visible_block

    sys.stderr.write(f"mqtrail: {visible_block(text)}\n")


def warn_lines(text: str) -> None:
    """Print mqtrail's own lines, which may contain the user's input, on standard error."""
    from mqtrail.wire import visible_lines

    sys.stderr.write(visible_lines(text))


@contextmanager
def progress(text: str, *, enabled: bool = True) -> Iterator[Progress | None]:
    """Show progress on standard error while the block runs; nothing without a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=_safe_console()(stderr=True), transient=True) as shown:
        shown.add_task(text, total=None)
        yield shown
