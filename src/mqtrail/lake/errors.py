"""Errors of a lake. Each message says what was found, what was expected, and what to do."""

from __future__ import annotations

from mqtrail.wire import MQError


class LakeError(MQError):
    """Base class of this room's errors."""


class LakeMissing(LakeError):
    """There is no lake at the path."""


class LakeUnsupported(LakeError):
    """This version cannot keep a lake at the path."""


class LakeUnreadable(LakeError):
    """The operating system, or the object store, does not let us read or write the lake."""


class LakeDamaged(LakeError):
    """Files of the lake are missing, truncated, or have other content."""


class LakeBusy(LakeError):
    """Another process writes to the lake."""


class LakeLost(LakeBusy):
    """Another process has taken the lock of the lake from this one: it must not write any more."""


class SchemaVersionError(LakeError):
    """A table was written by another version of mqtrail."""


class FileRefused(LakeError):
    """A file to be committed lacks columns of the table, or has rows of several partitions."""
