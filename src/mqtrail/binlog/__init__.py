"""From the binlog of MariaDB to messages: each changed row once, in the order of its key.

`BinlogRun` reads a snapshot and then the changes of a server, and sends them to a topic; `read_state` says how far it
is. It needs the extra `binlog`.
"""

from .messages import TagBy
from .model import BinlogError, SourceAway
from .run import BinlogConfig, BinlogRun
from .source import SourceConfig, source_of
from .state import BinlogState, is_running, read_state

__all__ = [
    "BinlogConfig",
    "BinlogError",
    "BinlogRun",
    "BinlogState",
    "SourceAway",
    "SourceConfig",
    "TagBy",
    "is_running",
    "read_state",
    "source_of",
]
