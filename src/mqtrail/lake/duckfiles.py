"""DuckDB reads and writes objects of an S3 store through this process, which has the credentials.

DuckDB's own extension for that is not in its wheel, and would be downloaded at run time. Import this only where object
paths are used: fsspec is a package of the extra `s3`.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from threading import Lock
from typing import Any, BinaryIO, Final

from fsspec import AbstractFileSystem

from .objectfiles import ObjectTail
from .objects import SCHEME, ObjectPath

TAILS_MAX: Final = 256  # of files that a connection has opened: 16 MiB


class ObjectFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """What DuckDB calls of fsspec's interface, for s3:// paths. One for each connection.

    Files do not change once they are written, so what one query has read of them is good for the next one.
    """

    protocol = "s3"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._tails: OrderedDict[ObjectPath, ObjectTail] = OrderedDict()
        self._guard = Lock()

    def open(self, path: str, mode: str = "rb", **options: Any) -> BinaryIO:
        """Open an object for reading or writing."""
        found = _parse(path)
        if "w" not in mode:
            return found.open_at(self._tail(found))
        self._forget(found)
        return found.open("wb")

    def _tail(self, path: ObjectPath) -> ObjectTail:
        """The tail of a file, which DuckDB opens several times for one query."""
        with self._guard:
            if (known := self._tails.get(path)) is not None:
                self._tails.move_to_end(path)
                return known
        found = path.tail()
        with self._guard:
            self._tails[path] = found
            if len(self._tails) > TAILS_MAX:
                self._tails.popitem(last=False)
        return found

    def _forget(self, path: ObjectPath) -> None:
        with self._guard:
            self._tails.pop(path, None)

    def unstrip_protocol(self, name: str) -> str:
        """The whole path."""
        return str(_parse(name))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name and size."""
        return {"name": str(_parse(path)), "size": self.size(path), "type": "file"}

    def size(self, path: str) -> int:
        """Bytes."""
        return self._tail(_parse(path)).stat.st_size

    def modified(self, path: str) -> datetime:
        """When it was written."""
        return datetime.fromtimestamp(self._tail(_parse(path)).stat.st_mtime, UTC)

    def exists(self, path: str, **options: Any) -> bool:
        """Whether there is an object or a folder."""
        return _parse(path).exists()

    def isfile(self, path: str) -> bool:
        """Whether there is an object."""
        return _parse(path).is_file()

    def isdir(self, path: str) -> bool:
        """Whether there are objects below."""
        return _parse(path).is_dir()

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Return the names directly below a path."""
        found = sorted(_parse(path).iterdir())
        if not detail:
            return [str(each) for each in found]
        return [{"name": str(each), "type": "directory" if each.is_folder else "file"} for each in found]

    def glob(self, path: str, **options: Any) -> list[str]:
        """Return a name without wildcards unchanged: opening it shows whether it exists."""
        folder, wild, _ = path.partition("/**")
        if wild:
            return [str(each) for each in _parse(folder).rglob("*")]
        assert not set(path) & set("*?["), f"{path}: no query of ours has wildcards"
        return [path]

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Do nothing: folders are parts of names."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing."""

    def rm(self, path: str, **options: Any) -> None:
        """Delete an object."""
        self._forget(_parse(path))
        _parse(path).unlink()


def _parse(path: str) -> ObjectPath:
    return ObjectPath.parse(path if path.startswith(SCHEME) else SCHEME + path)
