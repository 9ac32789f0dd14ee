"""`mqtrail binlog` without a server: its status, and options that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqtrail.binlog import BinlogState
from mqtrail.binlog.state import alone, save_state
from mqtrail.cli.exits import Exit
from mqtrail.clock import now_ms
from tests.cli.conftest import Command, commands


@pytest.fixture
def mqtrail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs one command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return commands(capsys)


def test_status(mqtrail: Command) -> None:
    """Of the state file: place, lag, what was sent, whether a run has it."""
    assert mqtrail("binlog", "status").code == Exit.CANNOT_LOOK
    now = now_ms()
    state = BinlogState(source="7", wish={"topic": "cdc"}, queues=["broker-a/0"], place="bin.000001:99", gtids="0-7-9")
    state.counts, state.event_ms, state.saved_ms, state.done = {"insert": 2, "update": 1}, now - 60_000, now, 3
    path = Path("binlog-state.json")
    save_state(path, state)
    found = mqtrail("binlog", "status")
    assert found.code == Exit.OK
    for text in (
        "bin.000001:99, 3 messages further",
        "3 messages (2 insert, 1 update)",
        "not complete, 0 tables",
        "60.",
    ):
        assert text in found.out
    with alone(path):
        facts = json.loads(mqtrail("binlog", "status", "--json").out)
    assert (facts["is_running"], facts["sent"], facts["place"]) == (True, 3, "bin.000001:99")
    assert 60_000 <= facts["lag_ms"] < 120_000
    state.event_ms = 0
    save_state(path, state)
    assert "unknown" in mqtrail("binlog", "status").out


@pytest.mark.parametrize(
    ("options", "code", "found"),
    [
        (("mysql://a:b@db", "--topic", "t"), Exit.USAGE, "found a password in the URL"),
        (("mysql://a@db", "--topic", "t", "--tag", "x"), Exit.USAGE, "expected table or op"),
        (("mysql://a@db", "--topic", "t", "--retry-for", "x"), Exit.USAGE, "--retry-for"),
        (("mysql://a@db/shop", "--topic", "t"), Exit.FAILED, "expected mysql://user@host:port"),
        (("mysql://a@db", "--topic", "t", "--table", "orders"), Exit.FAILED, r"expected database.table"),
        (("mysql://a@db", "--topic", "t", "--password-file", "none"), Exit.USAGE, "password file none cannot be read"),
    ],
)
def test_refused_options(mqtrail: Command, options: tuple[str, ...], code: Exit, found: str) -> None:
    """Before anything is connected to."""
    result = mqtrail("binlog", "run", *options)
    assert (result.code, found in result.err) == (code, True)
