"""The controller's core: who is master of each group of brokers. Pure, built like the name server.

`Controller` serves requests 904 and 1001 to 1013. A change that must not be lost goes through consensus (`raft`) as a
command (`commands`), and is decided where it is applied (`groups`), in the same way at each member. `live` keeps which
brokers send heartbeats.
"""

from .broker_groups import ReplicaGroups
from .config import ControllerConfig
from .controller import Call, Controller

__all__ = ["Call", "Controller", "ControllerConfig", "ReplicaGroups"]
