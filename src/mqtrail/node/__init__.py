"""Runs a broker or name server on real sockets, files and time.

`Node` is a name server and its brokers in one process, over one data folder. `ProcessNode` runs each broker in its own
process, `GroupNode` the members of a group. `run_up` runs any of them until a signal. The cores decide; the shells
here write replies, wait for the disk, call `tick` and register brokers.
"""

from .broker_node import BrokerNode
from .config import GroupConfig, GroupMode, NodeConfig, shown_url
from .controller_node import ControllerNode
from .data_folder import DataFolder, DataFolderError
from .group_node import GroupNode
from .namesrv_node import NameServerNode
from .node import Node
from .processes import ProcessNode
from .report import ServerReport
from .up import AnyNode, run_controller, run_up
from .worker_process import WorkerEnded

__all__ = [
    "AnyNode",
    "BrokerNode",
    "ControllerNode",
    "DataFolder",
    "DataFolderError",
    "GroupConfig",
    "GroupMode",
    "GroupNode",
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
