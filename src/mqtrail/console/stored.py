"""A stored record, as evidence: the trace record that an event names, its message's body and properties."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.answers import EvidencePlace, StoredMessage, evidence_place

from .frame import Desk, PagePart, PageReader, commands, frame, lacks_cluster, section, table, tag
from .message import draw_stored

RECORD_END: Final = "\x02"
FIELD_END: Final = "\x01"


async def stored(desk: Desk, reader: PageReader, evidence: str) -> None:
    """Read the record from the cluster."""
    with frame(reader, f"{reader.say('evidence')} {evidence}"):
        at = evidence_place(evidence, desk.sources.trace_topic)
        if at is None:
            with tag("div", classes="problem", role="alert"):
                tag("p", reader.say("no_place"))
            return
        if lacks_cluster(desk, reader):
            return
        part = PagePart(desk, reader)
        queue = ["--queue", f"{at.broker_name}/{at.queue_id}", "--offset", f"{at.queue_offset}"]
        commands(reader, ["mqtrail", "message", "print", at.topic, *queue, "--namesrv", desk.sources.namesrv])
    cluster = desk.sources.of_cluster()
    await ui.context.client.connected()
    await part.show(partial(cluster.message, at.place), partial(_draw, reader, at))


def _draw(reader: PageReader, at: EvidencePlace, one: StoredMessage) -> None:
    if at.record_no is not None:
        records = one.body.decode("utf-8", "replace").split(RECORD_END)
        with section(f"{reader.say('trace_record')} {at.record_no}"):
            is_cut = one.body_size > len(one.body)
            if at.record_no < len(records) - is_cut:
                with table([reader.say("field"), reader.say("value")], reader.say("trace_record")) as add:
                    for number, value in enumerate(records[at.record_no].split(FIELD_END), 1):
                        add([number, value])
            else:
                tag("p", reader.say("record_not_shown"))
    with section(reader.say("body")):
        draw_stored(reader, one)
