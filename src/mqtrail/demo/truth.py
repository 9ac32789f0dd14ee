"""What really happened, noted outside the trace: by the application around its sends, by its handlers, by the injector.

Each process appends JSON lines to a file of its own; the scorer alone reads them, never the pipeline. A message goes by
its first key (`order-000123.created`), the application's own name for it, since ids are the client's business.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self


class SendOutcome(StrEnum):
    """How a send ended as the application saw it."""

    OK = "OK"  # acknowledged
    REFUSED = "REFUSED"  # every attempt answered by an error, or never left
    UNCERTAIN = "UNCERTAIN"  # no answer to an attempt that may have arrived
    ONEWAY = "ONEWAY"  # no answer is asked for


class HandlerResult(StrEnum):
    """What a handler did with a message."""

    SUCCESS = "SUCCESS"
    LATER = "LATER"  # asked for another delivery
    DEAD = "DEAD"  # asked for the dead-letter queue at once
    ERROR = "ERROR"  # raised


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One send of the application, noted when it returned."""

    kind: ClassVar[str] = "sent"
    key: str
    topic: str
    tag: str
    outcome: SendOutcome
    attempts: int
    acknowledged_ms: int  # how long the application waited for the acknowledgement, 0 without one
    traced: bool
    due_ms: int = 0  # when a delayed message is due, 0 for others
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingStarted:
    """A handler was given a message."""

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
    """Something the injector did to brokers, clients or the trace."""

    kind: ClassVar[str] = "fault"
    name: str
    at_ms: int
    detail: str
    keys: tuple[str, ...] = ()  # the messages it is known to have hit


Note = Sent | HandlingStarted | HandlingEnded | Fault
_KINDS: dict[str, type[Sent] | type[HandlingStarted] | type[HandlingEnded] | type[Fault]] = {
    note.kind: note for note in (Sent, HandlingStarted, HandlingEnded, Fault)
}

_READ: dict[str, Callable[[Any], object]] = {"outcome": SendOutcome, "result": HandlerResult, "keys": tuple}


def now_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


class TruthLog:
    """Appends notes to `<folder>/truth-<pid>.jsonl`, each written through to the system at once."""

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
    """Yield every note of every process, each file in its order. A line torn by kill -9 ends its file."""
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
