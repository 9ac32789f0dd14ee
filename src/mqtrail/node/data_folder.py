"""The data folder: one directory with all files of a node, used by one process at a time.

    mqtrail-data/            mode 0700
      mqtrail.json           {"format": 1, "written_by": "mqtrail 0.1.0"}: written once, read before anything else
      lock                   locked while a node runs; it contains the process id
      namesrv/               the tables of the name server
      <brokerName>/          Apache's storePathRootDir: commitlog/, consumequeue/, index/, config/
      tls/                   the node's self-signed certificate
      audit.jsonl            the changes of operators of the HTTP door, and of a console
      lake/                  the pipeline's tables; the node does not use them

A folder of an unknown format is refused. It is never converted.
"""

import fcntl
import json
import os
from pathlib import Path

from mqtrail import __version__
from mqtrail.net import replace_file
from mqtrail.wire import MQError

FORMAT = 1
FORMAT_FILE = "mqtrail.json"
LOCK_FILE = "lock"
FOLDER_MODE = 0o700
FILE_MODE = 0o666  # less the umask


class DataFolderError(MQError):
    """The data folder cannot be used; nothing in it was changed."""


class DataFolder:
    """An open, locked data folder. Close it so that another process can open it."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path) -> "DataFolder":
        """Create path if needed, check its format, lock it. DataFolderError."""
        path = path.absolute()
        _make(path)
        try:
            _check_format(path)  # before the lock: write no file into a folder of another kind
            lock_fd = _lock(path)
            try:
                _write_format(path)
            except BaseException:
                os.close(lock_fd)
                raise
        except OSError as error:
            raise _unusable(path, error) from error
        return cls(path, lock_fd)

    def room(self, name: str) -> Path:
        """Return the directory of a broker, or of the name server; create it if needed."""
        room = self.path / name
        try:
            room.mkdir(mode=FOLDER_MODE, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        return room

    def close(self) -> None:
        """Unlock. The lock file stays: removing it would let two processes lock two files of one name."""
        if self._lock_fd >= 0:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = -1


def _unusable(path: Path, error: OSError) -> DataFolderError:
    return DataFolderError(
        f"data folder {path} cannot be used: {error}: check that file or folder, its permissions and the space on the "
        "disk"
    )


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except FileExistsError:
        raise DataFolderError(
            f"data folder {path} is a file, expected a directory: choose another with --data"
        ) from None
    except OSError as error:
        raise DataFolderError(
            f"data folder {path} cannot be created: {error.strerror}; choose another with --data"
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DataFolderError(
            f"data folder {path} is not writable by this user, expected a folder that it owns: check `ls -ld`"
        )


def _check_format(path: Path) -> None:
    file = path / FORMAT_FILE
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        foreign = sorted(entry.name for entry in path.iterdir() if not _could_be_ours(entry))
        if foreign:
            raise DataFolderError(
                f"data folder {path} contains {foreign[0]!r} and no {FORMAT_FILE}; expected an empty folder, or one "
                "folder per RocketMQ broker with its store: choose another with --data"
            ) from None
        return
    except OSError as error:
        raise DataFolderError(
            f"{file} cannot be read: {error.strerror}; expected a folder that this user owns: run as its owner, or "
            "choose another with --data"
        ) from error
    try:
        found = json.loads(text)["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataFolderError(
            f'{file} contains {text[:60]!r}; expected {{"format": {FORMAT}}}: restore it from a backup, or write '
            "exactly that if this version wrote the folder"
        ) from error
    if found != FORMAT:
        raise DataFolderError(
            f"data folder {path} has format {found}; this mqtrail {__version__} reads format {FORMAT}: run the version "
            "that wrote it, or choose another folder with --data"
        )


def _could_be_ours(entry: Path) -> bool:
    if entry.name in (LOCK_FILE, FORMAT_FILE + ".tmp"):
        return True
    return entry.is_dir() and (
        entry.name in ("namesrv", "lake", "tls")
        or any((entry / part).is_dir() for part in ("commitlog", "config", "conf"))
        or any(entry.glob("dledger-*"))
    )


def _lock(path: Path) -> int:
    lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(lock_fd, 32).decode(errors="replace").strip()
        os.close(lock_fd)
        raise DataFolderError(
            f"data folder {path} is in use by process {holder or '(unknown)'}; expected an unused one: stop it, or "
            "choose another folder with --data"
        ) from error
    os.ftruncate(lock_fd, 0)
    os.write(lock_fd, f"{os.getpid()}\n".encode())
    return lock_fd


def _write_format(path: Path) -> None:
    file = path / FORMAT_FILE
    if file.exists():
        return
    text = json.dumps({"format": FORMAT, "written_by": f"mqtrail {__version__}"}) + "\n"
    replace_file(file, text.encode(), FILE_MODE)
