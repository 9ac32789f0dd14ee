"""Which process of this machine listens on an address, from /proc (Linux)."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
LISTENS: Final = "0A"  # state of a socket in /proc/net/tcp


def listening_processes(addresses: Iterable[str], proc: Path = PROC) -> dict[str, int]:
    """Return host:port -> process id, of the addresses of this machine on which a process of this user listens.

    Processes of other users are left out: their sockets cannot be read.
    """
    places = {address: _places(address) for address in addresses if _is_local(address)}
    wanted = {place for found in places.values() for place in found}
    sockets = {inode: place for inode, place in _listening(proc) if place in wanted}
    owners = {sockets[inode]: process_id for inode, process_id in _owners(proc, sockets)}
    return {
        address: owners[place] for address, found in places.items() if (place := next(filter(owners.get, found), None))
    }


def _places(address: str) -> list[str]:
    """Return how /proc/net/tcp writes an address, and a socket on all addresses: each 4 bytes in reverse order."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    data = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = "".join(data[at : at + 4][::-1].hex() for at in range(0, len(data), 4))
    return [f"{one}:{int(port):04X}" for one in (words.upper(), "0" * len(words), "0" * 32)]


def _is_local(address: str) -> bool:
    """Whether the host is an address of this machine: only such a one can be bound."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            socket.inet_pton(probe.family, host)
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _listening(proc: Path) -> Iterator[tuple[str, str]]:
    """Yield inode and address of each listening socket."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == LISTENS:
                    yield parts[9], parts[1]


def _owners(proc: Path, inodes: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield inode and process id of these sockets."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for folder in proc.glob("[0-9]*/fd"):
        with suppress(OSError):
            for link in folder.iterdir():
                with suppress(OSError):
                    if (inode := wanted.get(str(link.readlink()))) is not None:
                        yield inode, int(folder.parent.name)
