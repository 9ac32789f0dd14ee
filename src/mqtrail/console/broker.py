"""One broker: its settings, and a form that changes one."""

from __future__ import annotations

from functools import partial

from nicegui import ui

from mqtrail.answers import BrokerSettingsAnswer

from .frame import Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, section, table, tag


async def broker(desk: Desk, reader: PageReader, name: str) -> None:
    """Draw the settings of a master."""
    with frame(reader, f"{reader.say('broker')} {name}"):
        if lacks_cluster(desk, reader):
            return
        if desk.can_administer:
            with section(reader.say("set-broker-settings")):
                _form(reader, name)
        with section(reader.say("settings")):
            part = PagePart(desk, reader)
            command = ["mqtrail", "cluster", "config", "--broker", name, "--namesrv", desk.sources.namesrv]
            commands(reader, command, "/settings", broker=name)
    cluster = desk.sources.of_cluster()
    await ui.context.client.connected()
    await part.show(partial(cluster.settings, name), partial(_draw, reader))


def _form(reader: PageReader, name: str) -> None:
    """Draw a form that leads to the plan."""
    with tag("form", classes="tools", action="/change", method="get"):
        for field, value in (("action", "set-broker-settings"), ("broker", name)):
            tag("input", type="hidden", name=field, value=value)
        for field, words in (("setting", reader.say("setting")), ("value", reader.say("value"))):
            tag("input", name=field, maxlength="1000", placeholder=words, **{"aria-label": words})
        tag("button", reader.say("plan_it"), type="submit")


def _draw(reader: PageReader, answer: BrokerSettingsAnswer) -> None:
    bounds(reader, answer.scope)
    with table([reader.say("setting"), reader.say("value")], reader.say("settings")) as add:
        for name, value in sorted(answer.settings.items()):
            add([name, reader.say("hidden") if value is None else value])
