"""From the binlog of MariaDB to messages: each changed row once, in the order of its key.

`BinlogRun` reads a snapshot and then the changes of a server, and sends them to a topic; `read_state` says how far it
is. It needs the extra `binlog`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .added import UnknownValue, added_values
    from .compared import FILE_START, ChangesSince, SourceTable, TextForm, changes_since
    from .messages import TagBy
    from .model import BinlogError, BinlogPlace, SourceAway, order_text
    from .run import BinlogConfig, BinlogRun
    from .source import BinlogSource, SourceConfig, source_of
    from .state import BinlogState, is_running, place_of_text, read_state
    from .statements import empties, moves_rows, removes_rows

__all__ = [
    "FILE_START",
    "BinlogConfig",
    "BinlogError",
    "BinlogPlace",
    "BinlogRun",
    "BinlogSource",
    "BinlogState",
    "ChangesSince",
    "SourceAway",
    "SourceConfig",
    "SourceTable",
    "TagBy",
    "TextForm",
    "UnknownValue",
    "added_values",
    "changes_since",
    "empties",
    "is_running",
    "moves_rows",
    "order_text",
    "place_of_text",
    "read_state",
    "removes_rows",
    "source_of",
]

_MODULES = {
    "added": ("UnknownValue", "added_values"),
    "compared": ("FILE_START", "ChangesSince", "SourceTable", "TextForm", "changes_since"),
    "messages": ("TagBy",),
    "model": ("BinlogError", "BinlogPlace", "SourceAway", "order_text"),
    "run": ("BinlogConfig", "BinlogRun"),
    "source": ("BinlogSource", "SourceConfig", "source_of"),
    "state": ("BinlogState", "is_running", "place_of_text", "read_state"),
    "statements": ("empties", "moves_rows", "removes_rows"),
}

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import on first use: what reads its messages needs `statements`, without the extra `binlog`."""
        for module, names in _MODULES.items():
            if name in names:
                from importlib import import_module

                return getattr(import_module(f"mqtrail.binlog.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
