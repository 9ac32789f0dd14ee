"""The identity of this process in the cluster: its address, client ids and message ids.

Created on first use, never at import, and created again in a child after fork: two processes must not use equal ids.
"""

import os
import secrets
import socket
import time

from mqtrail.clock import now_ms
from mqtrail.wire import UniqueIdFactory

_factory: UniqueIdFactory | None = None
_address: str | None = None


def local_address() -> str:
    """Return this machine's outgoing address, as text; 127.0.0.1 if it has none. Sends nothing."""
    global _address
    if _address is None:
        _address = _outgoing(socket.AF_INET, "192.0.2.1") or _outgoing(socket.AF_INET6, "2001:db8::1") or "127.0.0.1"
    return _address


def _outgoing(family: socket.AddressFamily, towards: str) -> str | None:
    # Connecting a datagram socket only selects a route; the addresses are reserved for documentation.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def new_client_id(unit_name: str = "") -> str:
    """Return a client id in the Java client's form, `ip@pid#nanoseconds`; different at each call."""
    unit = f"@{unit_name}" if unit_name else ""
    return f"{local_address()}@{os.getpid()}#{time.monotonic_ns()}{unit}"


def unique_ids() -> UniqueIdFactory:
    """Return the factory of this process's UNIQ_KEYs and request ids."""
    global _factory
    if _factory is None:
        _factory = UniqueIdFactory(local_address(), os.getpid(), secrets.randbits(32), now_ms)
    return _factory


def _after_fork_in_child() -> None:
    global _factory
    _factory = None


os.register_at_fork(after_in_child=_after_fork_in_child)
