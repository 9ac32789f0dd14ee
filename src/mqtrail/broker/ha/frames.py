"""The bytes on haListenPort of a master, in the form of 4.x, which 5.x uses without a controller.

    slave to master    8        i64  physical offset up to which the slave has the log; 0: it has nothing
    master to slave    12 + n   i64  physical offset of the first byte
                                i32  n, 0 for a heartbeat
                                n bytes of the log, of one file, cut anywhere

There is no version and no hello. The master starts where the slave's first report ends, for 0 with its last file.
Source: DefaultHAConnection, DefaultHAClient, apache/rocketmq store/ha/.
"""

import struct
from typing import Final

from mqtrail.wire import MQError

REPORT: Final = struct.Struct(">q")
HEADER: Final = struct.Struct(
    ">q"  # physical offset
    "i"  # n
)
assert (REPORT.size, HEADER.size) == (8, 12)
CHUNK_SIZE_MAX: Final = 4 * 1024 * 1024 - HEADER.size  # what Apache's slave can read at once


class HaError(MQError):
    """The peer's bytes make no sense here, or it is silent: the connection ends. The text names found and expected."""


def shown(data: bytes) -> str:
    """Return the first bytes of a peer that speaks something else, for an error."""
    return repr(bytes(data[:16]))
