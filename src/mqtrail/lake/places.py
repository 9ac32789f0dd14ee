"""Where a lake is: a folder of this machine, or a prefix of an object store. What differs between them is here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from uuid import uuid4

from mqtrail.wire import part_file

from .errors import LakeUnsupported
from .objects import SCHEME, ObjectPath, delta_options

if TYPE_CHECKING:
    import pyarrow as pa

LakePath = Path | ObjectPath
"""A file or folder of a lake."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a Path keeps one of the slashes
REQUESTS_MAX: Final = 32  # requests to an object store side by side

T = TypeVar("T")
R = TypeVar("R")


def place_of(text: str | LakePath) -> LakePath:
    """Return the absolute path that a text names. LakeUnsupported: it is another URL, or packages are missing."""
    if isinstance(text, ObjectPath):
        return text
    if not (named := str(text)).startswith(SCHEME):
        if _URL.match(named):
            raise LakeUnsupported(f"found {named!r}, expected a local or mounted folder, or s3://bucket/prefix")
        return Path(named).expanduser().absolute()
    for package in ("fsspec", "obstore"):
        if find_spec(package) is None:
            raise LakeUnsupported(
                f"{named}: found no {package!r}, expected the packages for object stores: install them with "
                "`pip install 'mqtrail[s3]'`"
            )
    try:
        return ObjectPath.parse(named)
    except ValueError as error:
        raise LakeUnsupported(f"found {error}, expected s3://bucket/prefix: pass it with --lake") from None


def inside(folder: LakePath, name: str | LakePath) -> LakePath:
    """Return a file by its name below a folder, or by its whole path."""
    if isinstance(folder, ObjectPath):
        return folder / name
    assert not isinstance(name, ObjectPath), f"{name} is not below {folder}"
    return folder / name


def is_remote(path: LakePath) -> bool:
    """Whether each look at a file is a request over the network."""
    return isinstance(path, ObjectPath)


def storage_options(path: LakePath) -> dict[str, str] | None:
    """The options of delta-rs for a table."""
    return delta_options() if isinstance(path, ObjectPath) else None


def remove_tree(folder: LakePath) -> None:
    """Delete a folder with what is in it. On a local disk errors are ignored."""
    if isinstance(folder, ObjectPath):
        folder.remove_tree()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def own_folder(folder: LakePath) -> LakePath:
    """A folder for the files of a batch that no other process writes to.

    In an object store a writer that has lost the lock (`lease`) can still be writing, until it notices.
    """
    return folder / uuid4().hex[:8] if isinstance(folder, ObjectPath) else folder


def emptied(folder: LakePath) -> LakePath:
    """The same, without the files that a crash left there. In an object store the sweep deletes these."""
    if isinstance(folder, Path):
        remove_tree(folder)
    return own_folder(folder)


def write_whole(path: LakePath, data: bytes, *, is_durable: bool = False) -> None:
    """Replace a file, so that a reader finds the old or the new one. is_durable: not lost if the machine stops."""
    if isinstance(path, ObjectPath):
        path.write_bytes(data)
        return
    with part_file(path.with_name(f"{path.name}.tmp")) as written:
        with written.open("wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(written, path)


def size_of(path: LakePath) -> int:
    """The size of a file that can be read. FileNotFoundError, OSError."""
    if isinstance(path, ObjectPath):
        return path.stat().st_size
    with path.open("rb") as opened:
        return os.fstat(opened.fileno()).st_size


def relative_to(path: LakePath, folder: LakePath) -> str:
    """The names of a file below a folder, separated by slashes. ValueError: it is elsewhere."""
    if isinstance(path, ObjectPath) and isinstance(folder, ObjectPath):
        return path.relative_to(folder).as_posix()
    if isinstance(path, ObjectPath) or isinstance(folder, ObjectPath):
        raise ValueError(f"{path} is not below {folder}")
    return path.resolve().relative_to(folder.resolve()).as_posix()


def parquet_source(path: LakePath) -> Any:
    """What pyarrow reads a Parquet file from."""
    return path.open("rb") if isinstance(path, ObjectPath) else path


def parquet_size(path: LakePath, source: Any) -> int:
    """The size of a file of which `parquet_source` has made a source."""
    return int(source.size) if isinstance(path, ObjectPath) else size_of(path)


def write_parquet(rows: pa.Table, path: LakePath) -> None:
    """Write a small Parquet file."""
    import pyarrow.parquet as pq

    with sink(path) as target:
        pq.write_table(rows, target, compression="zstd")


@contextmanager
def sink(path: LakePath) -> Iterator[Path | BinaryIO]:
    """The file object to which pyarrow writes Parquet. The file exists after the block."""
    if isinstance(path, ObjectPath):
        with path.open("wb") as file:
            yield file
    else:
        yield path


def side_by_side(place: LakePath, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do some work for each item; in an object store several at once, because each waits for answers."""
    if not isinstance(place, ObjectPath):
        return [work(item) for item in items]
    with ThreadPoolExecutor(REQUESTS_MAX, thread_name_prefix="mqtrail-lake") as pool:
        return list(pool.map(work, items))
