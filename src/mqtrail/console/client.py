"""One live consumer: its queues, how fast it is, its subscriptions, and the stacks of its threads."""

from __future__ import annotations

from functools import partial

from nicegui import ui

from mqtrail.answers import ClientAnswer
from mqtrail.wire import visible_lines

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, link, section, table, tag
from .looks import UNKNOWN, count, duration


async def client(desk: Desk, reader: PageReader, group: str, client_id: str) -> None:
    """Draw what a member of a group reports. Its stacks are asked for by a button: they cost the client time."""
    with frame(reader, f"{reader.say('client')} {client_id}"):
        if lacks_cluster(desk, reader):
            return
        with tag("div", classes="tools"):
            link(f"{reader.say('group')} {group}", "/group", "button", name=group)
            again = tag("button", reader.say("load_again"), type="button")
            stacks = tag("button", reader.say("load_stack"), type="button")
        part = PagePart(desk, reader)
        with section(reader.say("stack")):
            stack = PagePart(desk, reader)
        command = ["mqtrail", "group", "members", group, "--stacks", "--namesrv", desk.sources.namesrv]
        commands(reader, command, "/client", group=group, id=client_id, stack="true")
    cluster = desk.sources.of_cluster()

    async def load() -> None:
        await part.show(partial(cluster.client, group, client_id), partial(_draw, reader))

    async def load_stack() -> None:
        await stack.show(partial(cluster.client, group, client_id, has_stack=True), partial(_stack, reader))

    again.on("click", load)
    stacks.on("click", load_stack)
    await ui.context.client.connected()
    stack.put(partial(_hint, reader))
    await load()


def _hint(reader: PageReader) -> None:
    tag("p", reader.say("stack_text"), "quiet")


def _draw(reader: PageReader, answer: ClientAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    with section(reader.say("queues")):
        names = ("topic", "queue", "committed", "cached", "locked", "pulled", "consumed_at")
        with table([reader.say(name) for name in names], reader.say("queues")) as add:
            for queue in answer.queues:
                place = f"{queue.broker_name}/{queue.queue_id}"
                locked = reader.say("yes" if queue.is_locked else "no")
                numbers = (count(queue.committed_offset), count(queue.cached_count), locked)
                add([queue.topic, place, *numbers, reader.at(queue.pulled_ms), reader.at(queue.consumed_ms)])
    with section(reader.say("topics")):
        columns = ("topic", "handler_takes", "done_per_s", "failed_per_s", "failed_hour")
        with table([reader.say(name) for name in columns], reader.say("topics")) as add:
            for one in answer.topics:
                rates = (f"{one.done_per_s:.3g}", f"{one.failed_per_s:.3g}")
                add([one.topic, duration(one.handler_ms), *rates, count(one.failed_count)])
    with (
        section(reader.say("subscriptions")),
        table([reader.say("topic"), reader.say("subscriptions")], reader.say("subscriptions")) as add,
    ):
        for topic, expression in sorted(answer.subscriptions.items()):
            add([topic, expression])
    with (
        section(reader.say("properties")),
        table([reader.say("property"), reader.say("value")], reader.say("properties")) as add,
    ):
        for name, value in answer.properties.items():
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
