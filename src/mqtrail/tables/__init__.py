"""Tables that follow a database by its binlog topic, and whether both agree.

`TableJob` merges the messages of `mqtrail binlog run` into a Delta table; `compare` reports the rows that differ from
the source. It needs the extras `pipeline` and, to compare, `binlog`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agreement import compare
    from .differences import CompareConfig, RowDifference, RowFault, TableComparison
    from .job import TableConfig, TableJob, TableReport
    from .model import TableError, TableUnreadable
    from .target import DeltaTarget

__all__ = [
    "CompareConfig",
    "DeltaTarget",
    "RowDifference",
    "RowFault",
    "TableComparison",
    "TableConfig",
    "TableError",
    "TableJob",
    "TableReport",
    "TableUnreadable",
    "compare",
]

_MODULES = {
    "agreement": ("compare",),
    "differences": ("CompareConfig", "RowDifference", "RowFault", "TableComparison"),
    "job": ("TableConfig", "TableJob", "TableReport"),
    "model": ("TableError", "TableUnreadable"),
    "target": ("DeltaTarget",),
}

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import on first use: Spark's workers import this room for `digest`, without Delta and DuckDB."""
        for module, names in _MODULES.items():
            if name in names:
                from importlib import import_module

                return getattr(import_module(f"mqtrail.tables.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
