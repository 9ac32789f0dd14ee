"""Addresses as RocketMQ writes them: `ip:port`, the port after the last colon, IPv6 with or without brackets."""

import socket
from collections.abc import Sequence
from typing import Any

NAMESRV_DEFAULT = "127.0.0.1:9876"
SHOWN_MAX = 200  # characters of a wrong address that an error quotes


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of `host:port`, `[v6]:port` or `v6:port`; ValueError names what was found."""
    host, colon, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"address {address[:SHOWN_MAX]!r} is not host:port with a port of 1 to 65535, such as 127.0.0.1:9876"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_address(host: str, port: int | None) -> tuple[int, int, int, Any]:
    """Return family, kind, protocol and socket address to listen on, of an IP address or a host name.

    OSError: the name is unknown. UnicodeError: no host name has such a part.
    """
    # Python encodes a text by the rules of international names, whose tables take a third of a MiB.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    return family, kind, protocol, address


def address_list(text: str) -> list[str]:
    """Return the parts of "host:port;host:port", without blanks around them; they may be no addresses."""
    return [address for part in text.split(";") if (address := part.strip())]


def parse_namesrv(text: str | Sequence[str], *, required: bool = True) -> tuple[str, ...]:
    """Return the addresses of "host:port;host:port" (or of a sequence), in order and without repeats.

    ValueError: a part is not host:port, or there is no address and one is required.
    """
    parts = address_list(text) if isinstance(text, str) else list(text)
    addresses: dict[str, None] = {}
    for part in (part.strip().removeprefix("http://") for part in parts if part.strip()):
        try:
            split_address(part)
        except ValueError:
            raise ValueError(
                f"name server address: found {part[:SHOWN_MAX]!r}, expected host:port, for example {NAMESRV_DEFAULT}"
            ) from None
        addresses[part] = None
    if required and not addresses:
        raise ValueError(f"found no name server address in {str(text)[:SHOWN_MAX]!r}, expected host:port;host:port")
    return tuple(addresses)
