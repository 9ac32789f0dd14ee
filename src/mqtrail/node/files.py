"""Small files of a node: their stamps, and a warning for secrets that others can read."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtrail.net import Log, mode_open_to_others
from mqtrail.store import StoreError
from mqtrail.wire import MQError

Stamp = tuple[int, int, int]
"""Modification time (ns), size and inode: two equal stamps mean that a file has not changed."""

log = Log()


def file_stamps(paths: Iterable[Path]) -> dict[str, Stamp]:
    """Return path -> stamp of the files that exist."""
    found = {}
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[str(path)] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def in_a_thread(act: Callable[[], None]) -> None:
    """Run act in a thread of its own. For rare work, such as freeing a large file."""
    threading.Thread(target=act, name="disk", daemon=True).start()


@contextmanager
def unusable_files(owner: str) -> Iterator[None]:
    """Convert an OSError at owner's start to StoreError: a folder in a file's place, no permission, a full disk."""
    try:
        yield
    except OSError as error:
        if isinstance(error, MQError):
            raise
        raise StoreError(
            f"{owner} cannot use its files: {error}: check that file or folder, its permissions and the space on the "
            "disk"
        ) from error


def warn_if_open_to_others(names: Iterable[Path | str]) -> None:
    """Log a warning for each file with secrets that other users of this machine can read or change."""
    for name in names:
        if mode := mode_open_to_others(Path(name)):
            log.warning("secrets.open_to_others", path=str(name), mode=mode, remedy=f"chmod 600 {name}")
