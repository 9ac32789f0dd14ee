"""The frame of the pages that ask all brokers what waits: for its time, for a transaction's end, or for a pop's ack."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nicegui import ui

from mqtrail.answers.access import SeenCluster

from .frame import Desk, PagePart, PageReader, commands, frame, keep_live, lacks_cluster, tag

Answer = TypeVar("Answer")


async def ask_brokers(
    desk: Desk,
    reader: PageReader,
    heading: str,
    text: str,
    command: tuple[str, str, str],
    ask: Callable[[SeenCluster], Answer],
    draw: Callable[[Answer], None],
    form: Callable[[], None] = lambda: None,
) -> None:
    """Draw a page with an answer of all brokers, and load the answer again while the page is live.

    heading, text: names of texts. command: two words of the command that shows the same, and its path in the HTTP API.
    form: draws something below the answer.
    """
    with frame(reader, reader.say(heading)):
        if lacks_cluster(desk, reader):
            return
        tag("p", reader.say(text))
        live = ui.switch(reader.say("live"), value=True)
        part = PagePart(desk, reader)
        *words, path = command
        commands(reader, ["mqtrail", *words, "--namesrv", desk.sources.namesrv], path)
        form()
    cluster = desk.sources.of_cluster()
    await keep_live(live, lambda: part.show(lambda: ask(cluster), draw))
