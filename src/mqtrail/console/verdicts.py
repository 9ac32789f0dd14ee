"""What each verdict code means, what to do about it, and which evidence it needs. The `?` of each code leads here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from nicegui import ui

from mqtrail import trail

from .advice import code_advice
from .frame import Desk, PageReader, chip, frame, link, section, table, tag
from .texts import code_text

SHOW_TARGET: Final = "location.hash && location.replace(location.hash)"
"""Goes to the code of the address: it was not there yet when the browser looked for it."""


async def verdicts(desk: Desk, reader: PageReader) -> None:
    """Draw all codes, by what they are about. No source is asked."""
    with frame(reader, reader.say("verdicts_page")):
        tag("p", reader.say("verdicts_text"), "quiet")
        for about in dict.fromkeys(one.about for one in trail.CODES.values()):
            with section(reader.say(f"about_{about}")):
                names = ["code", "meaning", "advice", "needed", *(["search"] if desk.sources.lake is not None else [])]
                with table([reader.say(name) for name in names], reader.say(f"about_{about}")) as add:
                    for one in trail.CODES.values():
                        if one.about == about:
                            _row(desk, reader, one, add)
    await ui.context.client.connected()
    ui.run_javascript(SHOW_TARGET)


def _row(desk: Desk, reader: PageReader, one: trail.Code, add: Callable[[Sequence[object]], None]) -> None:
    def code() -> None:
        with tag("div", id=one.name, classes="definition"):
            chip(reader, one.name)
            tag("span", reader.say(one.severity), "quiet")

    needs = "; ".join(reader.say(f"need_{need}") for need in one.needs)
    cells: list[object] = [code, code_text(one.name, reader.language), code_advice(one.name, reader.language), needs]
    if desk.sources.lake is not None:
        cells.append(partial(link, reader.say("find"), "/search", q=f"verdict:{one.name}"))
    add(cells)
