"""What a broker decides about replicas: both ends of the HA protocol, without sockets and clocks.

`frames` has the bytes, `sender` the master's end of one connection, `follower` the slave's, `replicas` what a master
knows of all its slaves. `epochs`, `epoch_frames`, `epoch_follower` and `epoch_sender` are the same for controller
mode, in which logs know which master wrote them, and `in_sync` is the set of replicas that may become master. `node`
runs them on sockets.
"""

from .epoch_follower import EpochFollower, TailDiffers
from .epoch_sender import EpochSender
from .epochs import EPOCH_FILE, Epoch, EpochError, Epochs, decode_epochs
from .follower import Follower
from .frames import HaError
from .identity import APPLYING_FILE, IDENTITY_FILE, Identity, decode_identity
from .in_sync import InSyncSet, MasterTerm
from .replicas import EVERYTHING, Following, LedgerState, Replica, Replicas
from .sender import LogSender

__all__ = [
    "APPLYING_FILE",
    "EPOCH_FILE",
    "EVERYTHING",
    "IDENTITY_FILE",
    "Epoch",
    "EpochError",
    "EpochFollower",
    "EpochSender",
    "Epochs",
    "Follower",
    "Following",
    "HaError",
    "Identity",
    "InSyncSet",
    "LedgerState",
    "LogSender",
    "MasterTerm",
    "Replica",
    "Replicas",
    "TailDiffers",
    "decode_epochs",
    "decode_identity",
]
