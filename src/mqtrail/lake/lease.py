"""The write lock of a lake in an object store: a chain of objects, of which each holder creates the next one.

    <lake>/_lease/<number>.json     {"pid": 4711, "host": "a", "since": "2026-11-23T02:40:00+00:00", "token": …}

The object with the largest number is the holder's. To take the lock is to create the next number, by a conditional
put; to renew it, every RENEW_MS, is the same. So of a holder and a process that takes its lock exactly one succeeds,
whatever their clocks are. At the end the holder empties its object. After a crash the object gets older than LEASE_MS
by the clock of the store; then anyone may create the next number. Only objects below the largest number are deleted, so
a process that was suspended and tries to create a number again finds a larger one.

A holder counts its lock as its own for HELD_MS after it began to renew it, by its own clock, and commits nothing later.
A commit that it sent before can still arrive. It is harmless: each batch names its app and number (Delta's app
transactions), so of two commits of one batch the later one is refused; and writers give their files names of their own
(`places.own_folder`).
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final, NoReturn
from uuid import uuid4

from .errors import LakeBusy, LakeLost, LakeUnreadable, LakeUnsupported
from .objects import ObjectPath
from .storeerrors import ObjectStoreError

FOLDER: Final = "_lease"
LEASE_MS: Final = 30_000
HELD_MS: Final = 20_000
RENEW_MS: Final = 10_000
LOOKS_MAX: Final = 3  # at a lock that others renew and take at the same moment
JOIN_S_MAX: Final = 5.0  # how long the end waits for a renewal that is under way
_NAME: Final = re.compile(r"(\d{12})\.json")
_RELEASED: Final = b"{}"


class Lease:
    """A lock that is held. See lock.WriteLock, which takes it."""

    def __init__(self, folder: ObjectPath, holder: dict[str, object]) -> None:
        """Take it. LakeBusy, LakeUnsupported, ObjectStoreError."""
        self._folder = folder
        self._text = json.dumps({**holder, "token": uuid4().hex}).encode()
        self._guard = Lock()  # one renewal at a time
        self._ended = Event()
        self._lost = ""
        self._renewed_s = 0.0
        self._own = self._take()
        self._thread = Thread(target=self._renew_again, name="mqtrail-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """LakeLost: the lock is not held any more. LakeUnreadable: the store did not answer."""
        if not self._is_held():
            try:
                self.renew()
            except ObjectStoreError as error:
                raise LakeUnreadable(str(error)) from None
        if self._lost:
            raise LakeLost(
                f"{self._folder.parent}: {self._lost}, expected to be the only writer of this lake: stop the other "
                "one, and start this command again"
            )
        if not self._is_held():
            raise LakeUnreadable(
                f"{self._folder.parent}: found no way to renew its lock within {HELD_MS // 1000} s, expected an object "
                "store that answers: try again later"
            )

    def renew(self) -> None:
        """Create the next number, unless the lock is lost. ObjectStoreError."""
        with self._guard:
            if self._lost:
                return
            if (following := self._create(_number(self._own) + 1)) is not None:
                self._own = following
            elif (newest := self._newest()) != self._own:
                text = b""
                with suppress(FileNotFoundError):  # renewed since
                    text = newest.read_bytes() if newest is not None else text
                self._lost = f"found {named_holder(text)} writing to this lake"

    def release(self) -> None:
        """Release the lock. If that fails, it expires."""
        self._ended.set()
        self._thread.join(JOIN_S_MAX)
        if not self._lost:
            with suppress(OSError):
                self._own.write_bytes(_RELEASED)

    def _is_held(self) -> bool:
        return not self._lost and _uptime_s() - self._renewed_s <= HELD_MS / 1000

    def _take(self) -> ObjectPath:
        text = b""
        for _ in range(LOOKS_MAX):
            newest = self._newest()
            with suppress(FileNotFoundError):  # its holder has renewed it since
                text = newest.read_bytes() if newest is not None else _RELEASED
                if newest is not None and text != _RELEASED and (left_ms := self._left_ms(newest)) > 0:
                    self._refuse(text, left_ms)
                if (own := self._create(_number(newest) + 1)) is not None:
                    self._check_conditions(own)
                    return own
        return self._refuse(text, LEASE_MS)

    def _create(self, number: int) -> ObjectPath | None:
        """Create an object of the chain, and delete those below it. None: others were faster."""
        begun_s = _uptime_s()
        own = self._folder / f"{number:012d}.json"
        try:
            own.create(self._text)
        except FileExistsError:
            with suppress(FileNotFoundError):
                if own.read_bytes() == self._text:  # the answer to an earlier try was lost
                    return self._created(own, begun_s)
            return None
        return self._created(own, begun_s)

    def _created(self, own: ObjectPath, begun_s: float) -> ObjectPath | None:
        chain = self._chain()
        if chain and chain[-1] != own:  # the number was in use before, while this process was suspended
            with suppress(OSError):
                own.unlink()
            return None
        for each in chain[:-1]:
            with suppress(OSError):
                each.unlink()
        self._renewed_s = begun_s
        return own

    def _check_conditions(self, own: ObjectPath) -> None:
        """LakeUnsupported: the store writes an object again that a conditional put must not replace."""
        with suppress(FileExistsError):
            own.create(self._text)
            own.unlink()
            raise LakeUnsupported(
                f"{self._folder.parent}: found an object store that ignores the condition of a put (If-None-Match: *), "
                "expected one that honours it, because commits depend on it: use another store, or a newer version "
                "of it"
            )

    def _left_ms(self, lock: ObjectPath) -> float:
        """How long it is held at least, by the clock of the store. FileNotFoundError."""
        probe = self._folder / f"clock-{uuid4().hex}"
        probe.write_bytes(b"")
        try:
            return LEASE_MS - (probe.stat().st_mtime - lock.stat().st_mtime) * 1000
        finally:
            probe.unlink()

    def _refuse(self, text: bytes, left_ms: float) -> NoReturn:
        raise LakeBusy(
            f"{self._folder.parent}: found {named_holder(text)} writing to this lake, expected one writer: wait until "
            "it ends, stop it, or use another --lake; if it has died, its lock ends in "
            f"{max(left_ms, 1000) / 1000:.0f} s"
        )

    def _chain(self) -> list[ObjectPath]:
        return sorted(each for each in self._folder.iterdir() if _number(each))

    def _newest(self) -> ObjectPath | None:
        return max(self._chain(), default=None)

    def _renew_again(self) -> None:
        while not self._ended.wait(RENEW_MS / 1000) and not self._lost:
            with suppress(OSError):  # `check` finds that it was not renewed
                self.renew()


def _number(lock: ObjectPath | None) -> int:
    """The place in the chain; 0: none."""
    found = _NAME.fullmatch(lock.name) if lock is not None else None
    return int(found[1]) if found else 0


def named_holder(text: bytes) -> str:
    """Return the holder that a lock names, also one in a file (lock.FileLock)."""
    try:
        found = json.loads(text)
        return f"process {found['pid']} on host {found['host']} (since {found['since']})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _uptime_s() -> float:
    """The time since this machine started, including the time it was suspended if the system measures that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
