"""Backfills: requests to read what the pipeline of a lake left out, as small files that the lake's writer works on.

    <lake>/_backfill/<id>.json           the request: by `mqtrail pipeline backfill`
    <lake>/_backfill/<id>.cancel         by `--cancel`: the writer ends it after the current piece
    <lake>/_backfill/<id>.state.json     how far it is: by the writer, after each piece

A file is written whole. None of them counts for what was read: the position in the notes of the ingest does
(`positions`). A request that is read again after a crash continues with what is still unread.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from mqtrail.clock import now_ms
from mqtrail.lake import LakePath, lake_errors, write_whole
from mqtrail.wire import MQError

FOLDER: Final = "_backfill"
ENDED_MAX: Final = 50  # ended backfills that the writer keeps the files of
OPEN_MAX: Final = 100  # backfills that wait or run
WAITING, RUNNING, DONE, CANCELLED = "waiting", "running", "done", "cancelled"
ENDED: Final = (DONE, CANCELLED)
_ID: Final = re.compile(r"[0-9a-f]{8}")
_REQUEST, _CANCEL, _STATE = ".json", ".cancel", ".state.json"


class BackfillUnknown(MQError):
    """There is no such backfill, or no more may wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A request to read messages stored in [from_ms, to_ms], and how far it is. Times are epoch ms.

    cluster: its name in the lake; '': the one that is read when the request is worked on.
    """

    id: str
    from_ms: int
    to_ms: int
    requested_ms: int
    cluster: str = ""
    state: str = WAITING
    read: int = 0  # messages
    gaps: int = 0  # ranges that the brokers no longer had
    left: int | None = None  # messages; None: not known yet
    updated_ms: int | None = None
    problem: str = ""  # why it does not go on

    @property
    def is_open(self) -> bool:
        """Whether there may be something left to do."""
        return self.state not in ENDED


class BackfillFiles:
    """The backfills of one lake. Any process may ask for and cancel them; the lake's writer notes progress."""

    def __init__(self, lake: LakePath) -> None:
        self._folder = lake / FOLDER
        self._ended: dict[str, Backfill] = {}  # they do not change any more

    def add(self, from_ms: int, to_ms: int, cluster: str = "") -> Backfill:
        """Ask for a backfill; return an open one of equal times and cluster, if there is one.

        LakeError, BackfillUnknown.
        """
        waiting = [one for one in self.all() if one.is_open]
        for one in waiting:
            if (one.from_ms, one.to_ms, one.cluster) == (from_ms, to_ms, cluster):
                return one
        if len(waiting) >= OPEN_MAX:
            raise BackfillUnknown(f"found {len(waiting)} open backfills, expected fewer than {OPEN_MAX}: cancel some")
        made = Backfill(id=uuid4().hex[:8], from_ms=from_ms, to_ms=to_ms, requested_ms=now_ms(), cluster=cluster)
        names = ("id", "from_ms", "to_ms", "requested_ms", "cluster")
        self._write(made.id + _REQUEST, {name: getattr(made, name) for name in names})
        return made

    def cancel(self, backfill_id: str) -> Backfill:
        """Ask to end a backfill; what it has read stays. BackfillUnknown, LakeError."""
        found = self.one(backfill_id)
        if found.is_open:
            self._write(found.id + _CANCEL, {})
        return found

    def one(self, backfill_id: str) -> Backfill:
        """A backfill by its id. BackfillUnknown."""
        for found in self.all():
            if found.id == backfill_id:
                return found
        raise BackfillUnknown(
            f"found no backfill {backfill_id!r}, expected one that `mqtrail pipeline status` lists, of this lake"
        )

    def all(self) -> list[Backfill]:
        """All backfills, in the order in which they were asked for. Files that hold none are left out."""
        with lake_errors(self._folder):
            names = {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()
        ids = {name.removesuffix(_REQUEST) for name in names if _ID.fullmatch(name.removesuffix(_REQUEST))}
        found = [one for one in (self._ended.get(each) or self._read(each) for each in ids) if one]
        self._ended = {one.id: one for one in found if not one.is_open}
        return sorted(found, key=lambda one: (one.requested_ms, one.id))

    def is_cancelled(self, backfill_id: str) -> bool:
        """Whether `cancel` was asked for."""
        with lake_errors(self._folder):
            return (self._folder / (backfill_id + _CANCEL)).is_file()

    def note(self, backfill: Backfill) -> None:
        """Note how far a backfill is. For the lake's writer. LakeError."""
        names = ("state", "read", "gaps", "left", "problem")
        self._write(backfill.id + _STATE, {name: getattr(backfill, name) for name in names} | {"updated_ms": now_ms()})

    def tidy(self) -> None:
        """Delete the files of the oldest ended backfills beyond ENDED_MAX. For the lake's writer."""
        ended = [one for one in self.all() if not one.is_open]
        with lake_errors(self._folder):
            for one in ended[: max(len(ended) - ENDED_MAX, 0)]:
                for suffix in (_REQUEST, _CANCEL, _STATE):
                    (self._folder / (one.id + suffix)).unlink(missing_ok=True)

    def _read(self, backfill_id: str) -> Backfill | None:
        request = self._values(backfill_id + _REQUEST)
        state = self._values(backfill_id + _STATE)
        names = {each.name for each in dataclasses.fields(Backfill)}
        values = {name: value for name, value in {**state, **request}.items() if name in names}
        try:
            found = Backfill(**values)
        except TypeError:  # a request that lacks something
            return None
        numbers = (found.from_ms, found.to_ms, found.requested_ms, found.read, found.gaps)
        is_whole = (
            found.id == backfill_id and type(found.cluster) is str and all(type(number) is int for number in numbers)
        )
        return found if is_whole else None

    def _values(self, name: str) -> dict[str, Any]:
        with lake_errors(self._folder):
            try:
                values = json.loads((self._folder / name).read_bytes())
            except (FileNotFoundError, ValueError, RecursionError):
                return {}
        return values if isinstance(values, dict) else {}

    def _write(self, name: str, values: dict[str, Any]) -> None:
        with lake_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / name, json.dumps(values).encode())


def shown(backfills: list[Backfill]) -> Iterator[str]:
    """A sentence for each backfill."""
    for one in backfills:
        left = "" if one.left is None else f", {one.left} left"
        problem = f"; {one.problem}" if one.problem else ""
        of = f" of cluster {one.cluster}" if one.cluster else ""
        yield f"backfill {one.id}{of} {one.state}: {one.read} messages read, {one.gaps} gaps{left}{problem}"
