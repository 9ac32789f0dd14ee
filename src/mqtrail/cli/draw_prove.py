"""Renders a proof for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.answers import ClaimProof, ProofAnswer, Shown
from mqtrail.trail import ProofResult

from .draw import day_clock, scope_line

REASONS_SHOWN_MAX = 5
_STYLES = {ProofResult.FOUND: "bold red", ProofResult.NONE: "green", ProofResult.CANNOT_TELL: "yellow"}


def proof(found: ProofAnswer) -> RenderableType:
    """Render the claims, examples of what was found, what was not covered, and the conclusion."""
    time = ""
    if found.first_ms is not None:
        time += f" from {day_clock(found.first_ms)}"
    if found.end_ms is not None:
        time += f" to {day_clock(found.end_ms)}"
    title = f"{f'Topic {found.topic}' if found.topic else 'All topics'}, sent{time or ' at any time'} (UTC)"
    words = ", ".join(f"{count} {word}" for word, count in found.words.items())
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(f"{found.message_count} messages ({words}), {found.pair_count} pairs of message and group"),
        Text(),
        _claims(found.claims),
    ]
    for claim in found.claims:
        if claim.examples:
            parts += [Text(), *_examples(claim)]
    uncovered = [claim for claim in found.claims if claim.uncovered]
    if uncovered or found.limits:
        parts += [Text(), Text("Not covered", style="italic")]
    parts += [Text(f"{claim.name}: {_reasons(claim)}", style="yellow") for claim in uncovered]
    parts += [Text(limit, style="yellow") for limit in found.limits]
    parts += [Text(), _conclusion(found), scope_line(found.scope)]
    return Group(*parts)


def _claims(claims: Sequence[ClaimProof]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("claim", overflow="fold")
    for heading in ("found", "covered", "not covered"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for claim in claims:
        table.add_row(
            claim.name,
            str(claim.found_count),
            str(claim.covered_count),
            str(claim.uncovered_count),
            Text(claim.outcome.words, style=_STYLES[claim.outcome]),
        )
    return table


def _examples(claim: ClaimProof) -> Iterator[Text]:
    yield Text(f"{claim.name}: {claim.meaning}", style="italic")
    for shown in claim.examples:
        yield _shown(shown)
    more = claim.found_count - len(claim.examples)
    if more > 0:
        yield Text(f"{more} more: raise --rows, or use `mqtrail search --status`", style="yellow")


def _shown(shown: Shown) -> Text:
    line = Text(shown.msg_id)
    if shown.keys:
        line.append(f" {shown.keys}", style="cyan")
    if shown.group_name:
        line.append(f" {shown.group_name}", style="bold")
    line.append(f"\n  {shown.codes} {shown.place}", style="dim")
    if shown.reasons:
        line.append(f"\n  {shown.reasons}", style="dim")
    return line


def _reasons(claim: ClaimProof) -> str:
    first = list(claim.uncovered.items())[:REASONS_SHOWN_MAX]
    rest = claim.uncovered_count - sum(count for _, count in first)
    return ", ".join(f"{count} {why}" for why, count in first) + (f", {rest} for other reasons" if rest else "")


def _conclusion(found: ProofAnswer) -> Text:
    """Render what is proven, in one sentence a result."""
    line = Text()
    for outcome, words in (
        (ProofResult.FOUND, "Found: "),
        (ProofResult.NONE, "None, and everything was covered: "),
        (ProofResult.CANNOT_TELL, "None found, but not everything was covered: "),
    ):
        names = [claim.name for claim in found.claims if claim.outcome is outcome]
        if names:
            line.append(("\n" if line else "") + words, style=_STYLES[outcome])
            line.append(", ".join(names))
    return line
