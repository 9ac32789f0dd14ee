"""Tests of the documentation: every command, option and setting has its entry, and every link has a target."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts import views_page
from scripts.settings_page import rendered, titles
from typer.main import get_command

from mqtrail.cli.app import build
from mqtrail.cli.config import ENVIRONMENT, TOP_KEYS
from mqtrail.cli.exits import Exit
from mqtrail.pipeline import OPTIONS, SINK_COLUMNS, SINK_OPTIONS
from mqtrail.wire import settings_of

ROOT = Path(__file__).parents[2]
CLI = ROOT / "docs/reference/cli.md"
SETTINGS = ROOT / "docs/reference/settings.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])


def sections(page: Path) -> dict[str, str]:
    """Text of each second-level heading."""
    parts = re.split(r"^## (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {heading.strip(): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return every command."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield " ".join(path), command
        return
    if command.invoke_without_command and path:
        yield " ".join(path), command
    for name, one in subcommands.items():
        yield from commands(one, (*path, name))


COMMANDS = dict(commands(get_command(build())))
GROUPS = {name.rpartition(" ")[0] for name in COMMANDS} - {""}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_its_entry(name: str) -> None:
    """Each command has a heading, and below it exactly its options and arguments."""
    text = sections(CLI)[f"`mqtrail {name}`"]
    table = text[text.index("| option |") :]
    reported = set(re.findall(r"(--[a-z-]+)", "".join(re.findall(r"^\| (.+?) \|", table, flags=re.MULTILINE))))
    reported |= set(re.findall(r"^\| `([A-Z]+)` \|", table, flags=re.MULTILINE))
    options: set[str] = set()
    for one in COMMANDS[name].params:
        if one.param_type_name == "argument":
            options.add(one.metavar or one.name.upper())
        else:
            options |= {text for text in (*one.opts, *one.secondary_opts) if text != "--help"}
    assert reported == options - {"-h"}


def test_every_documented_command_exists() -> None:
    """No removed command has an entry."""
    assert set(sections(CLI)) == {f"`mqtrail {name}`" for name in COMMANDS}


def test_command_lines_in_texts_are_right() -> None:
    """Commands and options that pages, errors and remedies name exist."""
    wrong = []
    for file in (*PAGES, *(ROOT / "src").rglob("*.py")):
        text = file.read_text("utf-8")
        lines = re.findall(r"`mqtrail ([a-z][^`\n]*)`", text)
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            lines += re.findall(r"^mqtrail ([a-z][^#|>\n]*)", block.replace("\\\n", " "), re.MULTILINE)
        for line in lines:
            named = [name for name in COMMANDS if f"{line} ".startswith(f"{name} ")]
            known = {option for name in named for one in COMMANDS[name].params for option in one.opts}
            known |= {option for name in named for one in COMMANDS[name].params for option in one.secondary_opts}
            if set(re.findall(r"(?<![\w-])--[a-z-]+", line)) - known - {"--help"} or not (
                named or GROUPS & {line.rpartition(" ")[0], line}
            ):
                wrong.append((file.name, line))
    assert wrong == []


def test_every_exit_code_is_documented() -> None:
    """The table before the first command."""
    head = CLI.read_text("utf-8").split("\n## ")[0]
    for code in Exit:
        assert f"| {int(code)} |" in head


def rows(text: str) -> dict[str, tuple[str, ...]]:
    """Return first cell, in backticks, of each table row -> the other cells."""
    found = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, flags=re.MULTILINE)
    return {name: tuple(cell.strip() for cell in rest.split(" | ")) for name, rest in found}


def test_the_page_of_settings_is_that_of_the_declarations() -> None:
    """Every setting with its default, RocketMQ's name, whether it is changeable, and its meaning."""
    page = SETTINGS.read_text("utf-8")
    assert rendered(page) == page, "run: python scripts/settings_page.py"


def test_the_page_of_views_is_current() -> None:
    """Its tables come from the views' declarations."""
    assert views_page.PAGE.read_text("utf-8") == views_page.rendered(), "run: python scripts/views_page.py"


PARTS = {
    *(
        "address",
        "ha_address",
        "loses_unflushed",
        "memory_size",
        "use_tls",
        "store_host",
        "message_size_max",
        "message_delay_level",
    ),  # of the broker
    *("data", "broker", "store", "server", "tls", "namesrv", "namesrv_credentials", "credentials"),
    *("group", "instance", "trace", "lake", "settings", "session", "spark_conf"),
    "limit_key",  # a function
}
"""Fields of config classes that come from flags, from other tables, from the broker, or that only a program sets."""


def test_every_field_is_declared_as_a_setting() -> None:
    """A file cannot set a field that is not declared."""
    for _, cls in titles():
        assert {one.name for one in dataclasses.fields(cls)} - set(settings_of(cls)) <= PARTS, cls


def test_options_of_the_spark_source() -> None:
    """Each option has its entry."""
    assert set(rows(sections(SETTINGS)["Spark source `rocketmq`"])) == set(OPTIONS)


def test_options_and_columns_of_the_spark_sink() -> None:
    """Each option and each column has its entry."""
    assert set(rows(sections(SETTINGS)["Spark sink `rocketmq`"])) == {*SINK_OPTIONS, *SINK_COLUMNS}


def test_keys_and_variables_are_listed() -> None:
    """Keys of the settings file outside tables, and environment variables."""
    page = SETTINGS.read_text("utf-8")
    for key in (*TOP_KEYS, *ENVIRONMENT.values()):
        assert key in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links of the documentation, including headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}, which is not there"
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
            assert heading in slugs, f"{page.name} links to {target}: no such heading"


CODE = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL))
]


@pytest.mark.parametrize("block", CODE)
def test_what_python_examples_import_is_there(block: str) -> None:
    """Examples compile, and every name that they import from mqtrail exists."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mqtrail"):
            module = importlib.import_module(node.module or "")
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
