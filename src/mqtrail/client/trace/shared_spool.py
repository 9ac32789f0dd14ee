"""The spool file that every dispatcher of one process shares, and the files that dead processes left beside it."""

import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from .spool import Spool, SpooledMessage, orphans

_NAME_LENGTH_MAX = 100
_lock = threading.Lock()
_shared: dict[Path, "SharedSpool"] = {}


def _folder_name(namesrv: Sequence[str]) -> str:
    """Return a folder's name for a set of name servers, whatever their order."""
    addresses = "+".join(sorted(namesrv))
    name = re.sub(r"[^A-Za-z0-9.+-]", "_", addresses)
    return name if len(name) <= _NAME_LENGTH_MAX else f"{name[:_NAME_LENGTH_MAX]}-{crc32(addresses.encode()):08x}"


class SharedSpool:
    """The spool of one process in one folder. Thread safe: dispatchers call it from worker threads of several loops."""

    def __init__(self, folder: Path, size_max: int) -> None:
        self.folder = folder
        self._size_max = size_max
        self._lock = threading.Lock()
        self._users = 0
        self._own = Spool(folder / f"{os.getpid()}-{time.time_ns():x}.spool", size_max)
        self._adopted: Spool | None = None
        self._tried: set[Path] = set()
        self._taken = False

    @classmethod
    def acquire(cls, folder: Path | None, namesrv: Sequence[str], size_max: int) -> "SharedSpool":
        """Return this process's spool for a cluster, below folder (None: ~/.mqtrail/spool); pair it with `release`.

        Each cluster, identified by its name servers, has a separate folder: the trace of one cluster must never be
        sent to another by the next client that starts on this machine.
        """
        folder = (Path.home() / ".mqtrail" / "spool" if folder is None else folder) / _folder_name(namesrv)
        with _lock:
            spool = _shared.get(folder)
            if spool is None:
                spool = _shared[folder] = cls(folder, size_max)
            spool._users += 1
            return spool

    def release(self) -> None:
        """Give it back; the last user closes the files."""
        with _lock:
            self._users -= 1
            if self._users > 0:
                return
            if _shared.get(self.folder) is self:
                del _shared[self.folder]
            with self._lock:
                self._own.close()
                if self._adopted is not None:
                    self._adopted.close()
                    self._adopted = None

    @property
    def path(self) -> Path:
        """The file of this process."""
        return self._own.path

    def append(self, message: SpooledMessage, *, note: bool = False) -> None:
        """Keep one message. Raises SpoolError (SpoolFull)."""
        with self._lock:
            self._own.append(message, note=note)

    def take(self) -> "SpoolTicket | None":
        """Return one kept message to be sent: of this process first, then of dead ones; None when there is none.

        Only one message is taken at a time: finish it with `SpoolTicket.done` or `back`.
        """
        with self._lock:
            if self._taken:
                return None
            spool = self._own
            entry = spool.peek()
            while entry is None:
                if self._adopted is None and not self._adopt():
                    return None
                assert self._adopted is not None
                spool = self._adopted
                entry = spool.peek()
                if entry is None:
                    spool.close()
                    self._adopted = None
            self._taken = True
            return SpoolTicket(self, spool, *entry)

    def _finish(self, ticket: "SpoolTicket", *, sent: bool) -> None:
        with self._lock:
            self._taken = False
            if sent:
                ticket.spool.drop(ticket.message, ticket.position)

    def _adopt(self) -> bool:
        for path in orphans(self.folder, self._own.path):
            if path not in self._tried:
                self._tried.add(path)
                if (spool := Spool.adopt(path, self._size_max)) is not None:
                    self._adopted = spool
                    return True
        return False

    def _abandon(self) -> None:
        self._own.abandon()
        if self._adopted is not None:
            self._adopted.abandon()


class SpoolTicket:
    """A message that was taken from the spool and is being sent."""

    def __init__(self, shared: SharedSpool, spool: Spool, message: SpooledMessage, position: int) -> None:
        self.message = message
        self.spool = spool
        self.position = position
        self._shared = shared

    def done(self) -> None:
        """It is sent (or will never be taken): forget it."""
        self._shared._finish(self, sent=True)

    def back(self) -> None:
        """It is not sent: keep it."""
        self._shared._finish(self, sent=False)


def _after_fork_in_child() -> None:
    """Close the parent's files in a child: it must neither write to them nor keep their locks."""
    global _lock
    _lock = threading.Lock()
    for spool in _shared.values():
        spool._abandon()
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
