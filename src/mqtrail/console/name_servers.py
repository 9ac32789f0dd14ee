"""The name servers: their settings, and where these differ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from nicegui import ui

from mqtrail.answers import NameServersAnswer

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_cluster, table, tag


async def name_servers(desk: Desk, reader: PageReader) -> None:
    """Draw a column for each name server."""
    with frame(reader, reader.say("name_servers")):
        if lacks_cluster(desk, reader):
            return
        part = PagePart(desk, reader)
        commands(reader, ["mqtrail", "cluster", "namesrv", "--namesrv", desk.sources.namesrv], "/name-servers")
    cluster = desk.sources.of_cluster()
    await ui.context.client.connected()
    await part.show(cluster.name_servers, partial(_draw, reader))


def _draw(reader: PageReader, answer: NameServersAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    if answer.differing:
        tag("p", f"{MARKS['warning']} {reader.say('settings_differ', names=', '.join(answer.differing))}")
    servers = sorted(answer.settings)
    names = sorted({name for settings in answer.settings.values() for name in settings})
    with table([reader.say("setting"), *servers], reader.say("settings")) as add:
        for name in names:
            mark = f"{MARKS['warning']} " if name in answer.differing else ""
            add([f"{mark}{name}", *(_value(reader, answer.settings[one], name) for one in servers)])


def _value(reader: PageReader, settings: Mapping[str, str | None], name: str) -> str:
    if name not in settings:
        return reader.say("unknown")
    value = settings[name]
    return reader.say("hidden") if value is None else value
