"""The bounds of the door."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import TRACE_TOPIC

from .shares import AddressShares

MIB: Final = 1024 * 1024
PREFIX: Final = "/v1"  # of the plain interface's paths
PRODUCER_GROUP: Final = "HTTP_PRODUCER"  # of messages that come through the door
CLIENT_ID: Final = "http-door"
RECEIVE_COUNT_MAX: Final = 32  # messages of one answer; a broker pops no more
WAIT_S_MAX: Final = 30
INVISIBLE_S_DEFAULT: Final = 60
INVISIBLE_S_MAX: Final = 12 * 3_600
RECEIPTS_MAX: Final = 100  # of one ack, nack or extend
KEY_LENGTH_MAX: Final = 1_000  # characters of a key, a tag, an idempotency key
HEADERS_MAX: Final = 100
LEASE_S_MIN: Final = 10
LEASE_S_DEFAULT: Final = 60
LEASE_S_MAX: Final = 3_600
MEMBER_TOPICS_MAX: Final = 100  # of one request
RETRY_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""After a nack without a delay: by the number of earlier deliveries, as RocketMQ's delay levels 3 to 18."""


Report = Callable[[str, Mapping[str, object]], None]


def _unreported(event: str, fields: Mapping[str, object]) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorConfig:
    """Sizes are bytes. hosts: the names that a request may address; None: any.

    body_size_max: of one message. request_size_max: of a request's body. bodies_size_max: of the bodies of all requests
    under way, without the first BODY_FREE of each. batch_count_max: messages of one request.
    requests_max: requests in progress, without those that wait for messages; further ones are refused. receives_max:
    receives that wait for a message; further ones do not wait. busy_from: publishes under way from which answers ask
    to slow down. address_percent: of requests, receives and connections, the places that one address may hold.
    proxies: addresses that many clients share, a pattern of ACL files. wakes_local: send pmq's wake-ups to
    clients on this machine too. creates_groups: the broker creates groups by itself. report: takes
    the name of an event and its fields, for the log.
    """

    hosts: frozenset[str] | None
    body_size_max: int = 4 * MIB
    request_size_max: int = 8 * MIB
    bodies_size_max: int = 64 * MIB
    batch_count_max: int = 1_000
    requests_max: int = 2_000
    receives_max: int = 1_000
    busy_from: int = 500
    connections_max: int = 4_000
    address_percent: int = 100
    proxies: str = ""
    wakes_local: bool = False
    creates_groups: bool = True
    report: Report = _unreported
    trace_topic: str = TRACE_TOPIC

    def shares(self, places: int) -> AddressShares:
        """Return the shares of so many places."""
        return AddressShares(places, self.address_percent, self.proxies)
