"""Ports for servers that other processes start later, or again after a kill."""

import random
import socket
from pathlib import Path
from typing import Final

RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST: Final = 15_000  # above the ports that servers of mqtrail have by default
_chance = random.SystemRandom()  # two workers of pytest need different ones, whatever their seed


def free_ports(count: int) -> list[int]:
    """Return ports without a listener, below those that the system gives to connections and to port 0.

    So no connection of another test has one of them when its server binds, or while a killed server is away. A client
    that connects to such a server again and again could even get its port, and be connected with itself.
    """
    end = int(RANGE.read_text().split()[0])
    found: list[int] = []
    for port in _chance.sample(range(FIRST, end), end - FIRST):
        if len(found) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    assert len(found) == count, f"found {len(found)} free ports from {FIRST} to {end}, expected {count}"
    return found
