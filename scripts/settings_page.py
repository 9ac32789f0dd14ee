"""Writes the tables of docs/reference/settings.md from the declarations of the settings.

Run `python scripts/settings_page.py` after a change of a setting. A test compares the page with what it writes.
"""

import dataclasses
import importlib
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from mqtrail.cli.config import ROOMS
from mqtrail.wire import Setting, settings_of

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
WITHOUT_TABLE = (
    ("mqtrail.client", "LitePullConfig"),
    ("mqtrail.client", "ReaderConfig"),
    ("mqtrail.client", "RelayConfig"),
)
"""Config classes that only Python programs use."""
_TABLE = re.compile(r"^\|.*\|$(\n^\|.*\|$)*", re.MULTILINE)


def titles() -> Iterator[tuple[str, type[Any]]]:
    """Yield the heading of each section with a table, and its config class."""
    for table, (module, name) in ROOMS.items():
        yield f"`[{table}]`: {name}", getattr(importlib.import_module(module), name)
    for module, name in WITHOUT_TABLE:
        yield name, getattr(importlib.import_module(module), name)


def table(cls: type[Any]) -> str:
    """Return the table of a config class.

    It has a column for changes at run time if request 25 or 318 may change a setting.
    """
    settings = settings_of(cls)
    defaults = {one.name: one.default for one in dataclasses.fields(cls)}
    has_changeable = any(one.changeable for one in settings.values())
    rows = [("setting", "default", "RocketMQ", *(["at run time"] if has_changeable else []), "meaning")]
    rows.append(("---",) * len(rows[0]))
    rows += [_row(one, defaults[name], has_changeable) for name, one in settings.items()]
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in rows)
        .replace("| --- | --- |", "|---|---|")
        .replace(" --- |", "---|")
    )


def _row(one: Setting, default: object, has_changeable: bool) -> tuple[str, ...]:
    theirs = f"`{one.conf or one.like}`" if one.conf or one.like else "—"
    changes = ["yes" if one.changeable else "—"] if has_changeable else []
    return (f"`{one.name}`", f"`{_shown(default)}`", theirs, *changes, one.text)


def _shown(value: object) -> str:
    if value is None or value == "":
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def rendered(page: str) -> str:
    """Return the page with new tables. ValueError: a section has no heading or no table."""
    for title, cls in titles():
        before, heading, section = page.partition(f"\n## {title}\n")
        found = _TABLE.search(section)
        if not heading or found is None:
            raise ValueError(f"{PAGE.name}: found no table below '## {title}'")
        page = before + heading + section[: found.start()] + table(cls) + section[found.end() :]
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text("utf-8")), "utf-8")
