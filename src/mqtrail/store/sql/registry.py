"""Which nodes a store has: their names in settings, and what the home knows of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select, text, update

from mqtrail.wire import InvalidParameter

from ..errors import StoreError
from .database import Database
from .engines import CLOCKS, parse, shown_url
from .schema import ASSIGNMENT, HOME, HOME_NAME, NODE, NODES, PARKED, NodeKind, NodeState, has_nodes

NAME_LENGTH_MAX: Final = 40


def parse_node(given: str) -> tuple[str, str]:
    """Return name and URL of NAME=URL. InvalidParameter."""
    name, equals, url = given.partition("=")
    letters = name.replace("-", "").replace("_", "")
    if not (equals and letters.isascii() and letters.isalnum()) or len(name) > NAME_LENGTH_MAX or name == HOME_NAME:
        raise InvalidParameter(
            f"found the node {name[:NAME_LENGTH_MAX]!r}, expected NAME=URL, with a name of at most {NAME_LENGTH_MAX} "
            f"letters, digits, - and _ other than {HOME_NAME}"
        )
    parse(url)
    return name, url


def register(home: Database, home_url: str, others: Sequence[tuple[str, str]]) -> dict[int, Any]:
    """Note new nodes at the home, forget those without queues; return the rows of all. Empty: there is only the home.

    others: names and URLs.

    StoreError: a node with queues is missing.
    """
    names = [name for name, _ in others]
    if len(set(names)) < len(names):
        raise InvalidParameter(f"found the nodes {', '.join(names)}, expected each name once")
    rows: dict[int, Any] = {}

    def act(connection: Connection) -> None:
        if not others and not has_nodes(connection):
            return
        NODES.create_all(connection)
        home.check_writer(connection)  # MySQL commits with each CREATE TABLE
        known = {row.name: row for row in connection.execute(select(NODE))}
        store = known[HOME_NAME].store if known else _new_id(connection)
        for name in known.keys() - {*names, HOME_NAME}:
            _forget(connection, known.pop(name))
        number = max((row.number for row in known.values()), default=HOME - 1)
        for name, url in [(HOME_NAME, home_url), *others]:
            shown = shown_url(parse(url))
            if name in known:
                connection.execute(update(NODE).where(NODE.c.name == name).values(url=shown))
                continue
            number += 1
            values = {"number": number, "name": name, "kind": NodeKind.NORMAL, "state": NodeState.READ_WRITE}
            connection.execute(
                insert(NODE), {**values, "store": store, "url": shown, "away": None, "reserved_offset": 0}
            )
        rows.update({row.number: row for row in connection.execute(select(NODE))})

    with home.transaction() as connection:
        act(connection)
    return rows


def _new_id(connection: Connection) -> str:
    """Return an id that no other store has: of its first start with several nodes."""
    clock_ms = connection.execute(text(CLOCKS[connection.dialect.name])).scalar_one()
    return f"{os.uname().nodename[:200]}-{os.getpid()}-{clock_ms}"


def _forget(connection: Connection, row: Any) -> None:
    """Forget a node that is not named any more. StoreError: it has queues."""
    counts = [
        connection.execute(select(func.count()).select_from(table).where(table.c.node == row.number)).scalar_one()
        for table in (ASSIGNMENT, PARKED)
    ]
    if any(counts):
        raise StoreError(
            f"found no --node {row.name}, which has {counts[0]} queues and {counts[1]} parked messages, expected "
            f"--node {row.name}=URL (it was {row.url}): name it, or delete its topics first"
        )
    connection.execute(delete(NODE).where(NODE.c.number == row.number))
