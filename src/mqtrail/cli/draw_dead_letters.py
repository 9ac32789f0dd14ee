"""Renders dead letters for a terminal of 80 columns."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mqtrail.answers import DeadLetter, DeadLettersAnswer, duration_text

from .draw import day_clock, scope_line


def letters(found: DeadLettersAnswer) -> RenderableType:
    """Render counts of equal errors, then letters with their attempts."""
    parts: list[RenderableType] = []
    for one in found.errors:
        line = Text(f"{one.message_count:>7}  ", style="bold")
        parts.append(line.append(f"{one.group_name}  {one.topic}  {one.error or 'error unknown'}", style="red"))
    for letter in found.letters:
        parts += [Text(), *_letter(letter, is_mixed=found.scope.is_mixed)]
    if not found.letters:
        parts.append(Text("no dead letter matches"))
    left_out = found.matched_count - len(found.letters)
    if left_out > 0:
        parts.append(Text(f"{left_out} further dead letters: raise --limit, or narrow the range", style="yellow"))
    return Group(*parts, Text(), scope_line(found.scope))


def _letter(one: DeadLetter, *, is_mixed: bool) -> list[RenderableType]:
    heading = Text(one.msg_id, style="bold")
    if is_mixed:
        heading.append(f"  {one.cluster}", style="cyan")
    heading.append(f"  {one.topic}  {one.group_name}  {one.cause or 'cause unknown'}")
    lines: list[RenderableType] = [heading]
    for number, attempt in enumerate(one.attempts, 1):
        took = "" if attempt.duration_ms is None else f" after {duration_text(attempt.duration_ms)}"
        words = f"{number}. {day_clock(attempt.at_ms or None)}  {attempt.outcome}{took}  {attempt.detail}".rstrip()
        lines.append(Padding(Text(words), (0, 0, 0, 2)))
    if not one.attempts:
        lines.append(Padding(Text("no attempt is traced", style="dim"), (0, 0, 0, 2)))
    lines.append(Padding(Text(f"resend: {shlex.join(one.resend_command)}", style="dim"), (0, 0, 0, 2)))
    return lines
