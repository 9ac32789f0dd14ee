"""Runs a broker or name server on real sockets, files and time.

`Node` is a name server and its brokers in one process, over one data folder. `ProcessNode` runs each broker in its own
process. `run_up` runs either until a signal. The cores decide; the shells here write replies, wait for the disk, call
`tick` and register brokers.
"""

from .broker_node import BrokerNode
from .config import NodeConfig
from .controller_node import ControllerNode
from .data_folder import DataFolder, DataFolderError
from .namesrv_node import NameServerNode
from .node import Node
from .processes import BrokerEnded, ProcessNode
from .report import BrokerReport
from .up import AnyNode, run_controller, run_up

__all__ = [
    "AnyNode",
    "BrokerEnded",
    "BrokerNode",
    "BrokerReport",
    "ControllerNode",
    "DataFolder",
    "DataFolderError",
    "NameServerNode",
    "Node",
    "NodeConfig",
    "ProcessNode",
    "run_controller",
    "run_up",
]
