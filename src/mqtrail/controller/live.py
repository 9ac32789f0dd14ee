"""Which brokers are alive: their heartbeats (904) at this controller. Each controller has its own view."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import (
    ELECTION_PRIORITY_LAST,
    BrokerHeartbeatHeader,
    InvalidParameter,
    PeerId,
    SystemBusy,
)

BROKERS_MAX: Final = 10_000
NAME_MAX: Final = 255  # characters of a brokerName
EXPIRE_MS_MAX: Final = 3_600_000  # the longest time of its own that counts
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
    address: str


class HeardBrokers:
    """Heartbeats by broker. expire_ms: for brokers that send no time of their own. is_member: whether a broker has an
    id in its group; others make room for those that have."""

    def __init__(self, expire_ms: int, is_member: Callable[[BrokerKey], bool] = lambda key: False) -> None:
        self._expire_ms = expire_ms
        self._is_member = is_member
        self._by_peer: dict[PeerId, set[BrokerKey]] = {}
        self._brokers: dict[BrokerKey, HeardBroker] = {}
        self._ever: set[BrokerKey] = set()  # brokers heard since the start
        self._closed: set[BrokerKey] = set()  # of these, those whose connection closed

    def heartbeat(self, peer: PeerId, header: BrokerHeartbeatHeader, now_ms: int) -> None:
        """Note a heartbeat. SystemBusy: too many brokers. InvalidParameter: the name is too long; as of check_alone."""
        assert header.broker_id is not None
        key = (header.broker_name, header.broker_id)
        if len(header.broker_name) > NAME_MAX:
            raise InvalidParameter(
                f"found a brokerName of {len(header.broker_name)} characters, expected at most {NAME_MAX}"
            )
        self.check_alone(peer, key, header.broker_addr, now_ms)
        if key not in self._brokers and len(self._brokers) >= BROKERS_MAX:
            self._make_room()
        before = self._brokers.get(key)
        if before is not None and before.peer != peer:
            self._leave(before.peer, key)
        self._by_peer.setdefault(peer, set()).add(key)
        if len(self._ever) >= 2 * BROKERS_MAX:
            self._ever, self._closed = set(self._brokers), set()
        self._ever.add(key)
        self._closed.discard(key)
        self._brokers[key] = HeardBroker(
            peer,
            now_ms,
            min(header.heartbeat_timeout_mills or self._expire_ms, EXPIRE_MS_MAX),
            -1 if header.epoch is None else header.epoch,
            -1 if header.max_offset is None else header.max_offset,
            ELECTION_PRIORITY_LAST if header.election_priority is None else header.election_priority,
            header.broker_addr,
        )

    def _make_room(self) -> None:
        """Forget the brokers that are in no group. SystemBusy: all are."""
        for key in [key for key in self._brokers if not self._is_member(key)]:
            self._forget(key)
        if len(self._brokers) >= BROKERS_MAX:
            raise SystemBusy(f"found {BROKERS_MAX} brokers with heartbeats, expected fewer")

    def _forget(self, key: BrokerKey) -> None:
        self._leave(self._brokers.pop(key).peer, key)

    def _leave(self, peer: PeerId, key: BrokerKey) -> None:
        keys = self._by_peer[peer]
        keys.discard(key)
        if not keys:
            del self._by_peer[peer]

    def was_heard(self, broker_name: str, broker_id: int) -> bool:
        """Whether a heartbeat of this broker came since the start."""
        return (broker_name, broker_id) in self._ever

    def check_alone(self, peer: PeerId, key: BrokerKey, address: str, now_ms: int) -> None:
        """InvalidParameter: a living process at another address has this id: both would be master together."""
        known = self._brokers.get(key)
        if known is None or known.peer == peer or now_ms - known.heard_ms > known.expire_ms:
            return
        if known.address != address:
            raise InvalidParameter(
                f"found a broker at {address} with the id {key[1]} of {key[0]}, expected none, since the one at "
                f"{known.address} has it and is alive: a data folder was copied with its brokerIdentity; stop one of "
                "the two, and start it with an empty folder"
            )

    def disconnected(self, peer: PeerId) -> set[str]:
        """Forget the brokers whose connection closed; return the names of their groups."""
        keys = [*self._by_peer.get(peer, ())]
        for key in keys:
            self._forget(key)
            self._closed.add(key)
        return {name for name, _ in keys}

    def has_closed(self, broker_name: str, broker_id: int) -> bool:
        """Whether this broker is not heard because its connection closed."""
        return (broker_name, broker_id) in self._closed

    def excuse(self, late_ms: int, now_ms: int) -> None:
        """Do not count time in which this controller did nothing: heartbeats may have arrived and wait to be read."""
        for broker in self._brokers.values():
            broker.heard_ms = min(now_ms, broker.heard_ms + late_ms)

    def expire(self, now_ms: int) -> None:
        """Forget the brokers whose heartbeats stopped."""
        for key in [key for key, broker in self._brokers.items() if now_ms - broker.heard_ms > broker.expire_ms]:
            self._forget(key)

    def of_group(self, broker_name: str, ids: Iterable[int], now_ms: int) -> dict[int, HeardBroker]:
        """Return those of these brokers that are alive."""
        found = {}
        for broker_id in ids:
            broker = self._brokers.get((broker_name, broker_id))
            if broker is not None and now_ms - broker.heard_ms <= broker.expire_ms:
                found[broker_id] = broker
        return found
