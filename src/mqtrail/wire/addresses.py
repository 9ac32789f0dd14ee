"""Address rules: the patterns of ACL files, the addresses and CIDR blocks of 5.x policies, loopback addresses, and the
members of a group.

    (blank)                   none
    *  *.*.*.*  *:*:*:*:*:*:*:*   all
    10.1.2.{3,4}              a list of last parts; fe80::{1,2f} as well
    10.1.2.3,10.1.2.4         a list of addresses
    10.1.*  10.1.2.*  10.1.2.5-20     a range of the second, third or fourth part, with any parts after it
    fe80:*  2::ac5:78:1-200:*         a range of a group behind the given groups
    10.1.2.3  fe80::1         one address

Source: RemoteAddressStrategyFactory, AclUtils (4.9), IPAddressUtils (5.x), apache/rocketmq acl/ and common/.
"""

import ipaddress
from collections.abc import Callable
from typing import Final

from .errors import InvalidParameter

__all__ = [
    "AddressMatcher",
    "address_matcher",
    "block_matcher",
    "is_loopback",
    "parse_peers",
]

AddressMatcher = Callable[[str], bool]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ALL: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
V4_PARTS: Final = 4
V6_PARTS: Final = 8


def address_matcher(pattern: str) -> AddressMatcher:
    """Return a function that tests addresses against a pattern of an ACL file. InvalidParameter: not a pattern."""
    text = pattern.strip()
    if not text:
        return _none
    if text in ALL:
        return _all
    if text.endswith("}"):
        head, brace, last = text[:-1].rpartition("{")
        if not brace or not head.endswith((".", ":")):
            raise _wrong(pattern)
        return _one_of([_address(head + part, pattern) for part in last.split(",")])
    if "," in text:
        return _one_of([_address(part, pattern) for part in text.split(",")])
    if "*" in text or "-" in text:
        return _range(text, pattern)
    return _one_of([_address(text, pattern)])


def block_matcher(text: str) -> AddressMatcher:
    """Return a function that tests addresses against a policy's address or CIDR block. InvalidParameter: neither."""
    try:
        if "/" not in text:
            return _one_of([ipaddress.ip_address(text.strip())])
        block = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InvalidParameter(
            f"The source ip is invalid: found {text!r}, expected an address or a block such as 10.1.0.0/16"
        ) from None

    def is_in(ip: str) -> bool:
        address = parse_address(ip)
        return address is not None and address.version == block.version and address in block

    return is_in


def parse_address(ip: str) -> Address | None:
    """Return a peer's address; None: it has no IP address (a test, a socket file)."""
    try:
        return ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None


def _none(ip: str) -> bool:
    return False


def _all(ip: str) -> bool:
    return True


def _one_of(addresses: list[Address]) -> AddressMatcher:
    wanted = frozenset(addresses)
    return lambda ip: parse_address(ip) in wanted


def _range(text: str, pattern: str) -> AddressMatcher:
    """A range in one part: the parts before it must be equal, the parts after it are ignored."""
    is_v6 = ":" in text
    separator, count, base, most = (":", V6_PARTS, 16, 0xFFFF) if is_v6 else (".", V4_PARTS, 10, 255)
    parts = [part.strip() for part in text.split(separator)]
    place = next(index for index, part in enumerate(parts) if "*" in part or "-" in part)
    first, last = _bounds(parts[place], base, most, pattern)
    if any(part not in ("*", "") and "-" not in part for part in parts[place + 1 :]):
        raise _wrong(pattern)
    head = _numbers(parts[:place], count - (len(parts) - place), base, most, pattern)
    if not 0 < len(head) < count:
        raise _wrong(pattern)

    def is_in(ip: str) -> bool:
        address = parse_address(ip)
        if address is None or (address.version == 6) is not is_v6:
            return False
        found = _groups(address)
        return found[: len(head)] == head and first <= found[len(head)] <= last

    return is_in


def _bounds(part: str, base: int, most: int, pattern: str) -> tuple[int, int]:
    if part == "*":
        return 0, most
    low, _, high = part.partition("-")
    try:
        first, last = int(low, base), int(high, base)
    except ValueError:
        raise _wrong(pattern) from None
    if not 0 <= first <= last <= most:
        raise _wrong(pattern)
    return first, last


def _numbers(parts: list[str], count: int, base: int, most: int, pattern: str) -> tuple[int, ...]:
    """Return the parts before the range as numbers, a "::" filled up to count of them."""
    if "" in parts:
        place = parts.index("")
        rest = [part for part in parts if part]
        parts = rest[:place] + ["0"] * (count - len(rest)) + rest[place:]
    try:
        numbers = tuple(int(part, base) for part in parts)
    except ValueError:
        raise _wrong(pattern) from None
    if not all(0 <= number <= most for number in numbers):
        raise _wrong(pattern)
    return numbers


def _groups(address: Address) -> tuple[int, ...]:
    packed = address.packed
    if address.version == 4:
        return tuple(packed)
    return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))


def _address(text: str, pattern: str) -> Address:
    address = parse_address(text.strip())
    if address is None:
        raise _wrong(pattern)
    return address


def _wrong(pattern: str) -> InvalidParameter:
    return InvalidParameter(
        f"Netaddress examine Exception netaddress is {pattern}: expected an address, a list, a range of one part "
        "such as 10.1.2.5-20, or *"
    )


def is_loopback(host: str) -> bool:
    """Return whether an address or host name is a loopback address: only this machine reaches it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def parse_peers(text: str) -> dict[str, str]:
    """Return id -> host:port of `n0-host:port;n1-host:port`, the members of a group. InvalidParameter."""
    peers: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(";"))):
        name, dash, address = part.partition("-")
        host, colon, port = address.rpartition(":")
        if not (name and dash and host and colon and port.isdigit() and name not in peers):
            raise InvalidParameter(
                f"found {part[:60]!r} in the list of peers, expected <id>-<host>:<port>, each id once, joined by ';'"
            )
        peers[name] = address
    return peers
