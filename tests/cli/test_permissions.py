"""Commands without permission to a file: one line that says what was found and what to do, and the right exit code."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PR_CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2
UP = ("up", "--namesrv-port", "0", "--broker-port", "0", "--data", "{tmp}/new")
LAKE = ("--lake", "{tmp}/closed")


def obey_permissions() -> None:
    """Take the right to ignore permissions from root, in the child that becomes the command."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None).prctl
        for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
            prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


RUNNER = """
import json, os, sys
import mqtrail.cli.up, mqtrail.node
from mqtrail.cli import run
for line in sys.stdin:
    words, *paths = json.loads(line)
    if not (child := os.fork()):
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdin.close()
        sys.argv[1:] = words
        code = run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Run = Callable[[list[str], Path], tuple[int, str, str]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a command line in a process of its own that obeys permissions: forked, as each start costs half a second."""
    command = [sys.executable, "-c", RUNNER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=obey_permissions
    ) as runner:

        def run(words: list[str], folder: Path) -> tuple[int, str, str]:
            assert runner.stdin is not None
            assert runner.stdout is not None
            out, err = folder / "stdout", folder / "stderr"
            runner.stdin.write(json.dumps([words, str(out), str(err)]) + "\n")
            runner.stdin.flush()
            code = int(runner.stdout.readline())
            return code, out.read_text(), err.read_text()

        yield run
        if runner.stdin is not None:
            runner.stdin.close()


@pytest.mark.parametrize(
    ("words", "path", "mode", "code"),
    [
        ((*UP[:-1], "{tmp}/closed"), "closed/", 0o000, 1),
        ((*UP[:-1], "{tmp}/closed"), "closed/", 0o500, 1),
        (UP, "new/broker-a/", 0o000, 1),
        (UP, "new/broker-a/", 0o500, 1),
        (UP, "new/broker-a/config/topics.json", 0o000, 1),
        (UP, "new/namesrv/", 0o000, 1),
        (UP, "new/lock", 0o000, 1),
        (UP, "new/mqtrail.json", 0o000, 1),
        ((*UP, "--config", "{tmp}/closed"), "closed", 0o000, 2),
        ((*UP, "--broker-conf", "{tmp}/closed"), "closed", 0o000, 2),
        ((*UP, "--tls-config", "{tmp}/closed"), "closed", 0o000, 2),
        ((*UP, "--set-file", "broker.init_user={tmp}/closed"), "closed", 0o000, 2),
        ((*UP, "--set", "broker.acl=true"), "new/broker-a/conf/plain_acl.yml", 0o000, 1),
        ((*UP, "--tls-config", "{tmp}/tls.properties"), "closed", 0o000, 1),
        (("topic", "list", "--config", "{tmp}/closed"), "closed", 0o000, 2),
        (("trace", "ID", *LAKE), "closed/", 0o000, 3),
        (("report", *LAKE), "closed/", 0o000, 3),
        (("pipeline", "run", "--namesrv", "127.0.0.1:1", "--lake", "{tmp}/closed/lake"), "closed/", 0o500, 3),
    ],
)
def test_no_permission(run: Run, tmp_path: Path, words: tuple[str, ...], path: str, mode: int, code: int) -> None:
    """The command changes no file and prints no traceback."""
    found = tmp_path / path
    found.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith("/"):
        found.mkdir()
    else:
        found.write_text('{"format": 1}' if path == "new/mqtrail.json" else "accounts: []\n")
    tls = f"tls.server.mode=permissive\ntls.server.certPath={found}\ntls.server.keyPath={found}\n"
    (tmp_path / "tls.properties").write_text(tls)
    if path.startswith("new/broker-a"):
        (tmp_path / "new" / "mqtrail.json").write_text('{"format": 1}')
    found.chmod(mode)
    try:
        exit_code, out, err = run([word.format(tmp=tmp_path) for word in words], tmp_path)
    finally:
        found.chmod(0o700)
    assert exit_code == code, err
    assert "Traceback" not in err
    if words[0] == "trace":  # it answers, and names what it could not search
        text = " ".join(out.split())
    else:
        (text,) = [line for line in err.splitlines() if line.startswith("mqtrail: ")]
        assert out == ""
    assert str(found).rstrip("/") in text
    assert "ermission" in text
    assert any(word in text for word in ("check", "run as", "choose another")), text
