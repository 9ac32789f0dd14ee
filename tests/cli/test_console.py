"""`mqtrail console`: options that are refused before the start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from urllib.request import urlopen

import pytest

from mqtrail.answers.changes import AuditLog, read_audit
from mqtrail.cli.app import run
from mqtrail.lake import Lake

LATE = {"duckdb", "pyarrow", "deltalake", "numpy", "pandas", "pyspark", "aiohttp.client", "requests.api"}
"""What the first page must not wait for."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "found neither --lake nor --namesrv"),
        (("--namesrv", "127.0.0.1:1", "--host", "0.0.0.0"), "--host: found '0.0.0.0' without HTTPS"),
        (("--namesrv", "127.0.0.1:1", "--host", "example.com"), "set [console] url to the https:// address"),
        (("--namesrv", "nonsense"), "nonsense"),
        (("--pmq", "http://127.0.0.1:1"), "found --pmq without a token"),
        (("--pmq", "http://127.0.0.1:1/x"), "--pmq: found 'http://127.0.0.1:1/x', expected the address of a door"),
        (("--pmq", "http://127.0.0.1:1", "--clusters", "x"), "found --pmq with --clusters"),
        (("--namesrv", "127.0.0.1:1", "--ca", "x"), "found --ca without --pmq"),
        (("--namesrv", "127.0.0.1:1", "--audit-log", "x"), "found --audit-log without --allow-changes, a lake"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str) -> None:
    """The exit code is 2. Without HTTPS the console does not listen to other machines."""
    assert run(["console", "--port", "0", *options]) == 2
    assert expected in capsys.readouterr().err


def test_a_lake_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A wrong path is an error at the start, not on the first page."""
    assert run(["console", "--port", "0", "--lake", str(tmp_path / "none")]) == 3
    assert "none" in capsys.readouterr().err


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """The first line has the address, the first page needs no DuckDB or Arrow; SIGINT ends it with exit code 0."""
    Lake.create(tmp_path / "lake")
    command = [sys.executable, "-m", "mqtrail", "console", "--port", "0", "--lake", str(tmp_path / "lake")]
    imports = tmp_path / "imports"
    with (
        imports.open("w") as noted,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=noted, text=True, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r"http://[0-9.]+:[0-9]+", process.stdout.readline())
            assert found is not None
            with urlopen(found[0], timeout=60) as page:
                assert page.status == 200
            first = {line.rpartition("|")[2].strip() for line in imports.read_text().splitlines()}
            assert {"nicegui", "uvicorn"} <= first
            assert first & LATE == set()
            with urlopen(f"{found[0]}/api/v1/search", timeout=60) as answer:
                assert json.load(answer)["matched_count"] == 0
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_changes_need_a_cluster_and_a_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Both are errors at the start."""
    Lake.create(tmp_path / "lake")
    assert run(["console", "--port", "0", "--lake", str(tmp_path / "lake"), "--allow-changes"]) == 2
    assert "found --allow-changes without --namesrv" in capsys.readouterr().err
    options = ["--namesrv", "127.0.0.1:1", "--allow-changes", "--audit-log", str(tmp_path)]
    assert run(["console", "--port", "0", *options]) == 1
    assert "cannot write the audit log" in capsys.readouterr().err


def test_users_of_a_console(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Passwords come by the environment or stdin, never by an option; each change is in the audit log."""
    monkeypatch.setenv("MQTRAIL_DATA", str(tmp_path))
    monkeypatch.setenv("MQTRAIL_PASSWORD", "correct horse battery")
    assert run(["console", "user", "add", "ann", "--role", "viewer", "--role", "operator/orders"]) == 0
    monkeypatch.delenv("MQTRAIL_PASSWORD")
    monkeypatch.setattr(sys, "stdin", StringIO("another good password\n"))
    assert run(["console", "user", "password", "ann", "--password-stdin"]) == 0
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    assert run(["console", "user", "add", "bob", "--role", "viewer"]) == 2
    assert run(["console", "user", "add", "bob", "--role", "root", "--external"]) == 1
    assert run(["console", "user", "add", "bob", "--role", "viewer", "--external"]) == 0
    assert run(["console", "user", "role", "bob", "--role", "admin"]) == 0
    capsys.readouterr()
    assert run(["console", "token", "add", "bob", "ci"]) == 0
    assert re.fullmatch(r"mqt_[\w-]{43}\n", capsys.readouterr().out)
    assert run(["console", "user", "list", "--json"]) == 0
    ann, bob = json.loads(capsys.readouterr().out)
    assert (ann["roles"], ann["has_password"]) == (["viewer", "operator/orders"], True)
    assert (bob["roles"], bob["has_password"], bob["tokens"][0]["name"]) == (["admin"], False, "ci")
    assert run(["console", "user", "list"]) == 0
    assert "operator/orders" in capsys.readouterr().out
    assert run(["console", "token", "remove", "bob", "ci"]) == 0
    assert run(["console", "user", "remove", "bob"]) == 0
    assert run(["console", "user", "remove", "bob"]) == 1
    noted = [one.action for one in read_audit(tmp_path / "audit.jsonl").changes]
    assert noted == [
        *("remove-user", "remove-token", "add-token", "set-roles", "add-user", "set-password", "add-user"),
    ]
    assert (tmp_path / "console-users.json").stat().st_mode & 0o777 == 0o600


def test_an_audit_log_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit code 0 for a whole log, 1 for one that was touched or is not there."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.append("a", "asked", {"who": "ann", "action": "reset-offsets", "parameters": {"group": "CG"}})
    log.append("a", "outcome", {"target": "broker-a", "fate": "DONE"})
    log.append("a", "ended", {})
    assert run(["audit", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "1 DONE" in shown
    assert "3 lines; SHA-256 of the last: " in shown
    assert run(["audit", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"][0]["who"] == "ann"
    path.write_bytes(path.read_bytes().replace(b"ann", b"bob"))
    assert run(["audit", str(path)]) == 1
    assert "line 2: does not follow the line before" in capsys.readouterr().err
    assert run(["audit", str(tmp_path / "none")]) == 1


def test_alerts_by_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster that is down is *cannot tell*; what no channel took is in the list, and the exit code is 1."""
    monkeypatch.setenv("MQTRAIL_DATA", str(tmp_path))
    rules = tmp_path / "alerts.toml"
    rules.write_text(
        '[[rules]]\nname = "late"\nmeasure = "lag"\nabove = 1000\nchannels = ["ops"]\n'
        '[[channels]]\nname = "ops"\nformat = "slack"\nurl = "http://127.0.0.1:1/"\n'
    )
    options = ["--rules", str(rules)]
    assert run(["alerts", "run", "--once", "--namesrv", "127.0.0.1:1", *options]) == 1
    assert "channel ops: URLError" in capsys.readouterr().err
    assert run(["alerts", "list", "--open", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["rule"], one["phase"], one["value"], one["unsent"]) == ("late", "cannot tell", None, ["ops"])
    assert run(["alerts", "list"]) == 0
    assert "cannot tell" in capsys.readouterr().out
    assert run(["alerts", "test", *options]) == 1
    assert "ops: URLError" in capsys.readouterr().err
    rules.write_text("wrong")
    assert run(["alerts", "test", *options]) == 1
