"""The share of the door's places that one client address may hold, so that it cannot take those of all others.

Many clients share a loopback address or that of a proxy, so these have no limit. A client with IPv6 may have all
addresses of a network of 64 bits, so they count as one.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from mqtrail.wire import address_matcher, is_loopback

NETWORK_BITS: Final = 64  # that a client cannot choose


class AddressShares:
    """Places of one kind. count_max: of one address.

    percent: of all places; 100: no bound. proxies: addresses without a bound, a pattern of ACL files.
    """

    def __init__(self, places: int, percent: int = 100, proxies: str = "") -> None:
        self.count_max = max(1, places * percent // 100)
        self._is_bounded = percent < 100
        self._is_proxy = address_matcher(proxies)
        self._counts: Counter[str] = Counter()

    def take(self, ip: str) -> bool:
        """Return whether the address had a place left; then it is taken."""
        if not self.has_room(ip):
            return False
        self.add(ip)
        return True

    def has_room(self, ip: str) -> bool:
        """Return whether the address has a place left."""
        return not self._is_bounded or self._counts[owner_of(ip)] < self.count_max or self._is_shared(ip)

    def add(self, ip: str) -> None:
        """Count a place, whether or not there is one left."""
        if self._is_bounded:
            self._counts[owner_of(ip)] += 1

    def give_back(self, ip: str) -> None:
        """Give a place back."""
        if self._is_bounded:
            owner = owner_of(ip)
            self._counts[owner] -= 1
            if self._counts[owner] <= 0:
                del self._counts[owner]

    def _is_shared(self, ip: str) -> bool:
        return is_loopback(ip) or self._is_proxy(ip)


@lru_cache(maxsize=4096)
def owner_of(ip: str) -> str:
    """Return the address, or the IPv6 network, that counts as one client."""
    try:
        address = ip_address(ip.partition("%")[0])
    except ValueError:
        return ip
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> NETWORK_BITS << NETWORK_BITS))
    return str(address)
