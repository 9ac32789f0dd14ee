"""Events as lines on standard error, without structlog unless the application has configured it."""

import ast
import io
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

import mqtrail.client
from mqtrail.net import Log, log_processors
from mqtrail.net.log import LINES_A_WINDOW, TRACEBACK_LENGTH_MAX, VALUE_LENGTH_MAX, WINDOW_S, log_line

KEYS = {
    "work": "17",
    "took_ms": 1.5,
    "peer": "",
    "note": "a b",
    "found": ["x"],
    "none": None,
    "equal": "a=b",
    "on": True,
}
EVIL = "\x1b]0;x\x07\u202e\nfake"
EVIL_WORD = "\x1b[2J\u202e"  # without blanks, so it is not quoted


def of_structlog(level: str, event: str, keys: dict[str, object], *, colors: bool) -> str:
    out = io.StringIO()
    logger = structlog.wrap_logger(structlog.PrintLogger(out), processors=log_processors(colors=colors))
    getattr(logger, level)(event, **keys)
    return out.getvalue()


@pytest.mark.parametrize("colors", [False, True])
@pytest.mark.parametrize("level", ["info", "warning", "error", "exception"])
@pytest.mark.parametrize("keys", [{}, KEYS, {"peer": EVIL, "bytes": EVIL.encode(), "topic": EVIL_WORD}])
def test_lines_are_those_of_structlog(level: str, colors: bool, keys: dict[str, object]) -> None:
    """A reader of logs sees no difference. The first characters are the time."""
    start = len("\x1b[2m") * colors + len("2026-11-22 20:34:26")
    try:
        raise ValueError(EVIL)
    except ValueError:
        line = log_line(level, "loop.stalled", keys, colors=colors)
        assert line[start:] + "\n" == of_structlog(level, "loop.stalled", keys, colors=colors)[start:]
    assert EVIL not in line
    assert EVIL_WORD not in line


def test_the_first_event_of_a_server_imports_nothing() -> None:
    """Importing structlog and rich took 0.2 s in which the event loop waited."""
    program = (
        "import sys; from mqtrail.node import Node; from mqtrail.net import Log\n"
        "Log().warning('warm'); before = set(sys.modules)\n"
        "assert 'structlog' not in before and 'rich' not in before, 'imported at start'\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: Log(a=1).exception('loop.stalled', b='c d')\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "[error    ] loop.stalled                   a=1 b='c d'\nTraceback" in found.stderr


def test_what_the_application_configured_applies(capsys: pytest.CaptureFixture[str]) -> None:
    """The application's processors get events and keys, also of debug events."""
    log = Log(broker="b")
    with capture_logs() as found:
        structlog.configure()
        log.debug("a.detail", x=1)
    assert found == [{"event": "a.detail", "broker": "b", "x": 1, "log_level": "debug"}]
    structlog.reset_defaults()
    log.debug("dropped")
    log.info("kept")
    captured = capsys.readouterr()
    assert (captured.out, "kept" in captured.err, "dropped" in captured.err) == ("", True, False)


def test_what_peers_cause_is_written_sparsely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty lines of an event are written in ten seconds; the next one has the number omitted. Other events are not
    affected."""
    clock = [1_000.0]
    monkeypatch.setattr("mqtrail.net.log.time.monotonic", lambda: clock[0])
    log = Log(owner="a")
    with capture_logs() as lines:
        structlog.configure(processors=structlog.get_config()["processors"])
        for number in range(1_000):
            log.sparse.warning("test.flood", number=number)
        log.sparse.warning("test.other")
        clock[0] += WINDOW_S
        log.sparse.warning("test.flood", number=1_000)
        for _ in range(30):
            log.warning("test.steady")
    floods = [line for line in lines if line["event"] == "test.flood"]
    assert [line["number"] for line in floods] == [*range(LINES_A_WINDOW), 1_000]
    assert (floods[-1]["left_out"], floods[-1]["owner"], "left_out" in floods[0]) == (
        1_000 - LINES_A_WINDOW,
        "a",
        False,
    )
    assert [line["event"] for line in lines].count("test.other") == 1
    assert [line["event"] for line in lines].count("test.steady") == 30


def test_no_line_of_a_quoted_peer_looks_like_an_event() -> None:
    """The lines of an exception's text are indented, by both ways of writing."""
    fake = "2026-11-24 03:00:00 [info     ] node.stopped"
    try:
        raise ValueError(f"found\n{fake}")
    except ValueError:
        lines = log_line("exception", "core.failed", {}, colors=False).splitlines()
        lines += of_structlog("exception", "core.failed", {}, colors=False).splitlines()
    assert (lines.count(fake), sum(fake in line for line in lines)) == (0, 2)


def test_records_of_libraries_are_cut_and_sparse() -> None:
    """asyncio logs an exception of a callback as often as a peer causes it; a format may not fit its arguments."""
    program = (
        "import logging; from mqtrail.net import guard_stderr\n"
        "guard_stderr()\n"
        "for name in ('asyncio', 'uvicorn.error'):\n"
        f"    for _ in range(3 * {LINES_A_WINDOW}):\n"
        "        logging.getLogger(name).error('found %s\\n[info] %d', 'x' * 100_000, 'no number')\n"
        "logging.getLogger('quiet').info('not written')\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert len(found.stderr.splitlines()) == 2 * LINES_A_WINDOW
    assert found.stderr.count("logger=asyncio message='found %s\\\\n[info] %d'") == LINES_A_WINDOW
    assert "not written" not in found.stderr


def test_long_values_are_cut() -> None:
    """A remark of 4 MiB in each of 20 lines would fill a disk; so would an exception that quotes it."""
    long = "x" * (4 << 20)
    try:
        raise ValueError(long)
    except ValueError:
        for line in (
            log_line("exception", "client.failed", {"error": long}, colors=False),
            of_structlog("exception", "client.failed", {"error": long}, colors=False),
        ):
            assert f"({len(long)} characters)" in line
            assert len(line) < VALUE_LENGTH_MAX + TRACEBACK_LENGTH_MAX + 500


OF_OURS_ALONE = {
    "trace.spool_unusable", "trace.spool_damaged", "consumer.offsets_unreadable",  # files of this machine
    "client.task_failed", "client.periodic_failed", "client.endpoint_failed",  # at intervals
    "consumer.listener_failed", "consumer.allocation_failed", "consumer.subscription_refused",  # the application's
    "consumer.closed_over_handlers",  # once
    "client.name_servers",  # at intervals
}  # fmt: skip
LOGGED = {"log.info", "log.warning", "log.error", "log.exception"}


def test_what_servers_and_senders_cause_in_clients_is_written_sparsely() -> None:
    """This holds for every line of the client except those that no peer can repeat at will."""
    found = set()
    for path in sorted((Path(mqtrail.client.__file__).parent).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in LOGGED:
                event = ast.unparse(call.args[0]).strip("'")
                if path.name != "local_offsets.py" or event != "consumer.commit_failed":
                    found.add(event)
    assert found == OF_OURS_ALONE
