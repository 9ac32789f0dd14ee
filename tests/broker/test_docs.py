"""The pages under docs/reference say what the code does: every code served and every setting has its entry."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from mqtrail.broker import BROKER_CONF, BrokerConfig
from mqtrail.namesrv import NameServer, NameServerConfig

from .helpers import Bench

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def codes(text: str) -> set[int]:
    """Return the numbers in the first column of the section's table."""
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    return {int(number) for row in rows for number in row.split(",")}


def test_served_codes_are_listed() -> None:
    """The tables of requests are those of the code; 40 goes the other way."""
    assert codes(section("Requests the broker serves")) - {40} == set(Bench().broker._handlers)
    assert codes(section("Requests the name server serves")) == set(NameServer(NameServerConfig())._handlers)


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
        text = str(value).lower() if isinstance(value, bool) else str(value) or "empty"
        assert shown == f"`{text}`" or name == "message_delay_level"


def test_names_of_rocketmq_are_listed() -> None:
    """Every key of a broker.conf that is read stands beside its setting."""
    text = section("Settings of the broker")
    for key, entry in BROKER_CONF.items():
        assert re.search(rf"^\| `{entry.field}` \| .* \| .*`{key}\b", text, re.MULTILINE), key
