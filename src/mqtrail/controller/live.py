"""Which brokers are alive: their heartbeats (904) at this controller. Each controller has its own view."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import ELECTION_PRIORITY_LAST, BrokerHeartbeatHeader, PeerId, SystemBusy

BROKERS_MAX: Final = 10_000
BrokerKey = tuple[str, int]  # brokerName, id


@dataclass(slots=True)
class HeardBroker:
    """The last heartbeat of a broker."""

    peer: PeerId
    heard_ms: int
    expire_ms: int
    epoch: int
    max_offset: int
    priority: int


class HeardBrokers:
    """Heartbeats by broker. expire_ms: for brokers that send no time of their own."""

    def __init__(self, expire_ms: int) -> None:
        self._expire_ms = expire_ms
        self._brokers: dict[BrokerKey, HeardBroker] = {}
        self._ever: set[BrokerKey] = set()  # brokers heard since the start
        self._closed: set[BrokerKey] = set()  # of these, those whose connection closed

    def heartbeat(self, peer: PeerId, header: BrokerHeartbeatHeader, now_ms: int) -> None:
        """Note a heartbeat. SystemBusy: too many brokers."""
        assert header.broker_id is not None
        key = (header.broker_name, header.broker_id)
        if key not in self._brokers and len(self._brokers) >= BROKERS_MAX:
            raise SystemBusy(f"found {BROKERS_MAX} brokers with heartbeats, expected fewer")
        if len(self._ever) >= 2 * BROKERS_MAX:
            self._ever, self._closed = set(self._brokers), set()
        self._ever.add(key)
        self._closed.discard(key)
        self._brokers[key] = HeardBroker(
            peer,
            now_ms,
            header.heartbeat_timeout_mills or self._expire_ms,
            -1 if header.epoch is None else header.epoch,
            -1 if header.max_offset is None else header.max_offset,
            ELECTION_PRIORITY_LAST if header.election_priority is None else header.election_priority,
        )

    def was_heard(self, broker_name: str, broker_id: int) -> bool:
        """Whether a heartbeat of this broker came since the start."""
        return (broker_name, broker_id) in self._ever

    def disconnected(self, peer: PeerId) -> None:
        """Forget the brokers whose connection closed."""
        for key in [key for key, broker in self._brokers.items() if broker.peer == peer]:
            del self._brokers[key]
            self._closed.add(key)

    def has_closed(self, broker_name: str, broker_id: int) -> bool:
        """Whether this broker is not heard because its connection closed."""
        return (broker_name, broker_id) in self._closed

    def expire(self, now_ms: int) -> None:
        """Forget the brokers whose heartbeats stopped."""
        for key in [key for key, broker in self._brokers.items() if now_ms - broker.heard_ms > broker.expire_ms]:
            del self._brokers[key]

    def of_group(self, broker_name: str, ids: Iterable[int], now_ms: int) -> dict[int, HeardBroker]:
        """Return those of these brokers that are alive."""
        found = {}
        for broker_id in ids:
            broker = self._brokers.get((broker_name, broker_id))
            if broker is not None and now_ms - broker.heard_ms <= broker.expire_ms:
                found[broker_id] = broker
        return found
