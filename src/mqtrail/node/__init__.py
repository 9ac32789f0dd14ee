"""Runs a broker or name server on real sockets, files and time.

`Node` is a name server and its brokers in one process, over one data folder. `ProcessNode` runs each broker in its own
process, `GroupNode` the members of a group. `run_up` runs any of them until a signal. The cores decide; the shells
here write replies, wait for the disk, call `tick` and register brokers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .broker_node import BrokerNode
from .config import GroupConfig, GroupMode, NodeConfig, shown_url
from .data_folder import DataFolder, DataFolderError
from .namesrv_node import NameServerNode
from .node import Node
from .report import ServerReport
from .up import AnyNode, run_controller, run_up

if TYPE_CHECKING:
    from .controller_node import ControllerNode
    from .group_node import GroupNode
    from .ledger_node import LedgerNode
    from .processes import ProcessNode
    from .worker_process import WorkerEnded

_LATE: Final = {
    "ControllerNode": ".controller_node",
    "GroupNode": ".group_node",
    "LedgerNode": ".ledger_node",
    "ProcessNode": ".processes",
    "WorkerEnded": ".worker_process",
}
"""Name -> its module. Imported at their first use: a broker alone needs none of them, and saves their memory."""

__all__ = [
    "AnyNode",
    "BrokerNode",
    "ControllerNode",
    "DataFolder",
    "DataFolderError",
    "GroupConfig",
    "GroupMode",
    "GroupNode",
    "LedgerNode",
    "NameServerNode",
    "Node",
    "NodeConfig",
    "ProcessNode",
    "ServerReport",
    "WorkerEnded",
    "run_controller",
    "run_up",
    "shown_url",
]

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name], __name__), name)
