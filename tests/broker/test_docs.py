"""The pages under docs/reference say what the code does: every request code and every setting has its entry."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from mqtrail.broker import BROKER_CONF, BrokerConfig
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.wire import RequestCode, ResponseCode

from .helpers import Bench

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def request_rows() -> dict[int, tuple[str, set[str], str]]:
    """Return code -> name, who serves it, what it does."""
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([\w, ]+) \| (.+) \|$", section("Requests, code by code"), re.MULTILINE)
    assert len({row[0] for row in rows}) == len(rows), "a code has two rows"
    return {int(code): (name, set(served.split(", ")), what) for code, name, served, what in rows}


def test_every_request_code_has_its_row() -> None:
    """One row a code, under its name, and none for a code that is not there."""
    assert {code: name for code, (name, _, _) in request_rows().items()} == {int(c): c.name for c in RequestCode}


@pytest.mark.parametrize("server", ["broker", "name server"])
def test_rows_say_who_serves(server: str) -> None:
    """The table is that of the code, both ways; what is refused with a text counts as not served."""
    handlers = Bench().broker._handlers if server == "broker" else NameServer(NameServerConfig())._handlers
    refused = {code for code, (_, served, what) in request_rows().items() if what.startswith("refused with code 3")}
    assert {code for code, (_, served, _) in request_rows().items() if server in served} == set(handlers) - refused
    for code in refused & set(handlers):
        assert request_rows()[code][1] == {"none"}
        assert Bench().ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("config", "title"),
    [(BrokerConfig(), "Settings of the broker"), (NameServerConfig(), "Settings of the name server")],
)
def test_settings_are_listed(config: BrokerConfig | NameServerConfig, title: str) -> None:
    """Every setting has a row with its default; every row is a setting."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section(title), re.MULTILINE))
    assert rows.keys() == {field.name for field in fields(config)}
    for name, shown in rows.items():
        value = getattr(config, name)
        text = str(value).lower() if isinstance(value, bool | None) else str(value) or "empty"
        assert shown == f"`{text}`" or name == "message_delay_level"


def test_names_of_rocketmq_are_listed() -> None:
    """Every key of a broker.conf that is read stands beside its setting."""
    text = section("Settings of the broker")
    for key, entry in BROKER_CONF.items():
        assert re.search(rf"^\| `{entry.field}` \| .* \| .*`{key}\b", text, re.MULTILINE), key
