"""Where a command's words go: answers to standard output, progress and warnings to standard error.

All of them go through here, because bodies, names and remarks are others' text: here it is made visible
(wire/visible.py). A test looks that no command writes past this module.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

T = TypeVar("T")


def show_json(value: Any) -> None:
    """One JSON value on one line; what a terminal would obey or not show is escaped in it."""
    from mqtrail.wire import visible_json

    sys.stdout.write(visible_json(json.dumps(value, ensure_ascii=False, default=str)) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line of an answer."""
    from mqtrail.wire import visible

    sys.stdout.write(visible(text) + "\n")


def say_lines(text: str) -> None:
    """Text of others that may have several lines, indented, so that none of them passes for one of ours."""
    from mqtrail.wire import visible

    sys.stdout.writelines(f"  {visible(line)}\n" for line in text.split("\n"))


@cache
def _safe_console() -> type[Console]:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.text import Text

    from mqtrail.wire import visible, visible_lines

    class SafeConsole(Console):
        """Takes no markup and no emoji codes, and lets no character through that a terminal obeys."""

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
    """Return the console for answers. Piped output has wide lines, so that tables are not cut."""
    return _safe_console()(width=None if sys.stdout.isatty() else 160)


def show(drawn: RenderableType) -> None:
    """Draw an answer."""
    stdout_console().print(drawn)


def show_answer(draw: Callable[[T], RenderableType], answer: T) -> None:
    """Draw an answer whose texts may be anybody's: each of them stays on its line."""
    show(draw(made_visible(answer)))


def made_visible(value: T) -> T:
    """Return a copy of an answer, a dataclass of dataclasses, with every text in it made visible."""
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
        found = type(value)(made_visible(one) for one in value)  # type: ignore[attr-defined, call-arg]
    return found  # type: ignore[no-any-return]


def confirm(question: str) -> None:
    """Ask whether to go on. typer.Abort: no."""
    import typer

    from mqtrail.wire import visible

    typer.confirm(visible(question), abort=True, err=True)


def warn(text: str) -> None:
    """A line for the operator; further lines of a peer's text are indented."""
    from mqtrail.wire import visible

    first, *more = text.split("\n")
    sys.stderr.write("".join([f"mqtrail: {visible(first)}\n", *(f"    {visible(line)}\n" for line in more)]))


def warn_lines(text: str) -> None:
    """Lines for the operator that are ours, with what was typed in them."""
    from mqtrail.wire import visible_lines

    sys.stderr.write(visible_lines(text))


@contextmanager
def progress(text: str, *, enabled: bool = True) -> Iterator[Progress | None]:
    """A progress display on standard error while the block runs; none without a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=_safe_console()(stderr=True), transient=True) as shown:
        shown.add_task(text, total=None)
        yield shown
