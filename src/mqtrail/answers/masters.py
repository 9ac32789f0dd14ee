"""The masters of a cluster, as its name servers know them."""

from __future__ import annotations

from collections.abc import Iterable

from mqtrail.client import SyncAdmin
from mqtrail.wire import MQError


class UnknownBroker(MQError):
    """The name servers know no such master."""


def masters_of(admin: SyncAdmin, broker: str | None = None) -> dict[str, str]:
    """Return address by name: of one master, by its name or address, or of all. MQError, UnknownBroker.

    Only registered brokers: whoever may ask the console must not make it connect to any address.
    """
    masters = admin.targets()
    found = {name: address for name, address in masters.items() if broker in (None, name, address)}
    if not found:
        raise UnknownBroker(f"found no master {broker!r}, expected one of {', '.join(masters)}")
    return found


def resetting(admin: SyncAdmin, brokers: Iterable[str]) -> frozenset[str]:
    """Return those of the brokers that reset offsets themselves (5.x), also while members are online. MQError."""
    masters = admin.masters()
    return frozenset(name for name in brokers if name in masters and admin.resets_offsets(masters[name]))
