"""Turns errors of delta-rs, DuckDB, Arrow and the file system into LakeErrors, in one place.

    with lake_errors(path): …        # around all reads and writes of a lake

The text is one line: found, expected, remedy. Errors in mqtrail's own SQL are not converted and keep their traceback.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from .errors import LakeBusy, LakeDamaged, LakeError, LakeUnreadable

OUR_MISTAKES = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.InternalException)
"""DuckDB errors that cannot come from a file on disk."""
RESTORE = "restore it from a copy, or run `mqtrail pipeline` with a new --lake folder"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_TEXTS = tuple(map(os.strerror, _NO_ROOM))  # libraries raise their own errors, some without errno


@contextmanager
def lake_errors(path: Path) -> Iterator[None]:
    """Raise LakeError for errors that a lake's damaged or missing files cause in the libraries."""
    try:
        yield
    except (LakeError, ConnectionError, *OUR_MISTAKES):  # ConnectionError: Spark's JVM has ended
        raise
    except (OSError, DeltaError, duckdb.Error, pa.ArrowException) as error:
        raise _of_library(path, error) from error


def _of_library(path: Path, error: Exception) -> LakeError:
    if any(text in str(error) for text in _NO_ROOM_TEXTS):
        return _no_room(path)
    if isinstance(error, CommitFailedError):
        return LakeBusy(
            f"{path}: found a commit of another writer ({first_line(error)}), expected one writer a lake: stop one "
            "of them and run the other again"
        )
    if isinstance(error, OSError):  # Arrow raises it too
        return of_os_error(path, error)
    return LakeDamaged(
        f"{path}: found what cannot be read ({first_line(error)}), expected a lake's Delta logs and Parquet "
        f"files: {RESTORE}"
    )


def _no_room(where: Path | str) -> LakeUnreadable:
    return LakeUnreadable(
        f"{where}: found no space left, expected room for the lake's files: free space on that disk; what was "
        "committed is kept, and the next run continues from there"
    )


@contextmanager
def part_file(path: Path) -> Iterator[Path]:
    """Yield path, where the block writes a file and then renames it. If the block fails, remove what it wrote.

    `mqtrail.net` has the same for rooms that do not know the lake.
    """
    try:
        yield path
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def of_os_error(path: Path, error: OSError) -> LakeError:
    """Return the LakeError for an error of the file system."""
    where = error.filename or path
    if isinstance(error, PermissionError):
        return LakeUnreadable(
            f"{where}: permission denied, expected read access, and write access to add to the lake: run as its owner, "
            "or change the permissions"
        )
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return LakeUnreadable(f"{where}: found a file, expected the folder of a lake: pass the folder with --lake")
    if isinstance(error, FileNotFoundError):
        return LakeDamaged(f"{where}: found no such file, expected a file that the tables of the lake list: {RESTORE}")
    if error.errno in _NO_ROOM:
        return _no_room(where)
    return LakeUnreadable(f"{where}: {first_line(error)}, expected a lake that can be read: check the disk or mount")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: some libraries add a backtrace below it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
