"""One live consumer: its queues, how fast it is, its subscriptions, and the stacks of its threads."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.answers import ClientAnswer, number_text
from mqtrail.answers.access import Right
from mqtrail.wire import visible_lines

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, link, section, table, tag
from .looks import UNKNOWN, count, duration

ROWS_MAX: Final = 500


async def client(desk: Desk, reader: PageReader, group: str, client_id: str) -> None:
    """Draw what a member of a group reports.

    Those who may operate get its stacks by a button: they cost the client time.
    """
    with frame(reader, f"{reader.say('client')} {client_id}"):
        if lacks_cluster(desk, reader):
            return
        with tag("div", classes="tools"):
            link(f"{reader.say('group')} {group}", "/group", "button", name=group)
            again = tag("button", reader.say("load_again"), type="button")
        part = PagePart(desk, reader)
        stack = _StackPart(desk, reader, group, client_id) if Right.OPERATE in desk.rights else None
        shown = ["--stacks"] if stack else []
        command = ["mqtrail", "group", "members", group, *shown, "--namesrv", desk.sources.namesrv]
        asked = {"stack": "true"} if stack else {}
        commands(reader, command, "/client", group=group, id=client_id, **asked)
    cluster = desk.sources.of_cluster()

    async def load() -> None:
        await part.show(partial(cluster.client, group, client_id), partial(_draw, reader))

    again.on("click", load)
    await ui.context.client.connected()
    await load()


class _StackPart:
    """The stacks of a client, and the button that asks for them."""

    def __init__(self, desk: Desk, reader: PageReader, group: str, client_id: str) -> None:
        self._reader = reader
        self._ask = partial(desk.sources.of_cluster().client, group, client_id, has_stack=True)
        with section(reader.say("stack")):
            tag("button", reader.say("load_stack"), type="button").on("click", self._load)
            self._part = PagePart(desk, reader)
        self._part.put(partial(_hint, reader))

    async def _load(self) -> None:
        await self._part.show(self._ask, partial(_stack, self._reader))


def _hint(reader: PageReader) -> None:
    tag("p", reader.say("stack_text"), "quiet")


def _draw(reader: PageReader, answer: ClientAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    with section(reader.say("queues")):
        names = ("topic", "queue", "committed", "cached", "locked", "pulled", "consumed_at")
        with table([reader.say(name) for name in names], reader.say("queues")) as add:
            for queue in answer.queues[:ROWS_MAX]:
                place = f"{queue.broker_name}/{queue.queue_id}"
                locked = reader.say("yes" if queue.is_locked else "no")
                numbers = (count(queue.committed_offset), count(queue.cached_count), locked)
                add([queue.topic, place, *numbers, reader.at(queue.pulled_ms), reader.at(queue.consumed_ms)])
        if len(answer.queues) > ROWS_MAX:
            tag("p", f"+ {len(answer.queues) - ROWS_MAX}", "quiet")
    with section(reader.say("topics")):
        columns = ("topic", "handler_takes", "done_per_s", "failed_per_s", "failed_hour")
        with table([reader.say(name) for name in columns], reader.say("topics")) as add:
            for one in answer.topics[:ROWS_MAX]:
                rates = (number_text(one.done_per_s), number_text(one.failed_per_s))
                add([one.topic, duration(one.handler_ms), *rates, count(one.failed_count)])
    with (
        section(reader.say("subscriptions")),
        table([reader.say("topic"), reader.say("subscriptions")], reader.say("subscriptions")) as add,
    ):
        for topic, expression in sorted(answer.subscriptions.items())[:ROWS_MAX]:
            add([topic, expression])
    with (
        section(reader.say("properties")),
        table([reader.say("property"), reader.say("value")], reader.say("properties")) as add,
    ):
        for name, value in list(answer.properties.items())[:ROWS_MAX]:
            add([name, reader.say("hidden") if value is None else value])


def _stack(reader: PageReader, answer: ClientAnswer) -> None:
    bounds(reader, answer.scope)
    if answer.stack is None:
        tag("p", f"{UNKNOWN} {reader.say('no_stack')}")
        return
    if len(answer.stack) < answer.stack_size:
        words = reader.say("stack_cut", shown=count(len(answer.stack)), all=count(answer.stack_size))
        tag("p", f"{MARKS['warning']} {words}")
    tag("pre", tabindex="0").set_text(visible_lines(answer.stack.replace("\r\n", "\n").replace("\t", "    ")))
