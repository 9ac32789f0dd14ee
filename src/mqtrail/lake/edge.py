"""Where errors of delta-rs, DuckDB, Arrow and the file system become errors of this room, once.

    with lake_errors(path): …        # everything that reads or writes a lake runs in one of these

Found, expected and a remedy, in one line. A mistake in our own SQL is none of these: it keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from .errors import LakeBusy, LakeDamaged, LakeError, LakeUnreadable

OUR_MISTAKES = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.InternalException)
"""Errors of DuckDB that no file on disk causes."""
RESTORE = "restore it from a copy, or run `mqtrail pipeline` with a new --lake folder"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def lake_errors(path: Path) -> Iterator[None]:
    """Raise LakeError for whatever a lake's files, or what is missing of them, make others raise."""
    try:
        yield
    except (LakeError, ConnectionError, *OUR_MISTAKES):  # a connection is none of a lake's: Spark's JVM has gone
        raise
    except CommitFailedError as error:
        raise LakeBusy(
            f"{path}: found a commit of another writer ({first_line(error)}), expected one writer a lake: stop one of "
            "them and run the other again"
        ) from error
    except OSError as error:  # before the others: Arrow raises it too
        raise of_os_error(path, error) from error
    except (DeltaError, duckdb.Error, pa.ArrowException) as error:
        raise LakeDamaged(
            f"{path}: found what cannot be read ({first_line(error)}), expected a lake's Delta logs and Parquet "
            f"files: {RESTORE}"
        ) from error


def of_os_error(path: Path, error: OSError) -> LakeError:
    """Return what the file system's refusal means for a lake."""
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
        return LakeUnreadable(f"{where}: found no space left, expected room for the lake's files: free some")
    return LakeUnreadable(f"{where}: {first_line(error)}, expected a lake that can be read: check the disk or mount")


def first_line(error: BaseException) -> str:
    """What an error says, without the backtrace some libraries put below it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
