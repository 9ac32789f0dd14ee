"""Results of the old and of the new consumers, each in files of its process, and their comparison by key.

    {"k": "order-7", "d": "5f2c…", "t": 1764311541000, "r": "{\\"total\\": 5}"}

A line says that the handler of the message k came to a result with the digest d (SHA-256 of its JSON, half of it). r:
the beginning of the result, for people. The comparison is that of topics (comparing.py), with results in place of
bodies: bounded memory, on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from mqtrail.clock import now_ms
from mqtrail.net import Log

from .comparing import READ_COUNT, Comparison, Difference, KeyJudge, KeySorter, Row, sorted_rows
from .copies import TeeSide
from .model import MigrateError
from .state import RESULTS, save_json

log = Log()

FILE_SIZE_MAX: Final = 1024 * 1024 * 1024  # bytes of results of a process; further ones are counted, not kept
TEXT_LENGTH: Final = 200  # characters of a result in its line
FULL: Final = "full"  # field of the line after which results are not kept


class ResultLog:
    """Keeps results of a handler in a file of this process. Thread safe. Use it with `with`, or `close` it.

    kill -9 of the process loses none that was added; a power cut may. text_length: characters of a result to keep for
    people, 0: only its digest.
    """

    def __init__(self, folder: Path, side: TeeSide, *, text_length: int = TEXT_LENGTH) -> None:
        """OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"results-{side}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
        self._text_length = text_length
        self._lock = threading.Lock()
        self._is_full = False
        self._stack = ExitStack()
        self.path.touch(0o600, exist_ok=False)
        self._file: FileIO | None = self._stack.enter_context(self.path.open("ab", buffering=0))
        self._size = 0
        self.lost_count = 0

    def add(self, key: str, result: object, *, time_ms: int | None = None) -> bool:
        """Keep the result for a key: bytes, or what JSON can have. Return whether it is kept; if not, it is counted.

        key: identifies the message on both sides, for example its event id. time_ms: of the message, epoch ms; None:
        now. A result that JSON cannot have: TypeError, ValueError.
        """
        data = result if isinstance(result, bytes) else json.dumps(result, sort_keys=True).encode()
        line = {
            "k": key,
            "d": hashlib.sha256(data).hexdigest()[:32],
            "t": now_ms() if time_ms is None else time_ms,
            "r": data.decode("utf-8", "replace")[: self._text_length],
        }
        return self._write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Make the file durable, and close it. OSError."""
        with self._lock:
            if self._file is not None:
                os.fsync(self._file.fileno())
                self._file = None
                self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write(self, line: bytes) -> bool:
        with self._lock:
            try:
                if self._file is None:
                    raise OSError("found a closed log, expected an open one")
                if self._is_full or self._size + len(line) > FILE_SIZE_MAX:
                    if not self._is_full:
                        self._is_full = True
                        self._file.write(json.dumps({FULL: now_ms()}).encode() + b"\n")
                    raise OSError(f"found {self._size} bytes, expected at most {FILE_SIZE_MAX}")
                if (written := self._file.write(line)) != len(line):
                    self._file.write(b"\n")  # the next one begins a line
                    raise OSError(f"found {written} of {len(line)} bytes written")
                self._size += len(line)
                return True
            except OSError as error:
                self.lost_count += 1
                log.sparse.error("results.lost", file=str(self.path), error=str(error), count=self.lost_count)
                return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRange:
    """What to compare. since_ms, until_ms: of the messages' times. examples, accepted: as `CompareSides` has them.

    grace_ms: results of one side alone that are younger, or so near to the ends of the range, may have their other side
    still to come.
    """

    folder: Path
    since_ms: int | None = None
    until_ms: int | None = None
    grace_ms: int = 30_000
    examples: int = 8
    accepted: frozenset[str] = frozenset()


class _ResultJudge(KeyJudge):
    """Judges results: one that a side has twice is double, whichever side it is."""

    def _by_body(self, key: bytes, left: list[Row], extra: list[Row]) -> list[tuple[Row, Row]]:
        pairs = super()._by_body(key, left, extra)
        paired = {record.digest for record, _ in pairs}
        for row in left:
            if row.digest in paired:
                self._note(Difference.DOUBLE, key, row.shown)
        left[:] = [row for row in left if row.digest not in paired]
        return pairs


def compare_results(config: ResultRange) -> Comparison:
    """Compare the results of both sides by key, and save what was found, for the gate.

    MigrateError: a side has none. OSError.
    """
    found = Comparison("results of kafka", "results of rocketmq", since_ms=config.since_ms, until_ms=config.until_ms)
    found.at_ms = now_ms()
    found.accepted = sorted(config.accepted)
    lanes = count()
    with sorted_rows() as sorter:
        for number, side in enumerate((TeeSide.KAFKA, TeeSide.ROCKETMQ)):
            files = result_files(config.folder, side)
            if not files:
                raise MigrateError(
                    f"found no results of {side} in {str(config.folder)!r}, expected files of "
                    f"`mqtrail.migrate.ResultLog`: let the handlers of that side record theirs, or pass --folder"
                )
            rows = sum(_read(path, number, config, sorter, found, lanes) for path in files)
            if number:
                found.messages = rows
            else:
                found.records = rows
        _ResultJudge(found, examples=config.examples).judge_all(sorter)
    save_json(config.folder / RESULTS, asdict(found))
    return found


def result_files(folder: Path, side: TeeSide | None = None) -> list[Path]:
    """Return the files of results of a side; None: of both. OSError."""
    return sorted(folder.glob(f"results-{side or '*'}-*.jsonl"))


def _read(
    path: Path, side: int, config: ResultRange, sorter: KeySorter, found: Comparison, lanes: Iterator[int]
) -> int:
    """Read a file into the sorter; return how many results of the range it has."""
    total, rows = 0, list[Row]()
    for number, fields in _lines(path):
        if fields is None or FULL in fields:
            why = f"{path.name}: " + ("lines that cannot be read" if fields is None else "full, later results are lost")
            found.gaps[why] = found.gaps.get(why, 0) + 1
            continue
        is_pending = _is_pending(config, int(fields["t"]), found.at_ms)
        if is_pending is None:
            continue
        total += 1
        digest, shown = bytes.fromhex(fields["d"]), f"{path.name}:{number} {fields['r']}"
        lane = next(lanes)  # of its own: results of different messages have no order
        place = "" if side else str(lane)  # only a row of the first side has one
        key, time_ms = str(fields["k"]).encode(), int(fields["t"])
        rows.append(Row(key, 1, side, lane, lane, place, shown, digest, time_ms, is_pending))
        if len(rows) >= READ_COUNT:
            sorter.add(rows)
            rows = []
    sorter.add(rows)
    return total


def _is_pending(config: ResultRange, time_ms: int, now: int) -> int | None:
    """Return whether a result may lack its other side; None: it is outside of the range."""
    since_ms, until_ms, grace_ms = config.since_ms, config.until_ms, config.grace_ms
    if since_ms is not None and time_ms < since_ms + grace_ms:
        return None if time_ms < since_ms - grace_ms else 1
    if until_ms is not None and time_ms >= until_ms - grace_ms:
        return None if time_ms >= until_ms + grace_ms else 1
    return int(time_ms > now - grace_ms)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the whole lines of a file with their numbers; None: one that is damaged."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # a process writes it, or was killed there
            try:
                fields = json.loads(line)
                if FULL not in fields:
                    bytes.fromhex(fields["d"]), int(fields["t"]), fields["k"], fields["r"]
                yield number, fields
            except (ValueError, TypeError, LookupError):
                yield number, None
