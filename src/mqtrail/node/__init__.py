"""Runs a broker or name server on real sockets, files and time.

`Node` is a name server and its brokers in one process, over one data folder; `ProcessNode` has a process for each
broker; `run_up` makes either a process that stops on a signal. The cores decide, the shells here do: write, wait for
the disk, tick, register.
"""

from mqtrail.node.broker_node import BrokerNode
from mqtrail.node.config import NodeConfig
from mqtrail.node.data_folder import DataFolder, DataFolderError
from mqtrail.node.namesrv_node import NameServerNode
from mqtrail.node.node import Node
from mqtrail.node.processes import BrokerEnded, ProcessNode
from mqtrail.node.report import BrokerReport
from mqtrail.node.up import AnyNode, run_up

__all__ = [
    "AnyNode",
    "BrokerEnded",
    "BrokerNode",
    "BrokerReport",
    "DataFolder",
    "DataFolderError",
    "NameServerNode",
    "Node",
    "NodeConfig",
    "ProcessNode",
    "run_up",
]
