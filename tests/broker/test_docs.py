"""The pages under docs/reference agree with the code: every request code has its entry."""

import re
from pathlib import Path

import pytest

from mqtrail.broker import OWN_PORT_CODES, BrokerConfig
from mqtrail.broker.messages import Wait
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.wire import RequestCode, ResponseCode

from .helpers import Bench

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def request_rows() -> dict[int, tuple[str, set[str], str]]:
    """Return code -> name, server, purpose."""
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([\w, ]+) \| (.+) \|$", section("Requests, code by code"), re.MULTILINE)
    assert len({row[0] for row in rows}) == len(rows), "a code has two rows"
    return {int(code): (name, set(served.split(", ")), what) for code, name, served, what in rows}


def test_every_request_code_has_its_row() -> None:
    """Each code has one row with its name, and each row has a code."""
    assert {code: name for code, (name, _, _) in request_rows().items()} == {int(c): c.name for c in RequestCode}


@pytest.mark.parametrize("server", ["broker", "name server"])
def test_rows_say_who_serves(server: str) -> None:
    """The table equals that of the code, in both directions; a code that is refused with a text counts as not
    served."""
    handlers = Bench().broker._handlers if server == "broker" else NameServer(NameServerConfig())._handlers
    refused = {code for code, (_, served, what) in request_rows().items() if what.startswith("refused with code 3")}
    assert {code for code, (_, served, _) in request_rows().items() if server in served} == set(handlers) - refused
    for code in refused & set(handlers):
        assert request_rows()[code][1] == {"none"}
        assert Bench().ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_the_fast_port_refuses_what_the_page_says() -> None:
    """The page lists the codes whose rows say that the second port does not serve them."""
    text = PAGE.split("The **fast port**")[1].split("answers with 3")[0]
    assert {int(code) for code in re.findall(r"\b\d{2,}\b", text)} == OWN_PORT_CODES


def test_waits_are_settings() -> None:
    """Each time that a request may wait is a setting of the broker, in ms."""
    for wait in Wait:
        assert wait is Wait.UNLIMITED or getattr(BrokerConfig(), wait) > 0
