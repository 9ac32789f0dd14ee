"""The spool file shared by all dispatchers of a process, and the files that ended processes left in the same folder."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..core import folder_name
from .spool import Spool, SpooledMessage, orphans

_lock = threading.Lock()
_shared: dict[Path, "SharedSpool"] = {}


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
        """Return this process's spool for a cluster, below folder (None: ~/.mqtrail/spool); call `release` after use.

        Each cluster, identified by its name servers, has a separate folder, so that the next client on this machine
        does not send one cluster's trace to another cluster.
        """
        folder = (Path.home() / ".mqtrail" / "spool" if folder is None else folder) / folder_name(namesrv)
        with _lock:
            spool = _shared.get(folder)
            if spool is None:
                spool = _shared[folder] = cls(folder, size_max)
            spool._users += 1
            return spool

    def release(self) -> None:
        """End the use of this spool; the last user closes the files."""
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
        """Write one message. note: it may use the reserve beyond the limit. Raises SpoolError (SpoolFull)."""
        with self._lock:
            self._own.append(message, note=note)

    def take(self) -> "SpoolTicket | None":
        """Return the next message to send: of this process first, then of ended ones; None if there is none.

        Only one message can be taken at a time: finish it with `SpoolTicket.done` or `back`.
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
        """Remove the message from the spool: it was sent, or no broker will accept it."""
        self._shared._finish(self, sent=True)

    def back(self) -> None:
        """Keep the message in the spool: it was not sent."""
        self._shared._finish(self, sent=False)


def _after_fork_in_child() -> None:
    """Close the parent's files in a child: it must not write to them or keep their locks."""
    global _lock
    _lock = threading.Lock()
    for spool in _shared.values():
        spool._abandon()
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
