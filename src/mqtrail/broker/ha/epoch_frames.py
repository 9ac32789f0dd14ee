"""The bytes on haListenPort in controller mode. Both sides begin each frame with the state that they are in.

    slave to master    16       i32 1 (handshake), i16 1: begin with the last file, i16 1: async learner, i64 broker id
    master to slave    20 + n   i32 1, i32 n, i64 end of the log, i32 its last epoch (-1: none),
                                n bytes: for each epoch i32 number, i64 physical offset of its first byte
    slave to master    12       i32 2 (transfer), i64 physical offset up to which the slave has the log
    master to slave    36 + n   i32 2, i32 n (0: heartbeat), i64 physical offset, i32 epoch of these bytes,
                                i64 where that epoch begins, i64 confirm offset, n bytes of the log, of one epoch

Source: AutoSwitchHAConnection, AutoSwitchHAClient, apache/rocketmq store/ha/autoswitch/.
"""

import struct
from typing import Final

from .epochs import EPOCHS_MAX, Epoch

HANDSHAKE: Final = 1
TRANSFER: Final = 2
STATE: Final = struct.Struct(">i")
HELLO: Final = struct.Struct(
    ">i"  # state
    "h"  # 1: an empty slave begins with the master's last file
    "h"  # 1: async learner
    "q"  # broker id
)
HELLO_REPLY: Final = struct.Struct(
    ">i"  # state
    "i"  # n
    "q"  # end of the log
    "i"  # last epoch
)
EPOCH: Final = struct.Struct(
    ">i"  # number
    "q"  # start offset
)
EPOCH_REPORT: Final = struct.Struct(
    ">i"  # state
    "q"  # physical offset
)
TRANSFER_HEADER: Final = struct.Struct(
    ">i"  # state
    "i"  # n
    "q"  # physical offset
    "i"  # epoch
    "q"  # where the epoch begins
    "q"  # confirm offset
)
assert [one.size for one in (HELLO, HELLO_REPLY, EPOCH, EPOCH_REPORT, TRANSFER_HEADER)] == [16, 20, 12, 12, 36]
EPOCHS_SIZE_MAX: Final = EPOCHS_MAX * EPOCH.size


def decode_handshake_epochs(data: bytes | bytearray) -> list[Epoch]:
    """Return the epochs in a master's handshake; data has whole ones."""
    return [Epoch(number, start) for number, start in EPOCH.iter_unpack(data)]
