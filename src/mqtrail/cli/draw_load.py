"""Renders the report of a load for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.load import LoadReport, LoadVerdict

SECONDS_SHOWN = 20  # of a longer run, those with the highest latency
STYLES = {LoadVerdict.OK: "green", LoadVerdict.FAILED: "bold red", LoadVerdict.UNKNOWN: "yellow"}
LATENCIES = {
    "start": "due → send",
    "store": "send → acknowledged",
    "acknowledged": "due → acknowledged",
    "end_to_end": "due → handler",
}
MIB = 1 << 20


def load_report(report: LoadReport) -> RenderableType:
    """Render the whole report: the verdict is at the end."""
    return Group(*_head(report), *_numbers(report), *_times(report), *_used(report), *_trace(report), *_end(report))


def _head(report: LoadReport) -> Iterator[RenderableType]:
    wanted = report.wanted
    keys = f", {wanted['keys']} keys{' in order' if wanted['ordered'] else ''}" if wanted["keys"] else ""
    batch = f", {wanted['batch']} in a batch" if wanted["batch"] > 1 else ""
    delay = f", delay level {wanted['delay_level']}" if wanted["delay_level"] else ""
    early = ", ended early" if report.is_ended_early else ""
    yield Text(f"{report.topic}, group {report.group}, run {report.run_id}, seed {wanted['seed']}", style="bold")
    yield Text(
        f"{wanted['rate']:g} messages/s ({wanted['arrivals']}), {wanted['sizes']} bytes{keys}{batch}{delay}; "
        f"{wanted['producers']} producers, {wanted['consumers']} consumers; {report.seconds_run:.1f} s, "
        f"of these {wanted['warm_up_s']:g} s warm-up{early}"
    )


def _numbers(report: LoadReport) -> Iterator[RenderableType]:
    pace, counts = report.pace, report.counts
    rate = "?" if pace.acknowledged_a_second is None else f"{pace.acknowledged_a_second:g}"
    yield Text()
    yield Text(f"after the warm-up: {pace.due} due, {pace.acknowledged} acknowledged, {rate} a second")
    yield Text(
        f"late by more than 0.1 s: {pace.late_by_bound + pace.late_by_generator} ({pace.late_by_bound} waited for "
        f"answers, {pace.late_by_generator} for this process); not sent: {pace.not_sent}; most in flight: "
        f"{pace.in_flight_most}"
    )
    yield Text(
        f"in all: {counts.sent} sent, {counts.acknowledged} acknowledged, {counts.not_stored} not stored, "
        f"{counts.uncertain} without an answer"
    )
    if report.is_consumed:
        yield Text(
            f"consumed: {counts.consumed}; acknowledged and not consumed: {counts.unread}; repeated: "
            f"{counts.repeated}; out of order: {counts.out_of_order if report.wanted['keys'] else 'no keys'}; "
            f"damaged: {counts.damaged}"
        )
        if counts.unsettled_read:
            yield Text(f"consumed though not acknowledged: {counts.unsettled_read}")
        if counts.foreign:
            yield Text(f"deliveries of messages of others: {counts.foreign}")
    other = {name: count for name, count in report.statuses.items() if name != "SEND_OK"}
    if other:
        yield Text(", ".join(f"{name}: {count}" for name, count in sorted(other.items())), style="yellow")


def _times(report: LoadReport) -> Iterator[RenderableType]:
    rows = [
        (LATENCIES[name], *(_ms(one) for one in (of.p50_ms, of.p90_ms, of.p99_ms, of.p999_ms, of.max_ms)))
        for name, of in report.latency.items()
        if of.count
    ]
    yield Text()
    yield _table("latency in ms", ("from → to", "p50", "p90", "p99", "p99.9", "max"), rows)
    seconds, title = list(report.by_second), "by second, latency in ms from the due time"
    if len(seconds) > SECONDS_SHOWN:
        seconds.sort(key=lambda one: -(one.acknowledged_p99_ms or 0.0))
        seconds = sorted(seconds[:SECONDS_SHOWN], key=lambda one: one.at_s)
        title = f"the {SECONDS_SHOWN} seconds with the highest latency (--json has all)"
    yield Text()
    yield _table(
        title,
        ("at", "sent", "ack", "failed", "consumed", "in flight", "ack p50", "p99", "handler p50", "p99"),
        [
            (
                f"{one.at_s:.1f}",
                *map(str, (one.sent, one.acknowledged, one.failed, one.consumed, one.in_flight)),
                _ms(one.acknowledged_p50_ms),
                _ms(one.acknowledged_p99_ms),
                _ms(one.consumed_p50_ms),
                _ms(one.consumed_p99_ms),
            )
            for one in seconds
        ],
    )
    if report.errors:
        yield Text()
        rows = [(one.kind, str(one.count), f"{one.first_s:.1f}", f"{one.last_s:.1f}") for one in report.errors]
        yield _table("sends that failed", ("kind", "messages", "first at", "last at"), rows)
        yield Text(f"the first: {report.errors[0].example}", style="dim")


def _used(report: LoadReport) -> Iterator[RenderableType]:
    totals = {one.name: one for one in report.brokers}
    rows = []
    for one in report.processes:
        is_here = one.process_id is not None
        own = totals.get(one.name)
        rows.append(
            (
                one.name,
                str(one.process_id) if is_here else "not on this machine",
                "?" if one.cores is None else f"{one.cores:.2f}",
                "?" if one.memory_size_most is None else f"{one.memory_size_most / MIB:.0f}",
                "" if own is None else "?" if own.stored is None else str(own.stored),
                "" if own is None else "?" if own.read is None else str(own.read),
            )
        )
    yield Text()
    yield _table("processes", ("name", "process", "cores", "MiB", "stored", "read (its own counts)"), rows)
    growth = "unknown" if report.topic_growth is None else str(report.topic_growth)
    yield Text(f"messages that the queues of {report.topic} got: {growth}")


def _trace(report: LoadReport) -> Iterator[RenderableType]:
    found = report.verdicts
    if found is None:
        return
    yield Text()
    rows = [
        (one["what"], str(one["generator"]), str(one["trace"]), "yes" if one["generator"] == one["trace"] else "no")
        for one in found["compared"]
    ]
    yield _table("the trace beside the generator", ("messages", "generator", "trace", "agree"), rows)
    yield Text(", ".join(f"{code} {count}" for code, count in found["codes"].items()))


def _end(report: LoadReport) -> Iterator[RenderableType]:
    yield Text()
    for reason in report.reasons:
        yield Text(f"{reason.code}: {reason.text}", style=STYLES[reason.verdict])
    for one in report.unread:
        yield Text(f"  not consumed: message {one.number}, id {one.msg_id or 'not kept'}")
    if report.repeated:
        yield Text(f"  repeated: messages {', '.join(map(str, report.repeated))}")
    yield Text(_sentence(report), style=STYLES[report.verdict])


def _sentence(report: LoadReport) -> str:
    if report.verdict is LoadVerdict.FAILED:
        return "FAILED"
    if report.verdict is LoadVerdict.UNKNOWN:
        return "UNKNOWN: no failure was found, but the points above are unknown"
    count = report.counts.acknowledged
    if not report.is_consumed:
        return f"OK: all {count} messages were acknowledged in time; without consumers, nothing more was checked"
    in_order = ", in order by key" if report.is_ordered else ""
    return f"OK: all {count} acknowledged messages were consumed exactly once{in_order}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 1_000 else f"{value:.0f}"


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
