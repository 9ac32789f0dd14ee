"""The live brokers, and the topics with queues on them.

Tables, as Apache's:
    topics    broker name -> topic -> QueueData
    names     topic -> names of brokers that may have it
    groups    broker name -> cluster, {broker id -> address}
    live      address -> last heartbeat, expiry, data version, connection

A broker registers with all its topics. Only topics of a group's master are used, or those of the smallest id in a group
with an acting master. A broker is removed if its heartbeat expires or its connection closes, together with topics that
no other broker has.

Tables may be large (topic_routes_max entries), and requests wait while one is scanned. So each scan is a generator that
yields after ROUTES_A_SLICE entries. `topics` alone says which broker has a topic: a registration replaces a broker's
table there in one step. `names` may have more: a broker's name is added before its registration counts (`prepare`), in
slices, and removed after the topic is gone from its table (`work`), in slices as well.

Source: RouteInfoManager, apache/rocketmq namesrv/routeinfo/.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mqtrail.wire import (
    MASTER_ID,
    BrokerData,
    BrokerHeader,
    DataVersion,
    PeerId,
    Perm,
    QueueData,
    RegisterBrokerHeader,
    SystemBusy,
    SystemError_,
    TopicRouteData,
    TopicSysFlag,
    check_length,
)

from .config import NameServerConfig

EXT_ZONE_NAME: Final = "__ZONE_NAME"  # a field of registrations and of requests for routes
NAME_LENGTH_MAX: Final = 255  # of brokers, clusters, zones and topics
ADDRESS_LENGTH_MAX: Final = 255
ROUTES_A_SLICE: Final = 10_000  # table entries that are read or changed without a pause


@dataclass(frozen=True, slots=True, eq=False)
class Registered:
    """The content of a registration. queues: by topic. digest: of the request's body, b'' if unknown."""

    header: RegisterBrokerHeader
    zone: str | None
    version: DataVersion
    queues: dict[str, QueueData]
    digest: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class PendingRegistration:
    """A registration that is not in force yet, and its differences to the broker's table at its arrival.

    kept: topics of the broker that the registration lacks. added: topics that the broker did not have. removals: the
    group's count.
    """

    registered: Registered
    own: dict[str, QueueData]
    removals: int
    kept: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LiveBroker:
    """One registered broker process. removals: the group's count at registration."""

    header: RegisterBrokerHeader
    peer: PeerId
    version: DataVersion
    seen_ms: int
    expire_ms: int
    digest: bytes
    removals: int
    took_topics: bool


@dataclass(slots=True)
class BrokerGroup:
    """The processes that share a broker name: a master and its slaves. removals: topics removed so far."""

    cluster: str
    acting_master: bool
    zone: str | None
    addresses: dict[int, str] = field(default_factory=dict)
    removals: int = 0

    @property
    def is_read_only(self) -> bool:
        """Whether the group has no master now, and another broker acts as one, which takes no messages."""
        return self.acting_master and MASTER_ID not in self.addresses

    def data(self, name: str) -> BrokerData:
        return BrokerData(name, dict(sorted(self.addresses.items())), self.cluster, self.acting_master, self.zone)


class RouteTable:
    """The name server's tables of brokers and topics."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._names: dict[str, dict[str, None]] = {}
        self._groups: dict[str, BrokerGroup] = {}
        self._live: dict[str, LiveBroker] = {}
        self._coming: dict[str, list[PendingRegistration]] = {}  # by broker name
        self._left: dict[str, dict[str, None]] = {}  # broker name -> topics that it may not have any more

    # Brokers.

    def renew(self, header: RegisterBrokerHeader, zone: str | None, digest: bytes, peer: PeerId, now_ms: int) -> bool:
        """Renew an unchanged registration; return False if it has changed or its broker was removed."""
        live, group = self._live.get(header.broker_addr), self._groups.get(header.broker_name)
        if live is None or group is None or not digest or (live.digest, live.header) != (digest, header):
            return False
        if (
            group.addresses.get(header.broker_id) != header.broker_addr
            or (group.cluster, group.zone) != (header.cluster_name, zone)
            or group.acting_master != (header.enable_acting_master is True)
            or group.removals != live.removals
            or _takes_topics(group, header) != live.took_topics
        ):
            return False
        live.peer, live.seen_ms = peer, now_ms
        return True

    def prepare(self, registered: Registered) -> Generator[None, None, PendingRegistration]:
        """Note the broker's name at each of its topics, in slices. Then `register` it, and `forget` the returned value.

        SystemBusy, InvalidParameter: a limit is exceeded.
        """
        name, queues, names = registered.header.broker_name, registered.queues, self._names
        group = self._groups.get(name)
        coming = PendingRegistration(registered, self._topics.get(name, {}), 0 if group is None else group.removals)
        self._check_registration(coming)
        self._coming.setdefault(name, []).append(coming)
        own = coming.own
        for number, topic in enumerate(queues, 1):
            if (brokers := names.get(topic)) is None:
                names[topic] = {name: None}
            else:
                brokers[name] = None
            if topic not in own:
                coming.added.append(topic)
            if number % ROUTES_A_SLICE == 0:
                yield
        for number, topic in enumerate(list(own), 1):
            if topic not in queues:
                coming.kept.append(topic)
            if number % ROUTES_A_SLICE == 0:
                yield
        return coming

    def forget(self, coming: PendingRegistration) -> None:
        """Undo the notes of `prepare`, whether the broker was registered or not."""
        registered = coming.registered
        name = registered.header.broker_name
        self._coming[name].remove(coming)
        if not self._coming[name]:
            del self._coming[name]
        if self._topics.get(name) is not registered.queues:
            self._leave(name, registered.queues)

    def register(self, coming: PendingRegistration, peer: PeerId, now_ms: int) -> None:
        """Register a broker and its topics.

        SystemError_: refused, as RocketMQ 5.3.3 does. SystemBusy, InvalidParameter: a limit is exceeded.
        """
        registered = coming.registered
        header, version = registered.header, registered.version
        self._check_registration(coming)
        known = self._live.get(header.broker_addr)
        if known is not None and known.header.broker_name != header.broker_name:  # its name has changed
            self.unregister(header.broker_addr, known.header.broker_name, known.header.broker_id)
        group = self._groups.get(header.broker_name)
        first_of_group = group is None
        if group is None:
            if len(registered.queues) == 1:
                # RocketMQ 5.x refuses it too: a single topic means an update of a broker that must be known already.
                raise SystemError_(
                    f"register broker failed: found 1 topic in the first registration of {header.broker_name}, "
                    "expected all of the broker's topics"
                )
            group = self._groups[header.broker_name] = BrokerGroup(header.cluster_name, False, registered.zone)
        for broker_id in [broker_id for broker_id, at in group.addresses.items() if at == header.broker_addr]:
            if broker_id != header.broker_id:  # a slave became master, or the other way round
                del group.addresses[broker_id]
        if self._is_older(group, header, version):
            raise SystemError_(
                f"register broker failed: {group.addresses[header.broker_id]} is registered as {header.broker_name} "
                f"{header.broker_id} with a newer state: give this broker another name or id"
            )
        group.cluster, group.zone = header.cluster_name, registered.zone
        group.acting_master = header.enable_acting_master is True
        known = self._live.get(header.broker_addr)
        is_new = header.broker_id not in group.addresses or known is None
        group.addresses[header.broker_id] = header.broker_addr
        takes = _takes_topics(group, header)
        removals = group.removals
        if takes:
            changed = first_of_group or is_new or known is None or known.version != version
            self._take_topics(header.broker_name, coming, changed)
        expire_ms = header.heartbeat_timeout_millis or self._config.broker_expire_ms
        self._live[header.broker_addr] = LiveBroker(
            header,
            peer,
            version,
            now_ms,
            expire_ms,
            registered.digest,
            coming.removals + group.removals - removals,
            takes,
        )

    def master_of(self, header: RegisterBrokerHeader) -> tuple[str | None, str | None]:
        """Return (address, HA address) of a slave's master; (None, None) if the broker is no slave or has no master."""
        group = self._groups.get(header.broker_name)
        master = None if group is None else group.addresses.get(MASTER_ID)
        if header.broker_id == MASTER_ID or master is None:
            return None, None
        live = self._live.get(master)
        return master, None if live is None else live.header.ha_server_addr

    def _check_registration(self, coming: PendingRegistration) -> None:
        """Check the limits for a registration. SystemBusy, InvalidParameter: one would be exceeded."""
        config, registered, header = self._config, coming.registered, coming.registered.header
        for what, text, length_max in (
            ("a broker's name", header.broker_name, NAME_LENGTH_MAX),
            ("a cluster's name", header.cluster_name, NAME_LENGTH_MAX),
            ("a zone's name", registered.zone or "", NAME_LENGTH_MAX),
            ("a broker's address", header.broker_addr, ADDRESS_LENGTH_MAX),
            ("a broker's HA address", header.ha_server_addr, ADDRESS_LENGTH_MAX),
        ):
            check_length(what, text, length_max)
        if header.broker_addr not in self._live and len(self._live) >= config.brokers_max:
            raise SystemBusy(
                f"found {len(self._live)} brokers, expected fewer than {config.brokers_max}: raise brokers_max"
            )
        self._check_room(len(coming.added), header.broker_name)

    def _check_room(self, more: int, broker_name: str) -> None:
        """Check the limit of topics. SystemBusy: it would be exceeded."""
        count = sum(map(len, self._topics.values()))
        if count + more > self._config.topic_routes_max:
            raise SystemBusy(
                f"found {count} topics of all brokers and {more} more of {broker_name}, expected at most "
                f"{self._config.topic_routes_max}: delete topics, or raise topic_routes_max"
            )

    def _is_older(self, group: BrokerGroup, header: RegisterBrokerHeader, version: DataVersion) -> bool:
        """Return whether another process has registered the broker's id with a larger state version."""
        address = group.addresses.get(header.broker_id)
        if address is None or address == header.broker_addr:
            return False
        live = self._live.get(address)
        return live is not None and live.version.state_version > version.state_version

    def _take_topics(self, name: str, coming: PendingRegistration, changed: bool) -> None:
        own, queues = self._topics.get(name, {}), coming.registered.queues
        if not changed:
            table = self._topics.setdefault(name, own)
            for topic in coming.added:
                table.setdefault(topic, queues[topic])
            return
        kept = coming.kept if own is coming.own else list(own.keys() - queues.keys())
        self._topics[name] = queues
        if not self._config.delete_with_registration:
            queues |= {topic: own[topic] for topic in kept if topic in own}
        elif kept:
            self._groups[name].removals += 1
            self._leave(name, kept)

    def refresh(self, header: BrokerHeader, version: DataVersion, now_ms: int) -> tuple[bool, DataVersion | None]:
        """Note a heartbeat; return whether the broker must register again, and its known version."""
        live = self._live.get(header.broker_addr)
        if live is None:
            return True, None
        live.seen_ms = now_ms
        return live.version != version, live.version

    def seen(self, address: str, now_ms: int) -> None:
        """Note a heartbeat; ignore one of an unregistered broker."""
        live = self._live.get(address)
        if live is not None:
            live.seen_ms = now_ms

    def unregister(self, address: str, broker_name: str, broker_id: int) -> None:
        """Remove a broker, and topics that no other broker has."""
        self._live.pop(address, None)
        group = self._groups.get(broker_name)
        if group is None:
            return
        if group.addresses.get(broker_id) == address:
            del group.addresses[broker_id]
        if not group.addresses:
            del self._groups[broker_name]
            self._leave(broker_name, self._topics.pop(broker_name, {}))

    # Names of brokers at topics that they no longer have.

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def work(self) -> None:
        """Remove some of these names."""
        if not self._left:
            return
        name, left = next(iter(self._left.items()))
        own = self._topics.get(name, {})
        coming = self._coming.get(name, ())
        for _ in range(min(len(left), ROUTES_A_SLICE)):
            topic, _ = left.popitem()
            if topic in own or any(topic in other.registered.queues for other in coming):
                continue
            brokers = self._names.get(topic, {})
            brokers.pop(name, None)
            if not brokers:
                self._names.pop(topic, None)
        if not left:
            del self._left[name]

    def _leave(self, broker_name: str, topics: Iterable[str]) -> None:
        """Let `work` remove a broker's name at topics that it no longer has; run the first slice now."""
        is_first = not self._left
        if left := dict.fromkeys(topics):
            self._left.setdefault(broker_name, {}).update(left)
            if is_first:
                self.work()

    def disconnect(self, peer: PeerId) -> list[str]:
        """Remove the brokers of a closed connection; return their addresses."""
        return self._forget([live for live in self._live.values() if live.peer == peer])

    def expire(self, now_ms: int) -> list[str]:
        """Remove the brokers whose heartbeat has expired; return their addresses."""
        return self._forget([live for live in self._live.values() if now_ms - live.seen_ms > live.expire_ms])

    def _forget(self, brokers: list[LiveBroker]) -> list[str]:
        for live in brokers:
            self.unregister(live.header.broker_addr, live.header.broker_name, live.header.broker_id)
        return [live.header.broker_addr for live in brokers]

    # Queries of clients.

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the topic's route, None if no live broker has a queue of it."""
        names = sorted(
            name for name in self._names.get(topic, ()) if name in self._groups and topic in self._topics.get(name, ())
        )
        if not names:
            return None
        groups = [self._groups[name] for name in names]
        queues = [
            _with_perm(data, data.perm & ~Perm.WRITE) if group.is_read_only else data
            for group, data in zip(groups, [self._topics[name][topic] for name in names], strict=True)
        ]
        return TopicRouteData(
            tuple(queues), tuple([group.data(name) for name, group in zip(names, groups, strict=True)])
        )

    def clusters(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the broker groups of each cluster."""
        clusters: dict[str, list[str]] = {}
        for name, group in sorted(self._groups.items(), key=_by_name):
            clusters.setdefault(group.cluster, []).append(name)
        return {cluster: tuple(names) for cluster, names in sorted(clusters.items())}

    def groups(self) -> Iterator[tuple[str, BrokerData]]:
        """Yield broker groups by name, without those removed meanwhile."""
        for name in sorted(self._groups):
            if (group := self._groups.get(name)) is not None:
                yield name, group.data(name)

    def group(self, broker_name: str) -> BrokerData | None:
        found = self._groups.get(broker_name)
        return None if found is None else found.data(broker_name)

    def topics(self, cluster: str | None = None) -> Generator[None, None, list[str]]:
        """Return the topics of all brokers, or of those of a cluster, broker by broker."""
        found: dict[str, None] = {}
        count = 0
        for name in [name for name, group in self._groups.items() if cluster in (None, group.cluster)]:
            own = self._topics.get(name, {})
            found.update(dict.fromkeys(own))
            count += len(own)
            if count >= ROUTES_A_SLICE:
                yield
                count = 0
        return list(found)

    def unit_topics(self, unit: bool | None, subscribed: bool | None) -> Generator[None, None, list[str]]:
        """Return the topics whose UNIT and UNIT_SUB bits on their first broker have these values; None: any value."""
        found = []
        for number, topic in enumerate(list(self._names), 1):
            if number % ROUTES_A_SLICE == 0:
                yield
            first = next((name for name in self._names.get(topic, ()) if topic in self._topics.get(name, ())), None)
            if first is None:
                continue
            flags = self._topics[first][topic].topic_sys_flag
            if unit in (None, bool(flags & TopicSysFlag.UNIT)) and subscribed in (
                None,
                bool(flags & TopicSysFlag.UNIT_SUB),
            ):
                found.append(topic)
        return found

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are also topics, and the address of any broker."""
        names = sorted({group.cluster for group in self._groups.values()} | self._groups.keys())
        return names, next(iter(self._live), None)

    # Changes by administrators.

    def wipe_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Remove the write permission of all queues of a broker; return its number of topics."""
        return self._set_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Set read and write permission of all queues of a broker; return its number of topics."""
        return self._set_perm(broker_name, lambda _: Perm.READ | Perm.WRITE)

    def _set_perm(self, broker_name: str, change: Callable[[int], int]) -> Generator[None, None, int]:
        count = 0
        for number, topic in enumerate(list(self._topics.get(broker_name, ())), 1):
            own = self._topics.get(broker_name, {})  # a registration replaces it
            if (data := own.get(topic)) is not None:
                own[topic] = _with_perm(data, change(data.perm))
                count += 1
            if number % ROUTES_A_SLICE == 0:
                yield
        return count

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Delete a topic, on the brokers of one cluster or on all."""
        for broker_name in list(self._names.get(topic, ())):
            group = self._groups.get(broker_name)
            if group is None or cluster not in (None, group.cluster):
                continue
            if self._topics.get(broker_name, {}).pop(topic, None) is not None:
                group.removals += 1
                self._leave(broker_name, (topic,))

    def register_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Add a topic's queues on registered brokers. SystemBusy, InvalidParameter: a limit is exceeded."""
        known = {broker_name: data for broker_name, data in queues.items() if broker_name in self._groups}
        if not known:
            return
        check_topic(topic)
        self._check_room(sum(topic not in self._topics.get(name, ()) for name in known), next(iter(known)))
        for broker_name, data in known.items():
            self._names.setdefault(topic, {})[broker_name] = None
            self._topics.setdefault(broker_name, {})[topic] = data
            for coming in self._coming.get(broker_name, ()):
                coming.kept.append(topic)


def check_topic(topic: str) -> None:
    """InvalidParameter: a topic's name is too long."""
    if len(topic) > NAME_LENGTH_MAX:
        check_length("a topic", topic, NAME_LENGTH_MAX)


def _with_perm(queues: QueueData, perm: int) -> QueueData:
    return QueueData(queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, perm, queues.topic_sys_flag)


def _takes_topics(group: BrokerGroup, header: RegisterBrokerHeader) -> bool:
    """Return whether a registered broker is its group's master or acting master, whose topics are used."""

    acts = header.enable_acting_master is not None and header.broker_id == min(group.addresses)
    return header.broker_id == MASTER_ID or acts


def _by_name(entry: tuple[str, BrokerGroup]) -> str:
    return entry[0]
