"""Lock files: each lets one process at a time do its work. A lock ends with the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtrail.wire import MQError


@contextmanager
def hold_lock(path: Path, taken: MQError) -> Iterator[None]:
    """Hold a lock file, which is made if it is missing, while the block runs. OSError.

    taken: raised if another process has it.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        yield


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, which is made with its folder if it is missing, while the block runs: wait for it. OSError.

    Only its owner can open it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def is_lock_held(path: Path) -> bool:
    """Return whether a process has a lock file. OSError, but not because there is none."""
    try:
        with path.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except FileNotFoundError:
        pass
    return False
