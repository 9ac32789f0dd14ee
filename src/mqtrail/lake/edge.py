"""Turns errors of delta-rs, DuckDB, Arrow and the file system into LakeErrors, in one place.

    with lake_errors(path): …        # around all reads and writes of a lake

The text is one line: found, expected, remedy. Errors in mqtrail's own SQL are not converted and keep their traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
from deltalake.exceptions import CommitFailedError, DeltaError

from .errors import LakeBusy, LakeDamaged, LakeError, LakeUnreadable
from .places import LakePath, is_remote
from .storeerrors import ObjectStoreError, store_problem

OUR_MISTAKES = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.InternalException)
"""DuckDB errors that cannot come from a file on disk."""
RESTORE = "restore it from a copy, or run `mqtrail pipeline` with a new --lake folder"
_OF_STORE = "Generic S3 error|Error performing|ObjectStoreError"
"""In errors of delta-rs and DuckDB that an object store caused."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_TEXTS = tuple(map(os.strerror, _NO_ROOM))  # libraries raise their own errors, some without errno


@contextmanager
def lake_errors(path: LakePath) -> Iterator[None]:
    """Raise LakeError for errors that a lake's damaged or missing files cause in the libraries."""
    try:
        yield
    except (LakeError, ConnectionError, *OUR_MISTAKES):  # ConnectionError: Spark's JVM has ended
        raise
    except library_errors() as error:
        if is_remote(path) and (message := _of_store(path, error)):
            raise LakeUnreadable(message) from None  # the text of the error may have an access key
        raise _of_library(path, error) from error


def arrow_errors() -> tuple[type[Exception], ...]:
    """Return what Arrow raises. Its own class only if Arrow is imported, which a process that only looks up spares."""
    found = getattr(sys.modules.get("pyarrow.lib"), "ArrowException", None)
    return (OSError,) if found is None else (OSError, found)


def library_errors() -> tuple[type[Exception], ...]:
    """Return what the libraries raise that read and write a lake."""
    return (*arrow_errors(), DeltaError, duckdb.Error)


def _of_library(path: LakePath, error: Exception) -> LakeError:
    if any(text in str(error) for text in _NO_ROOM_TEXTS):
        return _no_room(path)
    if isinstance(error, duckdb.OutOfMemoryException):
        return LakeUnreadable(
            f"{path}: found too little memory ({first_line(error)}), expected enough for what is read at once: raise "
            "task_memory of [pipeline], or query a shorter time"
        )
    if isinstance(error, CommitFailedError):
        return LakeBusy(
            f"{path}: found a commit of another writer ({first_line(error)}), expected one writer per lake: stop one "
            "of them and run the other again"
        )
    if isinstance(error, OSError):  # Arrow raises it too
        return of_os_error(path, error)
    return LakeDamaged(
        f"{path}: found data that cannot be read ({first_line(error)}), expected a lake's Delta logs and Parquet "
        f"files: {RESTORE}"
    )


def _no_room(where: LakePath | str) -> LakeUnreadable:
    return LakeUnreadable(
        f"{where}: found no space left, expected room for the lake's files: free space on that disk; what was "
        "committed is kept, and the next run continues from there"
    )


def _of_store(path: LakePath, error: Exception) -> str | None:
    """Return the text for an error that an object store caused; None: the error has another cause."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ObjectStoreError):
            return str(found)
        found = found.__cause__ or found.__context__
    return store_problem(path, text) if re.search(_OF_STORE, text := str(error)) else None


def of_os_error(path: LakePath, error: OSError) -> LakeError:
    """Return the LakeError for an error of the file system, or of an object store."""
    if isinstance(error, ObjectStoreError):
        return LakeUnreadable(str(error))
    if is_remote(path) and (message := _of_store(path, error)):
        return LakeUnreadable(message)
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
    text = str(error).strip()
    if text.startswith("Traceback "):  # of Python code that DuckDB called
        text = next(iter(re.findall(r"^\w+: .+$", text, re.MULTILINE)), text)
    return (text.splitlines() or [type(error).__name__])[0][:300]
