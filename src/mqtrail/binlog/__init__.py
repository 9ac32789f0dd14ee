"""From the binlog of MariaDB to messages: each changed row once, in the order of its key.

`BinlogRun` reads a snapshot and then the changes of a server, and sends them to a topic; `read_state` says how far it
is. It needs the extra `binlog`.
"""

from .compared import FILE_START, ChangesSince, SourceTable, TextForm, changes_since
from .messages import TagBy
from .model import BinlogError, BinlogPlace, SourceAway, order_text
from .run import BinlogConfig, BinlogRun
from .source import BinlogSource, SourceConfig, source_of
from .state import BinlogState, is_running, place_of_text, read_state

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
    "changes_since",
    "is_running",
    "order_text",
    "place_of_text",
    "read_state",
    "source_of",
]
