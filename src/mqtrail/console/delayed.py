"""Messages that wait for their time: how many, when they are due, and those due next; a timer can be recalled."""

from __future__ import annotations

from functools import partial

from mqtrail.answers import DelayedAnswer, DueCount
from mqtrail.answers.access import SeenCluster
from mqtrail.client import DelayedMessage

from .frame import (
    MARKS,
    Desk,
    PageReader,
    bounds,
    link,
    section,
    table,
    tag,
)
from .looks import count, duration
from .of_brokers import ask_brokers


async def delayed(desk: Desk, reader: PageReader) -> None:
    """Draw what waits on all brokers, and load it again while the page is live."""
    draw = partial(_draw, reader, may_change=desk.changing is not None)
    command = ("message", "delayed", "/delayed")
    await ask_brokers(desk, reader, "delayed_page", "delayed_text", command, SeenCluster.delayed, draw)


def _draw(reader: PageReader, answer: DelayedAnswer, *, may_change: bool) -> None:
    bounds(reader, answer.scope, is_open=True)
    waiting = count(answer.waiting_count, is_lower_bound=answer.is_lower_bound and answer.waiting_count is not None)
    tag("p", f"{reader.say('waiting')}: {waiting}")
    if answer.waiting_count == 0 and not answer.messages and not answer.is_lower_bound:
        tag("p", reader.say("nothing_delayed"))
        return
    with section(reader.say("due")):
        with table([reader.say(name) for name in ("due", "message_count")], reader.say("due")) as add:
            for one in answer.due:
                add([_within(reader, answer.due, one), count(one.message_count)])
        tag("p", reader.say("due_of_read", count=count(answer.read_count)), "quiet")
    with section(reader.say("where")):
        names: tuple[str, ...] = ("broker", "kind", "delay", "topic", "message_count")
        with table([reader.say(name) for name in names], reader.say("where")) as add:
            for level in answer.levels:
                kind = reader.say("delay_level", level=level.level)
                add([level.broker, kind, duration(level.delay_ms), "–", count(level.message_count)])
            for timer in answer.timers:
                add([timer.broker, reader.say("timer"), "–", timer.topic, count(timer.message_count)])
    with section(reader.say("due_next")):
        names = ("due", "id", "keys", "topic", "kind", "broker", "sent", *(["action"] if may_change else []))
        with table([reader.say(name) for name in names], reader.say("due_next")) as add:
            for message in answer.messages:
                add(_row(reader, message, may_change=may_change))
        if answer.read_count > len(answer.messages):
            tag("p", f"+ {count(answer.read_count - len(answer.messages))}", "quiet")


def _within(reader: PageReader, spans: tuple[DueCount, ...], one: DueCount) -> str:
    if one.within_ms is None:
        last = max(span.within_ms or 0 for span in spans)
        return reader.say("due_later", time=duration(last))
    return reader.say("due_within", time=duration(one.within_ms))


def _row(reader: PageReader, message: DelayedMessage, *, may_change: bool) -> list[object]:
    def msg_id() -> None:
        link(message.msg_id, "/message", id=message.msg_id)

    def recall() -> None:
        if message.level is None and not message.is_recalled:
            parameters = {"topic": message.topic, "broker": message.broker_name, "id": message.msg_id}
            link(f"{reader.say('recall')} …", "/change", action="recall-message", due=f"{message.due_ms}", **parameters)

    kind = reader.say("timer") if message.level is None else reader.say("delay_level", level=message.level)
    if message.is_recalled:
        kind = f"{kind}, {MARKS['info']} {reader.say('recalled')}"
    due, sent = reader.at(message.due_ms), reader.at(message.stored_ms)
    row: list[object] = [due, msg_id, message.keys, message.topic, kind, message.broker_name, sent]
    return [*row, recall] if may_change else row
