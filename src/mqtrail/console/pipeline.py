"""The pipeline: how far the lake is, what did not decode or is missing, and what can be traced on the cluster."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import Diagnosis, RejectsAnswer, Report, TraceTopicHealth
from mqtrail.clock import now_ms

from .advice import finding_words, findings_words
from .frame import (
    MARKS,
    Desk,
    PagePart,
    PageReader,
    bounds,
    codes,
    commands,
    frame,
    lacks_cluster,
    lacks_lake,
    section,
    table,
    tag,
)
from .looks import UNKNOWN, count, duration

ROWS_MAX: Final = 500
REJECTS_MAX: Final = 50
JUDGED_MARKS: Final = {"yes": MARKS["good"], "no": MARKS["error"]}


async def pipeline(desk: Desk, reader: PageReader) -> None:
    """Ask lake and cluster side by side."""
    lake = cluster = rejects = None
    with frame(reader, reader.say("pipeline")):
        with section(reader.say("lake")):
            if not lacks_lake(desk, reader):
                lake = PagePart(desk, reader)
                commands(reader, ["mqtrail", "report", "--lake", str(desk.sources.lake)], "/report")
        if desk.sources.lake is not None:
            with section(reader.say("rejects")):
                rejects = PagePart(desk, reader)
                commands(reader, ["mqtrail", "rejects", "--lake", str(desk.sources.lake)], "/rejects")
        with section(reader.say("doctor")):
            if not lacks_cluster(desk, reader):
                cluster = PagePart(desk, reader)
                commands(reader, ["mqtrail", "doctor", "--namesrv", desk.sources.namesrv], "/doctor")
    sources = desk.sources
    asked: list[Any] = []
    if lake is not None:
        asked.append(
            lake.show(lambda: sources.of_lake().report(now_ms(), worst=0, is_last_day=True), partial(_lake, reader))
        )
    if rejects is not None:
        asked.append(rejects.show(lambda: sources.of_lake().rejects(now_ms(), REJECTS_MAX), partial(_rejects, reader)))
    if cluster is not None:
        asked.append(cluster.show(lambda: sources.diagnosis(now_ms()), partial(_doctor, reader)))
    await ui.context.client.connected()
    await asyncio.gather(*asked)


def _lake(reader: PageReader, report: Report) -> None:
    bounds(reader, report.scope, is_open=True)
    with table([reader.say("property"), reader.say("value")], reader.say("lake")) as add:
        add([reader.say("judged"), count(report.message_count)])
        add([reader.say("behind"), duration(now_ms() - report.scope.as_of_ms)])
        add([reader.say("rejects"), count(report.rejects)])
        add([reader.say("gaps"), count(len(report.gaps))])
    for gap in report.gaps[:ROWS_MAX]:
        tag("p", f"{MARKS['warning']} {gap}")


def _rejects(reader: PageReader, found: RejectsAnswer) -> None:
    """Draw the latest records that did not decode."""
    bounds(reader, found.scope)
    if not found.rejects:
        tag("p", reader.say("no_rejects"))
        return
    names = ("time", "record_place", "client_host", "why", "record_text")
    with table([reader.say(name) for name in names], reader.say("rejects")) as add:
        for one in found.rejects:
            number = "" if one.record_no < 0 else f" [{one.record_no}]"
            cluster = f"{one.cluster} / " if found.scope.is_mixed else ""
            place = f"{cluster}{one.broker_name}/{one.trace_topic}/{one.queue_id}@{one.queue_offset}{number}"
            add([reader.at(one.stored_ms), place, one.host, one.reason, partial(tag, "pre", one.text, tabindex="0")])
    if found.reject_count > len(found.rejects):
        tag("p", f"+ {found.reject_count - len(found.rejects)}", "quiet")


def _doctor(reader: PageReader, found: Diagnosis) -> None:
    bounds(reader, found.scope, is_open=True)
    if found.why:
        tag("p", f"{MARKS['error']} {found.why}", "problem")
    for finding in found.findings:
        mark = MARKS["info" if finding.name == "read_only" else "warning"]
        tag("p", f"{mark} {finding_words(finding, reader.language)}")
    _trace_topic(reader, found.trace)
    names = ("broker", "address", "version", "index", "flush", "delay_levels", "why")
    with table([reader.say(name) for name in names], reader.say("brokers")) as add:
        for one in found.brokers:
            index = UNKNOWN if one.index is None else reader.say("yes" if one.index else "no")
            known = (one.version or UNKNOWN, index, one.flush or UNKNOWN, one.delay_levels or UNKNOWN)
            add([f"{one.cluster} / {one.name}", one.address, *known, one.why])
    with table([reader.say(name) for name in ("group", "members", "traced")], reader.say("groups")) as add:
        for group in found.groups[:ROWS_MAX]:
            traced = f"{MARKS['good']} {reader.say('yes')}" if group.is_traced else reader.say("not_in_sample")
            add([group.name, count(group.client_count), traced])
    headings = [reader.say(name) for name in ("code", "about", "judgeable", "why")]
    with table(headings, reader.say("judgeable")) as add:
        for code in found.codes:

            def chip(code: Any = code) -> None:
                codes(reader, [code.code])

            why = findings_words(code.reasons, reader.language)
            add([chip, code.about, f"{JUDGED_MARKS[code.judged]} {reader.say(code.judged)}", why])


def _trace_topic(reader: PageReader, trace: TraceTopicHealth) -> None:
    state = UNKNOWN if trace.exists is None else reader.say("exists" if trace.exists else "missing")
    with table([reader.say("property"), reader.say("value")], reader.say("trace_topic")) as add:
        add([reader.say("trace_topic"), f"{trace.name}: {state}"])
        if trace.exists:
            add([reader.say("stored_messages"), count(trace.message_count)])
            add(
                [
                    reader.say("sampled"),
                    f"{count(trace.sampled_count)}: {reader.moment(trace.first_ms)} – {reader.moment(trace.last_ms)}",
                ]
            )
            records = ", ".join(f"{name} × {count(number)}" for name, number in trace.records.items())
            add([reader.say("records"), records])
            add([reader.say("rejects"), f"{count(trace.rejects)} {'; '.join(trace.reject_reasons)}".strip()])
            add([reader.say("numbered_clients"), count(trace.numbered_clients)])
