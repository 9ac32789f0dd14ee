"""What the pages of pmq mode share: the door that they ask, their frame, tables of its answers.

The door decides what the reader may see and change: the pages hide nothing, and hold no role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Final

from mqtrail.answers.access import Visitor
from mqtrail.answers.http import Workers
from mqtrail.gateway import Problem
from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer, DoorFailed, DoorRefused, OperatedDoor

from ..frame import Desk, PagePart, PageReader, commands, frame, link, table, tag
from ..looks import UNKNOWN, count
from .texts import pmq_text

ROWS_MAX: Final = 1_000
CHANGES_AT_ONCE: Final = 2
CHANGES_WAITING_MAX: Final = 8
CHANGE_S: Final = 120.0
PAGES: Final = (
    ("/pmq", "backlog"),
    ("/pmq/topics", "topics"),
    ("/pmq/queues", "queues"),
    ("/pmq/nodes", "nodes"),
    ("/pmq/groups", "groups_of"),
    ("/pmq/subscriptions", "subscriptions"),
    ("/pmq/members", "members"),
    ("/pmq/messages", "messages"),
    ("/pmq/failures", "failures"),
    ("/pmq/reports", "reports"),
    ("/pmq/audit", "audit"),
    ("/pmq/lock", "lock"),
    ("/pmq/rules", "rules"),
)
STATUSES: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses of the door that are the reader's matter; all others are the console's."""
Cell = Callable[[DoorAnswer], object]
"""Returns a cell of a row: a text, a number, or a function that draws it."""


class PmqPortal:
    """A door whose pages a console serves. names_people: users log in, so the door gets the name of who asks.

    can_change: the console may change something, if the door lets who asks.
    """

    def __init__(self, door: OperatedDoor, *, names_people: bool, can_change: bool) -> None:
        self.door = door
        self.can_change = can_change
        self.changes = Workers(count=CHANGES_AT_ONCE, waiting_max=CHANGES_WAITING_MAX, timeout_s=CHANGE_S)
        self._names_people = names_people

    def of(self, visitor: Visitor) -> OperatedDoor:
        """Return the door as this visitor may use it. SignedOut."""
        return replace(self.door, acts_for=visitor.now().name) if self._names_people else self.door


@dataclass(frozen=True, slots=True)
class PmqView:
    """A page of pmq mode for one reader."""

    desk: Desk
    reader: PageReader
    portal: PmqPortal
    visitor: Visitor

    @property
    def can_change(self) -> bool:
        """Return whether this console has pages of changes."""
        return self.portal.can_change

    def say(self, name: str, **values: object) -> str:
        """Return a text in the reader's language."""
        return pmq_text(name, self.reader.language, **values)

    def asking(self, question: Callable[[OperatedDoor], DoorAnswer]) -> Callable[[], DoorAnswer]:
        """Return a question to the door, for a worker. It raises Problem, SignedOut."""

        def ask() -> DoorAnswer:
            try:
                return question(self.portal.of(self.visitor))
            except DoorRefused as error:
                status = next((one for one in STATUSES if one == error.status), HTTPStatus.BAD_GATEWAY)
                raise Problem(status, str(error)) from error
            except DoorFailed as error:
                raise Problem(HTTPStatus.BAD_GATEWAY, str(error)) from error

        return ask

    @contextmanager
    def frame(self, title: str, about: str = "") -> Iterator[None]:
        """Draw a page around the block, with the pages of pmq mode and who asks. about: name of a text."""
        with frame(self.reader, title):
            with tag("nav", classes="tools", **{"aria-label": self.say("pages_of_pmq")}):
                for path, name in PAGES:
                    here = {"aria-current": "page"} if self.reader.page == path else {}
                    link(self.say(name), path, "here" if here else "").props.update(here)
            if about:
                tag("p", self.say(about), "quiet")
            yield

    def part(self) -> PagePart:
        """Add a part that is loaded by itself."""
        return PagePart(self.desk, self.reader)

    async def load(
        self, part: PagePart, question: Callable[[OperatedDoor], DoorAnswer], draw: Callable[[DoorAnswer], None]
    ) -> DoorAnswer | None:
        """Ask the door and draw the answer; None if it failed: then the part says why, and has no table."""
        return await part.show(self.asking(question), draw)

    def command(self, *words: str) -> None:
        """Draw the command that prints the same."""
        commands(self.reader, ["mqtrail", "pmq", *words, "--url", self.portal.door.url])

    def rows(
        self, rows: Sequence[DoorAnswer], columns: Mapping[str, Cell], label: str, empty: str = "nothing_here"
    ) -> None:
        """Draw a table. columns: name of a text, and the cell of a row."""
        if not rows:
            tag("p", self.say(empty))
            return
        with table([self.say(name) for name in columns], label) as add:
            for row in rows[:ROWS_MAX]:
                add([_aligned(cell(row)) for cell in columns.values()])
        if len(rows) > ROWS_MAX:
            tag("p", f"+ {len(rows) - ROWS_MAX}", "quiet")

    # Cells.

    def moment(self, name: str) -> Cell:
        """Return the cell of a time; 0 and null are unknown."""
        return lambda row: self.reader.at(row[name] or None)

    def number(self, name: str) -> Cell:
        """Return the cell of a number; null is unknown."""
        return lambda row: count(row[name])

    def link_to(self, name: str, path: str, *further: str) -> Cell:
        """Return the cell of a name that leads to its page. further: columns that are parameters too."""

        def cell(row: DoorAnswer) -> Callable[[], object]:
            asked = {"name" if not further else name: str(row[name])} | {one: str(row[one]) for one in further}
            return partial(link, str(row[name]), path, **asked)

        return cell

    def yes(self, name: str) -> Cell:
        """Return the cell of what is true or not."""
        return lambda row: self.say("yes" if row[name] else "no")

    def state(self, row: DoorAnswer) -> str:
        """Return whether a group runs."""
        return self.say("paused" if row["paused"] else "runs")

    def names(self, name: str, none: str = "none") -> Cell:
        """Return the cell of several names. none: text for an empty list."""

        def cell(row: DoorAnswer) -> str:
            found = row[name]
            return ", ".join(map(str, found)) if found else self.say("all" if found is None else none)

        return cell

    # Forms.

    @contextmanager
    def form(self, action: str, **hidden: str) -> Iterator[None]:
        """Draw a form around the block that leads to the plan of a change."""
        with tag("form", classes="tools", action="/pmq/change", method="get", **{"aria-label": self.say(action)}):
            for name, value in {"action": action, **hidden}.items():
                tag("input", type="hidden", name=name, value=value)
            yield
            tag("button", self.say("plan"), type="submit")

    def field(self, name: str, words: str, *, value: str = "", size: int = 255, is_needed: bool = True) -> None:
        """Draw a field with its name inside it."""
        label, needed = self.say(words), {"required": ""} if is_needed else {}
        tag(
            "input",
            name=name,
            value=value,
            maxlength=str(size),
            placeholder=label,
            **{"aria-label": label},
            **needed,
        )

    def number_field(self, name: str, words: str, value: str = "") -> None:
        """Draw a field for a number, with its name before it."""
        with tag("label"):
            tag("span", f"{self.say(words)} ")
            tag("input", name=name, value=value, type="number", min="0", max="9999", required="")

    def choice(self, name: str, words: str, values: Mapping[str, str]) -> None:
        """Draw a choice. values: what is sent, and what is shown."""
        with tag("label"):
            tag("span", f"{self.say(words)} ")
            with tag("select", name=name):
                for value, shown in values.items():
                    tag("option", shown, value=value)

    def mark(self, name: str, words: str) -> None:
        """Draw a check box."""
        with tag("label"):
            tag("input", type="checkbox", name=name)
            tag("span", f" {self.say(words)}")

    async def who(self, part: PagePart) -> DoorAnswer | None:
        """Show who asks and what its role is; return the rules, None if the door refused."""
        return await self.load(part, operating.rules, self._who)

    def _who(self, answer: DoorAnswer) -> None:
        owned = [*answer["own_topics"], *answer["own_groups"]]
        if answer["read_only"]:
            role = self.say("role_read_only")
        elif answer["role"] == "admin":
            role = self.say("role_admin")
        else:
            role = self.say("role_owner", owned=", ".join(owned)) if owned else self.say("role_user")
        tag("p", self.say("asks_as", who=answer["name"], role=role), "bounds")


def _aligned(cell: object) -> object:
    """Return a cell as a text, also if it is a number: unknown numbers are texts, and one column has one alignment."""
    return count(cell) if isinstance(cell, int) else cell


def owners_of(rules: DoorAnswer | None, kind: str) -> Callable[[str], str]:
    """Return what gives the owners of a topic or a group. kind: topic, group. rules: None: unknown."""
    if rules is None:
        return lambda _: UNKNOWN
    known = {row[kind]: ", ".join(row["owners"]) for row in rules.rows(f"{kind}s")}
    return lambda name: known.get(name) or "–"
