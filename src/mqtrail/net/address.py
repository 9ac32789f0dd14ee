"""Addresses as RocketMQ writes them: `ip:port`, the port after the last colon, IPv6 with or without brackets."""


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of `host:port`, `[v6]:port` or `v6:port`; ValueError names what was found."""
    host, colon, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {address!r} is not host:port with a port of 1 to 65535, such as 127.0.0.1:9876")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
