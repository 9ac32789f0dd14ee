"""What a broker decides about replicas: both ends of the HA protocol, without sockets and clocks.

`frames` has the bytes, `sender` the master's end of one connection, `follower` the slave's, `replicas` what a master
knows of all its slaves. `epochs`, `epoch_frames` and `epoch_follower` are the same for controller mode, in which logs
know by whom they were written. `node` runs them on sockets.
"""

from .epoch_follower import EpochFollower, TailDiffers
from .epochs import EPOCH_FILE, Epoch, EpochError, Epochs, decode_epochs
from .follower import Follower
from .frames import HaError
from .identity import APPLYING_FILE, IDENTITY_FILE, Identity, decode_identity
from .replicas import Following, Replicas
from .sender import LogSender

__all__ = [
    "APPLYING_FILE",
    "EPOCH_FILE",
    "IDENTITY_FILE",
    "Epoch",
    "EpochError",
    "EpochFollower",
    "Epochs",
    "Follower",
    "Following",
    "HaError",
    "Identity",
    "LogSender",
    "Replicas",
    "TailDiffers",
    "decode_epochs",
    "decode_identity",
]
