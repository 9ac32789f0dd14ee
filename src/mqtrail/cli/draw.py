"""Renders answers for a terminal: timelines of messages, results of searches and queries. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from mqtrail.answers import (
    BrokerChange,
    CoverageTime,
    Event,
    FacetsAnswer,
    GroupVerdict,
    Scope,
    SearchAnswer,
    TraceAnswer,
    Trajectory,
    VerdictThresholds,
    change_line,
    duration_text,
    moment_text,
)

CLUSTERS_SHOWN_MAX = 5
_VISIBILITY = {
    "TX_PENDING": "  not visible to consumers yet",
    "TX_ROLLED_BACK": "  never visible to consumers",
    "TX_CHECKS_EXHAUSTED": "  not visible to consumers: it is in TRANS_CHECK_MAX_TIME_TOPIC",
    "RECALLED": "  never visible to consumers",
}
"""Code of a message that no group gets -> what that means for consumers."""
GOOD = frozenset({"SEND_OK", "CONSUMED", "COMPLETE", "FILTERED", "TX_COMMITTED", "OK", "SUCCESS"})
BAD = frozenset(
    {
        "SEND_FAILED",
        "DEAD_LETTERED",
        "LOST",
        "EXPIRED",
        "HUNG",
        "NO_CONSUMER",
        "DUPLICATE_PROCESSING",
        "FAILED",
        "TX_CHECKS_EXHAUSTED",
    }
)


def _visibility(trajectory: Trajectory) -> str:
    """What a half or recalled message is to consumers; "" for others."""
    known = [_VISIBILITY[code] for code in trajectory.message_codes if code in _VISIBILITY]
    if known or trajectory.visible_ms is not None:
        return "".join(known)
    is_half = any(event.outcome.startswith("HALF") for event in trajectory.events)
    return "  half message: no copy visible to consumers was found" if is_half else ""


def style_of(code: str) -> str:
    """Return the style of a code: green is good, red needs action, yellow may need attention."""
    return "green" if code in GOOD else "bold red" if code in BAD else "yellow"


def codes_text(codes: Iterable[str]) -> Text:
    """Return codes side by side, each in its style."""
    return Text(" ").join(Text(code, style=style_of(code)) for code in codes)


def clock(at_ms: int | None) -> str:
    """Return a time of day with ms (UTC), '?' if unknown."""
    return moment_text(at_ms, "%H:%M:%S.%f", cut=3)


def day_clock(at_ms: int | None) -> str:
    """Return a date and time of day (UTC), '?' if unknown."""
    return moment_text(at_ms, "%Y-%m-%d %H:%M:%S")


_SENDING = frozenset({"SEND", "SEND_TRY", "STORED", "END_TRANSACTION", "RECALL"})
_VERBS = {
    "SEND": "sent",
    "SEND_TRY": "try",
    "STORED": "stored",
    "HANDLED": "handled",
    "RESULT": "result",
    "SENT_BACK": "sent back",
    "DEAD_LETTERED": "dead letter",
    "END_TRANSACTION": "transaction",
    "RECALL": "recall",
}


def _event_line(event: Event, start_ms: int | None) -> Text:
    line = Text(clock(event.at_ms), style="dim")
    offset = "" if event.at_ms is None or start_ms is None else f"{event.at_ms - start_ms:+d} ms"
    line.append(f" {offset:>10}  ", style="dim")
    line.append(f"{_VERBS.get(event.kind, event.kind.lower()):<11}")
    if event.outcome:
        line.append(f" {event.outcome}", style=style_of(event.outcome))
    if event.duration_ms is not None:
        line.append(f" {duration_text(event.duration_ms)}")
    if event.retry_times:
        line.append(f" retry {event.retry_times}", style="yellow")
    if event.place:
        line.append(f"  {event.place}", style="cyan")
    if event.detail:
        line.append(f"  {event.detail}", style="italic")
    return line


def _state_details(group: GroupVerdict) -> str:
    """Return what a state alone does not say: the next attempt, the cause of a dead letter and how it is known."""
    if group.state == "RETRYING":
        due = "at an unknown time" if group.retry_due_ms is None else f"due {day_clock(group.retry_due_ms)}"
        return f"  next attempt {due}"
    if group.state == "DEAD_LETTERED":
        inferred = " (inferred)" if "CAUSE_INFERRED" in group.reasons else ""
        return f"  cause: {group.dead_cause or 'unknown'}{inferred if group.dead_cause else ''}"
    return ""


def _clocks(group: GroupVerdict) -> str:
    """Return how a latency split takes different clocks into account."""
    if group.clocks == "CORRECTED":
        return f" (clocks differ; corrected, ± {duration_text(group.clock_error_ms or 0)})"
    return " (clocks not compared)" if group.clocks == "ASSUMED" else ""


def _group_tree(tree: Tree, group: GroupVerdict, events: Iterable[Event], start_ms: int | None) -> None:
    label = Text(f"{group.group_name}  ", style="bold")
    label.append_text(codes_text(group.codes))
    label.append(_state_details(group))
    branch = tree.add(label)
    for event in events:
        branch.add(_event_line(event, start_ms))
    for reason in group.reasons:
        branch.add(Text(f"why: {reason}", style="italic"))
    split = [(name, ms) for name, ms in group.split.items() if ms is not None]
    if group.split.get("total") is not None:
        parts = " + ".join(f"{name} {duration_text(ms)}" for name, ms in split if name != "total")
        branch.add(Text(f"{duration_text(group.split['total'])} in all = {parts}{_clocks(group)}", style="dim"))


def _send_lines(trajectory: Trajectory, start_ms: int | None) -> list[Text]:
    """Return the events of the send, and changes of the master between them, by time."""
    lines = [
        (event.at_ms or 0, _event_line(event, start_ms))
        for event in trajectory.events
        if event.kind in _SENDING and not (event.kind == "STORED" and event.group_name)
    ]
    lines += [(change.at_ms or 0, _change_line(change, start_ms)) for change in trajectory.broker_changes]
    return [line for _, line in sorted(lines, key=lambda one: one[0])]


def _change_line(change: BrokerChange, start_ms: int | None) -> Text:
    line = Text(clock(change.at_ms), style="dim")
    offset = "" if change.at_ms is None or start_ms is None else f"{change.at_ms - start_ms:+d} ms"
    line.append(f" {offset:>10}  ", style="dim")
    line.append(f"{'broker':<11} ")
    line.append(change_line(change), style="magenta")
    return line


def timeline(trajectory: Trajectory, *, is_mixed: bool = False) -> RenderableType:
    """Render one message from its first send attempt to its last delivery, per group, with verdicts and reasons.

    is_mixed: other messages may be of other clusters, so name its cluster.
    """
    start_ms = trajectory.send_start_ms or trajectory.stored_ms
    root = Text("● ", style="bold")
    root.append(trajectory.msg_id, style="bold")
    if is_mixed:
        root.append(f"  cluster {trajectory.cluster}", style="magenta")
    root.append(f"  {trajectory.topic}", style="cyan")
    if trajectory.tags:
        root.append(f"  tag {trajectory.tags}")
    if trajectory.keys:
        root.append(f"  keys {' '.join(trajectory.keys)}")
    tree = Tree(root, guide_style="dim")
    label = Text(f"send  {trajectory.producer_group or 'unknown producer'}  ", style="bold")
    label.append_text(codes_text((*trajectory.send_codes, *trajectory.message_codes)))
    if trajectory.due_ms is not None:
        label.append(f"  due {clock(trajectory.due_ms)}")
    label.append(_visibility(trajectory))
    sending = tree.add(label)
    for line in _send_lines(trajectory, start_ms):
        sending.add(line)
    for group in trajectory.groups:
        events = [
            event
            for event in trajectory.events
            if event.group_name == group.group_name and (event.kind not in _SENDING or event.kind == "STORED")
        ]
        _group_tree(tree, group, events, start_ms)
    known = Text("knowledge  ", style="bold")
    known.append_text(codes_text((trajectory.knowledge,)))
    branch = tree.add(known)
    for reason in trajectory.reasons:
        branch.add(Text(reason, style="italic"))
    for time in trajectory.coverage:
        branch.add(Text(f"may explain it: {_coverage(time)}", style="yellow"))
    return tree


def _coverage(time: CoverageTime) -> str:
    """Return a time in which trace can be missing, with what shows it."""
    since = "?" if time.from_ms is None else day_clock(time.from_ms)
    until = "now" if time.to_ms is None else day_clock(time.to_ms)
    count = "" if time.lost_count is None else f", {time.lost_count} lost"
    client = f" {time.client_id}" if time.client_id else ""
    return f"{time.kind}{client}, {since} to {until}{count}: {time.reason}"


def scope_line(scope: Scope) -> Text:
    """Render the scope of an answer: sources, range, time, and omissions."""
    line = Text("searched ", style="dim")
    line.append("; ".join(scope.sources) or "nothing")
    if scope.is_mixed:
        more = len(scope.clusters) - CLUSTERS_SHOWN_MAX
        names = ", ".join(scope.clusters[:CLUSTERS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        line.append(f", clusters {names}")
    if scope.first_ms is not None:
        line.append(f", published [{day_clock(scope.first_ms)}, {day_clock(scope.end_ms)})")
    line.append(f", as of {day_clock(scope.as_of_ms)} UTC")
    for omission in scope.omissions:
        line.append(f"\nnot searched or missing: {omission}", style="yellow")
    return line


@dataclass(frozen=True, slots=True)
class Cells:
    """The rows of a query, as texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    scope: Scope


def cells_table(cells: Cells) -> RenderableType:
    """Render the rows of a query. Long values are folded, not cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in cells.columns:
        table.add_column(name, overflow="fold")
    for row in cells.rows:
        table.add_row(*row)
    return Group(table, Text(f"{len(cells.rows)} rows", style="dim"), scope_line(cells.scope))


def trace_answer(answer: TraceAnswer) -> RenderableType:
    """Render a look-up: all trajectories, or the reason why there is none, and the scope."""
    parts: list[RenderableType] = []
    if answer.why:
        parts.append(Text(answer.why, style="yellow"))
    is_mixed = answer.scope.is_mixed
    parts.extend(timeline(trajectory, is_mixed=is_mixed) for trajectory in answer.trajectories)
    parts.extend(thresholds(answer.judged_with))
    parts.append(scope_line(answer.scope))
    return Group(*parts)


def thresholds(judged_with: Sequence[VerdictThresholds]) -> list[RenderableType]:
    """Return a line for each set of thresholds; no lines if all messages were judged with the defaults."""
    if all(one.changed == {} for one in judged_with):
        return []
    lines: list[RenderableType] = []
    for one in judged_with:
        of = f" of {one.message_count} messages" if len(judged_with) > 1 else ""
        if one.changed is None:
            values = "not known: the lake does not record them"
        else:
            values = ", ".join(f"{name}={value}" for name, value in one.changed.items()) or "the defaults"
        lines.append(Text(f"thresholds{of}: {values}", style="yellow"))
    return lines


def trajectory_table(trajectories: Iterable[Trajectory], *, is_mixed: bool) -> Table:
    """Return a table with one row per message. is_mixed: name their clusters."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (*(("cluster",) if is_mixed else ()), "sent", "id", "topic", "keys", "send", "groups", "knowledge"):
        table.add_column(heading, overflow="fold")
    for one in trajectories:
        groups = Text("\n").join(
            Text(f"{group.group_name} ").append_text(codes_text(group.codes)) for group in one.groups
        )
        table.add_row(
            *((one.cluster,) if is_mixed else ()),
            clock(one.send_start_ms or one.stored_ms),
            one.msg_id,
            one.topic,
            " ".join(one.keys),
            codes_text((*one.send_codes, *one.message_codes)),
            groups,
            codes_text((one.knowledge,)),
        )
    return table


def search_answer(answer: SearchAnswer) -> RenderableType:
    """Render a search: the messages shown, the number of matches, and the scope."""
    count = Text(f"{len(answer.trajectories)} of {answer.matched_count} messages, newest first")
    return Group(trajectory_table(answer.trajectories, is_mixed=answer.scope.is_mixed), count, scope_line(answer.scope))


def facets_answer(answer: FacetsAnswer) -> RenderableType:
    """Render counts of the matches of a search, a row for each value, and the condition that asks for it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("field", "value", "messages", "condition"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "messages" else "left")
    is_least = "≥ " if answer.counted_count < answer.matched_count else ""
    for facet in answer.facets:
        for one in facet.values:
            table.add_row(facet.field, one.value, f"{is_least}{one.message_count}", one.term)
    count = Text(f"{answer.counted_count} of {answer.matched_count} matching messages counted")
    return Group(table, count, scope_line(answer.scope))
