"""What a broker decides about replicas: both ends of the HA protocol, without sockets and clocks.

`frames` has the bytes, `sender` the master's end of one connection, `follower` the slave's, `replicas` what a master
knows of all its slaves. `node` runs them on sockets.
"""

from .follower import Follower
from .frames import HaError
from .replicas import Following, Replicas
from .sender import LogSender

__all__ = ["Follower", "Following", "HaError", "LogSender", "Replicas"]
