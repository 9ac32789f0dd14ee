"""The audit log: its lines are chained, and what was changed, removed or cut off is found."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from mqtrail.answers.changes import AuditFailed, AuditLog, read_audit


def _log(path: Path, count: int = 3) -> AuditLog:
    log = AuditLog(path)
    for number in range(count):
        log.append(f"c{number}", "asked", {"who": "ann", "action": "reset-offsets", "parameters": {"group": "CG"}})
        log.append(f"c{number}", "outcome", {"target": "broker-a", "fate": "DONE", "detail": "", "place": ""})
        log.append(f"c{number}", "ended", {"error": ""})
    return log


def test_changes_are_read_back_the_latest_first(tmp_path: Path) -> None:
    """Each with who asked, its outcomes and its end; the digest is that of the last line."""
    path = tmp_path / "new folder" / "audit.jsonl"
    _log(path)
    found = read_audit(path, 2)
    assert [one.change_id for one in found.changes] == ["c2", "c1"]
    assert (found.line_count, found.problems) == (9, ())
    assert [one["target"] for one in found.changes[0].outcomes] == ["broker-a"]
    assert found.changes[0].who == "ann"
    assert found.changes[0].ended_at
    AuditLog(path).append("c9", "asked", {})
    line = json.loads(path.read_text().splitlines()[-1])
    assert (line["previous"], line["seq"]) == (found.last_digest, 10)
    assert os.stat(path).st_mode & 0o077 == 0


@pytest.mark.parametrize("act", ["change", "remove", "insert", "swap"])
def test_a_line_that_was_touched_is_found(tmp_path: Path, act: str) -> None:
    """The line after it does not follow."""
    path = tmp_path / "audit.jsonl"
    _log(path)
    lines = path.read_bytes().splitlines(keepends=True)
    match act:
        case "change":
            lines[4] = lines[4].replace(b"broker-a", b"broker-b")
        case "remove":
            del lines[4]
        case "insert":
            lines.insert(4, lines[4])
        case "swap":
            lines[4], lines[5] = lines[5], lines[4]
    path.write_bytes(b"".join(lines))
    found = read_audit(path)
    assert found.problems
    assert all("does not follow the line before" in problem for problem in found.problems)


def test_a_change_that_was_cut_off(tmp_path: Path) -> None:
    """A process that dies within a line leaves a change without an end; the next line follows the torn one."""
    path = tmp_path / "audit.jsonl"
    log = _log(path, 1)
    log.append("cut", "asked", {"who": "bob"})
    with path.open("ab") as file:
        file.write(b'{"seq": 5, "previ')
    log.append("later", "asked", {})
    found = read_audit(path)
    assert [one.change_id for one in found.changes] == ["later", "cut", "c0"]
    assert [bool(one.ended_at) for one in found.changes] == [False, False, True]
    assert found.problems == (
        "line 5: found no JSON object: a process ended while it wrote this line, or the line was changed",
    )


def _append(path: Path, name: str) -> None:
    log = AuditLog(path)
    for number in range(50):
        log.append(f"{name}-{number}", "asked", {}, is_synced=False)


@pytest.mark.slow
def test_processes_share_a_log(tmp_path: Path) -> None:
    """Their lines are one chain."""
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(path, name)) for name in ("a", "b", "c")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = read_audit(path)
    assert (found.line_count, found.problems) == (150, ())


def test_long_lines(tmp_path: Path) -> None:
    """The line before is found also if it is longer than what is read at once."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(3):
        log.append(f"c{number}", "asked", {"steps": [{"target": "x" * 200_000}]})
    assert read_audit(path).problems == ()


def test_what_comes_from_outside_stays_on_its_line(tmp_path: Path) -> None:
    """Names with newlines, escapes of terminals and lone surrogates are one line of JSON."""
    path = tmp_path / "audit.jsonl"
    name = 'a"\n\x1b[2J\u202e\ud800'
    AuditLog(path).append("c", "asked", {"who": name})
    assert len(path.read_bytes().splitlines()) == 1
    assert b"\x1b" not in path.read_bytes()
    assert read_audit(path).changes[0].who == name


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """It is an error when the console starts, and before each change."""
    with pytest.raises(AuditFailed, match="cannot write the audit log"):
        AuditLog(tmp_path)
    log = AuditLog(tmp_path / "audit.jsonl")
    log.path.unlink()
    log.path.mkdir()
    with pytest.raises(AuditFailed, match="cannot write the audit log"):
        log.append("c", "asked", {})
    with pytest.raises(AuditFailed, match="cannot read the audit log"):
        read_audit(log.path)
