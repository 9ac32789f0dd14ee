"""Edit a copy of a stored message, such as a dead letter: its body as text, its properties; then plan and send it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import StoredMessage
from mqtrail.answers.changes import Actor, ChangePlan, ResendEdited, is_editable
from mqtrail.answers.http import Changing
from mqtrail.clock import now_ms
from mqtrail.gateway import Problem
from mqtrail.wire import visible, visible_lines

from .change import Doing, draw_plan, perform
from .frame import MARKS, Desk, PagePart, PageReader, bounds, frame, lacks_cluster, section, table, tag

BODY_MAX: Final = 256 * 1024  # bytes of a body that can be edited
NEW_PROPERTIES: Final = 3  # empty rows for further ones
NAME_SIZE_MAX: Final = 255
VALUE_SIZE_MAX: Final = 32_767
CHANGED: Final = "(event) => emit(event.target.value)"


async def edit(desk: Desk, changing: Changing, reader: PageReader, asked: tuple[str, str, str], actor: Actor) -> None:
    """Draw the form. asked: group, place of the stored message, and its id: one of these two is enough."""
    group, place, msg_id = asked
    with frame(reader, reader.say("resend-edited")):
        if lacks_cluster(desk, reader):
            return
        tag("p", reader.say("edit_text"), "quiet")
        part = PagePart(desk, reader)
        planned = PagePart(desk, reader)
        planned.put(lambda: None)
        outcomes = tag("div", **{"aria-live": "polite"})
    await ui.context.client.connected()

    def load() -> StoredMessage:
        at = place or _place_of(desk, msg_id)
        return desk.sources.of_cluster().message(at, BODY_MAX)

    form = _EditForm(desk, changing, reader, group, actor, planned, outcomes)
    await part.show(load, form.draw)


def _place_of(desk: Desk, msg_id: str) -> str:
    found = desk.sources.answers().trace(msg_id, now_ms()).trajectories
    return found[0].place if len(found) == 1 else ""  # '' is refused with what was expected


@dataclass
class _Edited:
    """What the reader typed. body: None: as stored."""

    body: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    new: dict[int, list[str]] = field(default_factory=dict)
    is_to_topic: bool = False

    def all_properties(self) -> dict[str, str]:
        """Return the properties that differ, those of the new rows too."""
        return self.properties | {name.strip(): value for name, value in self.new.values() if name.strip()}


class _EditForm:
    """The form of one message, its plan, and the button that sends the copy."""

    def __init__(
        self,
        desk: Desk,
        changing: Changing,
        reader: PageReader,
        group: str,
        actor: Actor,
        planned: PagePart,
        outcomes: ui.element,
    ) -> None:
        self._desk = desk
        self._changing = changing
        self._reader = reader
        self._group = group
        self._actor = actor
        self._planned = planned
        self._outcomes = outcomes
        self._place = ""
        self._edited = _Edited()

    def draw(self, one: StoredMessage) -> None:
        """Draw the form with what is stored."""
        reader = self._reader
        self._place = one.place
        bounds(reader, one.scope)
        tag("p", f"{one.msg_id} · {one.place}")
        with section(reader.say("body")):
            words = None if one.is_hidden or one.why or one.body_size > len(one.body) else _text_of(one.body)
            if words is None:
                tag("p", f"{MARKS['info']} {reader.say('body_not_editable', size=f'{BODY_MAX:,}')}")
            else:
                area = tag("textarea", rows="12", spellcheck="false", **{"aria-label": reader.say("body")})
                area.set_text(words)
                area.on("change", lambda event: self._set_body(event.args), js_handler=CHANGED)
        with section(reader.say("properties")):
            self._draw_properties(one)
        with tag("div", classes="tools"):
            with tag("label"):
                box = tag("input", type="checkbox")
                box.on("change", lambda event: self._set_target(event.args), js_handler="(e) => emit(e.target.checked)")
                tag("span", f" {reader.say('to_topic')}")
            tag("button", reader.say("plan_it"), type="button").on("click", self._plan)

    def _draw_properties(self, one: StoredMessage) -> None:
        reader = self._reader
        known = {name: value for name, value in sorted(one.properties.items()) if is_editable(name)}
        for missing in ("KEYS", "TAGS"):
            known.setdefault(missing, "")
        with table([reader.say("property"), reader.say("value")], reader.say("properties")) as add:
            for name, value in known.items():
                if visible(value) == value:
                    add([name, partial(self._property, name, value)])
            for number in range(NEW_PROPERTIES):
                add([partial(self._new, number, 0), partial(self._new, number, 1)])

    def _property(self, name: str, value: str) -> None:
        made = tag("input", value=value, maxlength=f"{VALUE_SIZE_MAX}", **{"aria-label": name})
        made.on("change", lambda event: self._edited.properties.update({name: str(event.args)}), js_handler=CHANGED)

    def _new(self, number: int, which: int) -> None:
        words = self._reader.say("value" if which else "new_property")
        size = VALUE_SIZE_MAX if which else NAME_SIZE_MAX
        made = tag("input", maxlength=f"{size}", **{"aria-label": f"{words} {number + 1}", "placeholder": words})

        def keep(event: Any) -> None:
            self._edited.new.setdefault(number, ["", ""])[which] = str(event.args)

        made.on("change", keep, js_handler=CHANGED)

    def _set_body(self, value: Any) -> None:
        self._edited.body = str(value)

    def _set_target(self, value: Any) -> None:
        self._edited.is_to_topic = value is True

    async def _plan(self) -> None:
        edited = self._edited
        wanted = ResendEdited(
            place=self._place,
            group=self._group,
            is_to_topic=edited.is_to_topic,
            body=edited.body,
            properties=edited.all_properties(),
        )
        try:
            found = await self._changing.plan(wanted, self._desk.sources)
        except Problem as problem:
            self._planned.put(lambda: None)
            self._planned.fail(problem.detail)
            return
        self._planned.put(lambda: self._draw_plan(wanted, found))

    def _draw_plan(self, wanted: ResendEdited, plan: ChangePlan) -> None:
        reader = self._reader
        draw_plan(reader, plan)
        button = tag("button", reader.say("do_it"), type="button")

        async def do() -> None:
            button.set_visibility(False)
            doing = Doing(self._desk, self._changing, reader, wanted, self._actor)
            await perform(doing, plan, self._outcomes)

        button.on("click", do)


def _text_of(body: bytes) -> str | None:
    """Return a body that a text field gives back unchanged; None: it is not such a text."""
    try:
        words = body.decode()
    except UnicodeDecodeError:
        return None
    return words if visible_lines(words) == words and "\r" not in words else None
