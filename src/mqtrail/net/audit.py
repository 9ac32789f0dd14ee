"""The audit log of changes: a file of JSON lines to which lines are only added.

    {"seq": 7, "previous": SHA-256 of the line before, "at": UTC, "change": ID, "event": "asked", …}

A change has a line `asked` (who, action, parameters, parts with the value before and after) before its first request,
an `outcome` for each part, and `ended`. A change without `ended` was cut off: what came of it is unknown. What is over
at once, such as a log-in, is one line `noted`.

The file is written with O_APPEND alone. That keeps this program from rewriting it; it
does not keep others from it who may write the file. Each line has the digest of the line before, so a line that was
changed, removed or inserted is found by `read_audit`, unless all lines after it were recomputed. Against that, keep the
digest of the last line elsewhere, or have the kernel allow appending alone: `chattr +a FILE`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from mqtrail.wire import MQError, visible_json

AUDIT_FILE: Final = "audit.jsonl"  # in a data folder
TAIL_SIZE: Final = 1 << 16  # bytes read at once to find the last line
ZERO: Final = "0" * 64  # `previous` of the first line


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asked for a change. name: '' without accounts. address: of the peer. door: page, api, command or http."""

    name: str
    address: str
    door: str


class AuditFailed(MQError):
    """The audit log cannot be written, so nothing is changed; or it cannot be read."""


class AuditLog:
    """Adds lines to the file. Thread safe, also with other processes that use this class on the file."""

    def __init__(self, path: Path, cluster: str = "") -> None:
        """cluster: name of the cluster in a console with several, for each line. AuditFailed."""
        self.path = path
        self._cluster = cluster
        self._adding = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(self._open())
        except OSError as error:
            raise AuditFailed(f"cannot write the audit log {str(path)!r}: {error.strerror}") from None

    def append(self, change_id: str, event: str, fields: Mapping[str, Any], *, is_synced: bool = True) -> None:
        """Add a line. is_synced: return when it is durable. AuditFailed."""
        try:
            with self._adding:
                self._append(change_id, event, fields, is_synced)
        except OSError as error:
            raise AuditFailed(f"cannot write the audit log {str(self.path)!r}: {error.strerror}") from None

    def note(self, actor: Actor, action: str, parameters: Mapping[str, Any], error: str = "") -> None:
        """Add a line for what is over at once, such as a log-in. error: why it was refused. AuditFailed."""
        who = {"who": actor.name, "address": actor.address, "door": actor.door}
        self.append(uuid4().hex, "noted", {**who, "action": action, "parameters": dict(parameters), "error": error})

    def last(self, count_max: int) -> AuditAnswer:
        """Return the last changes, and where the lines are broken. AuditFailed."""
        return read_audit(self.path, count_max)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _append(self, change_id: str, event: str, fields: Mapping[str, Any], is_synced: bool) -> None:
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_line(self.path)
            head = {
                "seq": _seq_of(last) + 1,
                "previous": _digest(last),
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "change": change_id,
                "event": event,
                **({"cluster": self._cluster} if self._cluster else {}),
            }
            text = visible_json(json.dumps({**head, **fields}, ensure_ascii=False, default=str))
            mend = b"\n" if last and not last.endswith(b"\n") else b""  # a process died within its line
            line = mend + text.encode("utf-8", "backslashreplace") + b"\n"
            if os.write(file, line) != len(line):
                raise OSError(28, "the disk took a part of a line")
            if is_synced:
                os.fsync(file)
        finally:
            os.close(file)


def _last_line(path: Path) -> bytes:
    """Return the last line with its newline, if it has one; b"" of an empty file."""
    with path.open("rb") as file:
        size = at = file.seek(0, os.SEEK_END)
        while at:
            at = max(0, at - TAIL_SIZE)
            file.seek(at)
            found = file.read(size - at)
            start = found.rfind(b"\n", 0, len(found) - 1)
            if start >= 0:
                return found[start + 1 :]
        file.seek(0)
        return file.read()


def _seq_of(line: bytes) -> int:
    try:
        found = json.loads(line)["seq"]
    except (ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) else 0


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.removesuffix(b"\n")).hexdigest() if line else ZERO


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """One change of the log. ended_at: '' if it was cut off, or still runs.

    cluster: its name in a console with several; '' in one without.
    """

    change_id: str
    asked_at: str
    ended_at: str
    who: str
    address: str
    door: str
    action: str
    parameters: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    outcomes: tuple[Mapping[str, Any], ...]
    error: str
    cluster: str


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """The last changes of an audit log, the latest first. problems: where the chain of its lines is broken.

    last_digest: of the last line: keep it elsewhere to prove later that no line up to it was changed.
    """

    path: str
    line_count: int
    last_digest: str
    problems: tuple[str, ...]
    changes: tuple[AuditedChange, ...]


def read_audit(path: Path, count_max: int = 100) -> AuditAnswer:
    """Check every line of a log, and return its last changes. AuditFailed: it cannot be read."""
    problems: list[str] = []
    found: deque[dict[str, Any]] = deque(maxlen=count_max)
    known: dict[str, dict[str, Any]] = {}
    count, last = 0, b""
    try:
        for line, value in _checked(path, problems):
            count, last = count + 1, line
            _add(value, found, known)
    except OSError as error:
        raise AuditFailed(f"cannot read the audit log {str(path)!r}: {error.strerror}") from None
    changes = tuple(AuditedChange(**_whole(one)) for one in reversed(found))
    return AuditAnswer(str(path), count, _digest(last), tuple(problems), changes)


def _checked(path: Path, problems: list[str]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield bytes and value of each line; note those that do not follow the line before."""
    previous, seq = b"", 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                problems.append(
                    f"line {number}: found no JSON object: a process ended while it wrote this line, or the line was "
                    "changed"
                )
                value = {}
            elif value.get("previous") != _digest(previous) or value.get("seq") != seq + 1:
                problems.append(
                    f"line {number}: does not follow the line before: a line was changed, removed or put in"
                )
            previous, seq = line, _seq_of(line)
            yield line, value


def _add(line: dict[str, Any], found: deque[dict[str, Any]], known: dict[str, dict[str, Any]]) -> None:
    change_id = line.get("change")
    if not isinstance(change_id, str):
        return
    if line.get("event") in ("asked", "noted") and len(found) == found.maxlen:
        known.pop(found[0]["change"], None)
    match line.get("event"):
        case "asked":
            known[change_id] = {**line, "outcomes": []}
            found.append(known[change_id])
        case "noted":
            found.append({**line, "outcomes": [], "ended": line.get("at")})
        case "outcome" if change_id in known:
            known[change_id]["outcomes"].append(
                {name: line.get(name) for name in ("target", "fate", "detail", "place")}
            )
        case "ended" if change_id in known:
            known[change_id] |= {"ended": line.get("at"), "error": line.get("error")}


def _whole(one: Mapping[str, Any]) -> dict[str, Any]:
    def text(name: str) -> str:
        return str(one.get(name) or "")

    steps, parameters = one.get("steps"), one.get("parameters")
    return {
        "change_id": text("change"),
        "asked_at": text("at"),
        "ended_at": text("ended"),
        **{name: text(name) for name in ("who", "address", "door", "action", "error", "cluster")},
        "parameters": parameters if isinstance(parameters, dict) else {},
        "steps": tuple(step for step in steps if isinstance(step, dict)) if isinstance(steps, list) else (),
        "outcomes": tuple(one["outcomes"]),
    }
