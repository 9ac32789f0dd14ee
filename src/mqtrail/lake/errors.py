"""What a lake refuses. Each message says what was found, what was expected, and what to do."""

from __future__ import annotations

from mqtrail.wire import MQError


class LakeError(MQError):
    """The root of this room's errors."""


class LakeMissing(LakeError):
    """There is no lake at the path."""


class LakeUnsupported(LakeError):
    """The path is none this version can keep a lake on."""


class LakeUnreadable(LakeError):
    """The operating system does not let the lake be read, or written."""


class LakeDamaged(LakeError):
    """Files of the lake are missing, cut, or hold something else."""


class LakeBusy(LakeError):
    """Another process writes to the lake."""


class SchemaVersionError(LakeError):
    """A table was written by another version of mqtrail."""


class FileRefused(LakeError):
    """A file that should be committed does not hold the table's columns, or not one partition."""
