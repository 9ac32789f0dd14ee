"""Notes of what really happened, independent of the trace: by the application, its handlers and the injector.

Each process appends JSON lines to its own file. Only the scorer reads them, never the pipeline. A message is identified
by its first key (`order-000123.created`), which the application chooses; the client chooses message ids.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from mqtrail.clock import now_ms


class SeenOutcome(StrEnum):
    """The result of a send, as the application sees it."""

    OK = "OK"  # acknowledged
    REFUSED = "REFUSED"  # every attempt was answered with an error or never sent
    UNCERTAIN = "UNCERTAIN"  # an attempt may have arrived, but got no reply
    ONEWAY = "ONEWAY"  # no reply was requested


class HandlerResult(StrEnum):
    """The result of a handling."""

    SUCCESS = "SUCCESS"
    LATER = "LATER"  # requested redelivery
    DEAD = "DEAD"  # sent it to the dead-letter queue
    ERROR = "ERROR"  # raised


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One send of the application, noted when it returned."""

    kind: ClassVar[str] = "sent"
    key: str
    topic: str
    tag: str
    outcome: SeenOutcome
    attempts: int
    acknowledged_ms: int  # how long the application waited for the acknowledgement, 0 without one
    traced: bool
    due_ms: int = 0  # when a delayed message is due, 0 for others
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingStarted:
    """A handler received a message."""

    kind: ClassVar[str] = "started"
    key: str
    group: str
    number: int  # of this handling in its process
    process: int
    at_ms: int
    retry: int  # reconsumeTimes of the delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingEnded:
    """A handler returned or raised."""

    kind: ClassVar[str] = "ended"
    number: int
    process: int
    result: HandlerResult
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that the injector caused in brokers, clients or the trace."""

    kind: ClassVar[str] = "fault"
    name: str
    at_ms: int
    detail: str
    keys: tuple[str, ...] = ()  # the messages known to be affected


Note = Sent | HandlingStarted | HandlingEnded | Fault
_KINDS: dict[str, type[Sent] | type[HandlingStarted] | type[HandlingEnded] | type[Fault]] = {
    note.kind: note for note in (Sent, HandlingStarted, HandlingEnded, Fault)
}

_READ: dict[str, Callable[[Any], object]] = {"outcome": SeenOutcome, "result": HandlerResult, "keys": tuple}


class TruthLog:
    """Appends notes to `<folder>/truth-<pid>.jsonl`, each in one write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"truth-{os.getpid()}.jsonl").open("a", buffering=1, encoding="utf-8")
        self._handlings = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, note: Note) -> None:
        """Append one note."""
        self._file.write(json.dumps({"kind": note.kind, **asdict(note)}, separators=(",", ":")) + "\n")

    def start(self, key: str, group: str, retry: int) -> int:
        """Note that a handler begins; return the handling's number for `end`."""
        self._handlings += 1
        number = self._handlings
        self.add(HandlingStarted(key=key, group=group, number=number, process=os.getpid(), at_ms=now_ms(), retry=retry))
        return number

    def end(self, number: int, result: HandlerResult, took_ms: float) -> None:
        """Note how handling `number` ended, and after how long."""
        self.add(HandlingEnded(number=number, process=os.getpid(), result=result, took_ms=round(took_ms, 3)))


def read_truth(folder: Path) -> Iterator[Note]:
    """Yield all notes of all processes, file by file. A line truncated by kill -9 ends its file."""
    for path in sorted(folder.glob("truth-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                fields = json.loads(line)
            except json.JSONDecodeError:
                break
            note = _KINDS[fields.pop("kind")]
            for name, read in _READ.items():
                if name in fields:
                    fields[name] = read(fields[name])
            yield note(**fields)
