"""Output of commands: peers' texts cannot control the terminal, imitate a line or break a table, in any command."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import mqtrail.cli
from mqtrail.cli import output, run
from mqtrail.client import SyncProducer
from mqtrail.net import Log, log_processors
from mqtrail.testing import embedded
from mqtrail.wire import Message

CLI = Path(mqtrail.cli.__file__).parent
EVIL = "\x1b]8;;http://evil\x07click\x1b[2J\r\u202e\u2066\u200b\u2028\x9b\x7f[red]fake[/nope]:smile:"
LINES = f"{EVIL}\nmqtrail: all is well"


def assert_harmless(text: str, *, newlines: bool = True) -> None:
    found = {one for one in text if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert found <= ({"\n"} if newlines else set()), found
    assert not [line for line in text.splitlines() if line.startswith("mqtrail: all is well")]


def written(path: Path) -> Iterator[str]:
    """Calls and names in a module that would bypass `output`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = called.rpartition(".")[2]
            if name in {"print", "echo", "secho", "echo_via_pager", "confirm", "Console", "writelines", "write"}:
                yield f"{path.name}:{node.lineno} {called}"
        if isinstance(node, ast.ImportFrom) and node.module == "rich" and "print" in {one.name for one in node.names}:
            yield f"{path.name}:{node.lineno} rich.print"


def test_no_command_writes_past_the_one_place() -> None:
    """Allowed exceptions: the confirmation that `output` escapes itself, and files of ours."""
    found = [one for path in sorted(CLI.glob("*.py")) if path.name != "output.py" for one in written(path)]
    assert [one for one in found if not one.endswith(" confirm")] == []
    assert [one.split(":")[0] for one in found] == ["operate.py"]


@dataclass(frozen=True)
class Inner:
    texts: tuple[str, ...]
    by_name: dict[str, str]


@dataclass(frozen=True)
class Answer:
    why: str
    inner: Inner
    count: int = 3


def test_a_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A name of a peer in a table that no answer's class went through, and a plain text."""
    table = Table("name", box=None)
    table.add_row("orders\nmqtrail: all is well")
    output.show(table)
    output.show("orders\nmqtrail: all is well")
    assert_harmless(capsys.readouterr().out)


def test_answers_are_drawn_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """In cells, titles, trees and styled text, markup is plain text, and line breaks in data stay inside their line."""

    def draw(answer: Answer) -> Group:
        table = Table(answer.why, title=answer.why, box=None)
        table.add_row(answer.inner.texts[0])
        table.add_row(Text(answer.inner.by_name["k"], style="red"))
        tree = Tree(answer.why)
        tree.add(Text.assemble(("why: ", "bold"), answer.why))
        return Group(table, tree, Text(answer.why, style="yellow"))

    output.show_answer(draw, Answer(LINES, Inner((LINES,), {"k": LINES})))
    output.show(draw(Answer(EVIL, Inner((EVIL,), {"k": EVIL}))))
    output.say(LINES)
    output.say_lines(LINES)
    output.warn(LINES)
    captured = capsys.readouterr()
    assert_harmless(captured.out)
    assert_harmless(captured.err)
    plain = "".join(captured.out.split())
    assert plain.count("[red]fake[/nope]:smile:") >= 9
    assert "\\x1b]8;;http://evil\\x07click" in captured.out


def test_colours_are_ours_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a terminal: the only escape sequences are those of the rendering."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    output.show(Text(EVIL, style="red"))
    captured = capsys.readouterr().out
    assert captured.startswith("\x1b[31m")
    assert_harmless(captured.replace("\x1b[31m", "").replace("\x1b[0m", ""))


def test_json_escapes_all(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json({EVIL: [LINES, "\ud800", "订单"]})
    captured = capsys.readouterr().out
    assert_harmless(captured.rstrip("\n"), newlines=False)
    assert json.loads(captured) == {EVIL: [LINES, "\ud800", "订单"]}
    assert "订单" in captured


def test_progress_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of peers are escaped between the control characters that draw the progress."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("querying the brokers") as shown:
        assert shown is not None
        shown.update(shown.task_ids[0], description="of \u202e\x9b[red]group\u2066 named so")
        shown.refresh()
    text = terminal.getvalue()
    assert "of \\u202e\\x9b[red]gro" in text
    assert not {"\u202e", "\u2066", "\x9b"} & set(text)


def test_log_lines_are_harmless() -> None:
    """Values, texts of other objects, and the message of an exception in a traceback are escaped."""
    out = io.StringIO()
    structlog.configure(processors=log_processors(colors=False), logger_factory=structlog.PrintLoggerFactory(out))
    try:
        Log(peer=LINES).warning("a.thing", name=LINES, found=[EVIL], raw=EVIL.encode())
        try:
            raise ValueError(EVIL)
        except ValueError:
            Log().exception("it.failed", topic=EVIL)
    finally:
        structlog.reset_defaults()
    text = out.getvalue()
    assert_harmless(text)
    assert "ValueError" in text
    assert text.count("[red]fake[/nope]") == 6


def test_what_python_writes_is_harmless() -> None:
    """Tracebacks of the program, of a thread and of a task that is not awaited, and records of a library's logger."""
    program = f"""
import asyncio, gc, logging, threading
from mqtrail.net import guard_stderr

def fail(kind):
    raise kind({LINES!r})

async def fail_later():
    fail(OSError)

async def forget():
    task = asyncio.create_task(fail_later())
    await asyncio.wait([task])
    del task
    gc.collect()

guard_stderr()
thread = threading.Thread(target=fail, args=(KeyError,))
thread.start()
thread.join()
asyncio.run(forget())
logging.getLogger("a.library").warning("found %s", {EVIL!r})
fail(ValueError)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    text = ended.stderr.decode()
    assert_harmless(text)
    assert ended.returncode == 1
    for kind in ("ValueError: ", "KeyError: ", "OSError: ", "found "):
        assert kind in text
    assert text.count("[red]fake[/nope]") >= 4


@pytest.mark.slow
def test_messages_of_others_are_shown_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies, keys, tags and properties are escaped in every command that shows a message, as text and as JSON."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with embedded() as running:
        namesrv = ("--namesrv", running.namesrv_address)
        evil = EVIL.replace("\u2028", "").replace("\x1b", "\x1b\u2029")  # keys are split at blanks
        key = evil.replace("\r", "").replace("\u2028", "").replace("\u2029", "")
        with SyncProducer("PG", running.namesrv_address) as producer:
            properties = {"shop": LINES, EVIL: "x"}
            sent = producer.send(Message("evil", LINES.encode(), tags=evil, keys=key, properties=properties))
        commands = [
            ("message", "print", "evil"),
            ("message", "show", sent.offset_msg_id),
            ("message", "show", sent.msg_id, "--topic", "evil"),
            ("message", "find", "evil", key, "--body"),
            ("trace", sent.msg_id),
            ("search-is-no-such-command\x1b[2J",),
            ("queue", "no\x1b[2Jcommand"),
        ]
        for words in commands:
            for json_option in ((), ("--json",)):
                shown = [*words, *namesrv, *json_option] if len(words) > 1 else [*words]
                run(shown)
                captured = capsys.readouterr()
                assert_harmless(captured.out)
                assert_harmless(captured.err)
                if words[0] == "message":
                    assert "[red]fake[/nope]" in "".join(captured.out.split()), words


def test_questions_and_lines_of_ours_are_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They quote the user's input, which may contain a name from a peer: it is escaped too."""
    evil = "\x1b]0;x\x07\u202e"
    output.warn_lines(f"found {evil}\nnext\n")
    assert capsys.readouterr().err == "found \\x1b]0;x\\x07\\u202e\nnext\n"
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda question, **more: asked.append(question))
    output.confirm(f"delete topic {evil}?")
    assert asked == ["delete topic \\x1b]0;x\\x07\\u202e?"]


def test_a_long_body_is_not_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A few KB can expand to 32 MiB of control characters, each of which is several on the terminal."""
    with embedded() as running:
        namesrv = ("--namesrv", running.namesrv_address)
        bodies = {"zeros": bytes(1 << 20), "binary": b"\xff" * (1 << 20)}
        with SyncProducer("PG", running.namesrv_address) as producer:
            for topic, body in bodies.items():
                sent = producer.send(Message(topic, body))
                for words in (
                    ("consume", topic, "--count", "1", "--from-first"),
                    ("message", "show", sent.offset_msg_id),
                ):
                    assert run([*words, *namesrv]) == 0
                    shown = capsys.readouterr().out
                    assert len(shown) < 200_000
                    assert "more" in shown
                    assert "--json" in shown
            assert run([*words, *namesrv, "--json"]) == 0
            assert len(capsys.readouterr().out) > 1 << 20


def test_a_line_stays_a_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence or row that is longer than a terminal is one line for the program behind the pipe."""
    table = Table(box=None)
    table.add_column("key")
    table.add_row("k" * 900)
    output.show(Group(Text("word " * 200 + "end"), table))
    sentence, heading, row = capsys.readouterr().out.splitlines()
    assert sentence.endswith("end")
    assert heading.strip() == "key"
    assert row.strip() == "k" * 900
