"""Which brokers live, and which topics have queues on them.

Tables, as Apache's:
    queues    topic -> broker name -> QueueData
    groups    broker name -> cluster, {broker id -> address}
    live      address -> when last heard of, how long it may be silent, data version, connection

A broker registers with all its topics; topics count when they come from the group's master, or the smallest id of a
group that says it may act as one. Whoever is silent too long or hangs up is forgotten, with the topics that have no
other broker.

Source: RouteInfoManager, apache/rocketmq namesrv/routeinfo/.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from mqtrail.wire import (
    BrokerData,
    BrokerHeader,
    ClusterInfo,
    DataVersion,
    InvalidParameter,
    PeerId,
    Perm,
    QueueData,
    RegisterBrokerHeader,
    SystemBusy,
    SystemError_,
    TopicConfigTable,
    TopicRouteData,
    TopicSysFlag,
)

from .config import NameServerConfig

MASTER_ID = 0
NAME_LENGTH_MAX: Final = 255  # of brokers, clusters, zones and topics
ADDRESS_LENGTH_MAX: Final = 255


@dataclass(slots=True)
class LiveBroker:
    """One broker process that registered."""

    header: RegisterBrokerHeader
    peer: PeerId
    version: DataVersion
    seen_ms: int
    expire_ms: int


@dataclass(slots=True)
class BrokerGroup:
    """The processes that share a broker name: a master, and its copies."""

    cluster: str
    acting_master: bool
    zone: str | None
    addresses: dict[int, str] = field(default_factory=dict)

    def data(self, name: str) -> BrokerData:
        return BrokerData(name, dict(sorted(self.addresses.items())), self.cluster, self.acting_master, self.zone)


class RouteTable:
    """The name server's knowledge of brokers and topics."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, BrokerGroup] = {}
        self._live: dict[str, LiveBroker] = {}
        self._route_count = 0  # entries of all topics in _queues

    # Brokers.

    def register(
        self, header: RegisterBrokerHeader, table: TopicConfigTable, zone: str | None, peer: PeerId, now_ms: int
    ) -> tuple[str | None, str | None]:
        """Note a broker and its topics; return its master's (address, HA address), where it is no master itself.

        SystemError_: refused, as 5.3.3 refuses it. SystemBusy, InvalidParameter: more than may be.
        """
        self._check_registration(header, table, zone)
        known = self._live.get(header.broker_addr)
        if known is not None and known.header.broker_name != header.broker_name:  # it goes by another name now
            self.unregister(header.broker_addr, known.header.broker_name, known.header.broker_id)
        group = self._groups.get(header.broker_name)
        first_of_group = group is None
        if group is None:
            if len(table.topic_config_table) == 1:
                # 5.x refuses it: it takes a single topic for an update of a broker that it should know already.
                raise SystemError_(
                    f"register broker failed: found 1 topic in the first registration of {header.broker_name}, "
                    "expected all of the broker's topics"
                )
            group = self._groups[header.broker_name] = BrokerGroup(header.cluster_name, False, zone)
        for broker_id in [broker_id for broker_id, at in group.addresses.items() if at == header.broker_addr]:
            if broker_id != header.broker_id:  # a slave became master, or the other way round
                del group.addresses[broker_id]
        if self._is_older(group, header, table.data_version):
            raise SystemError_(
                f"register broker failed: {group.addresses[header.broker_id]} is registered as {header.broker_name} "
                f"{header.broker_id} with a newer state: give this broker another name or id"
            )
        group.cluster, group.zone = header.cluster_name, zone
        group.acting_master = header.enable_acting_master is True
        known = self._live.get(header.broker_addr)
        is_new = header.broker_id not in group.addresses or known is None
        group.addresses[header.broker_id] = header.broker_addr
        self._take_topics(group, header, table, first_of_group or is_new)
        self._live[header.broker_addr] = LiveBroker(
            header, peer, table.data_version, now_ms, header.heartbeat_timeout_millis or self._config.broker_expire_ms
        )
        master = group.addresses.get(MASTER_ID)
        if header.broker_id == MASTER_ID or master is None:
            return None, None
        live = self._live.get(master)
        return master, None if live is None else live.header.ha_server_addr

    def _check_registration(self, header: RegisterBrokerHeader, table: TopicConfigTable, zone: str | None) -> None:
        """Return if there is room for what a broker tells. SystemBusy, InvalidParameter: there is not."""
        config, topics = self._config, table.topic_config_table
        for what, text, length_max in (
            ("a broker's name", header.broker_name, NAME_LENGTH_MAX),
            ("a cluster's name", header.cluster_name, NAME_LENGTH_MAX),
            ("a zone's name", zone or "", NAME_LENGTH_MAX),
            ("a broker's address", header.broker_addr, ADDRESS_LENGTH_MAX),
            ("a broker's HA address", header.ha_server_addr, ADDRESS_LENGTH_MAX),
        ):
            _check_length(what, text, length_max)
        if header.broker_addr not in self._live and len(self._live) >= config.brokers_max:
            raise SystemBusy(
                f"found {len(self._live)} brokers, expected fewer than {config.brokers_max}: raise brokers_max"
            )
        if len(topics) > config.broker_topics_max:
            raise InvalidParameter(
                f"found {len(topics)} topics of broker {header.broker_name}, expected at most "
                f"{config.broker_topics_max}: delete some, or raise broker_topics_max"
            )
        self._check_room(topics, header.broker_name)

    def _check_room(self, topics: Iterable[str], broker_name: str) -> None:
        """Return if there is room for a broker's topics. SystemBusy, InvalidParameter: there is not."""
        more = 0
        for topic in topics:
            queues = self._queues.get(topic)
            if queues is None:
                _check_length("a topic", topic, NAME_LENGTH_MAX)
            if queues is None or broker_name not in queues:
                more += 1
        if self._route_count + more > self._config.topic_routes_max:
            raise SystemBusy(
                f"found {self._route_count} topics of all brokers and {more} more of {broker_name}, expected at most "
                f"{self._config.topic_routes_max}: delete topics, or raise topic_routes_max"
            )

    def _put_queues(self, topic: str, broker_name: str, data: QueueData) -> None:
        queues = self._queues.setdefault(topic, {})
        self._route_count += broker_name not in queues
        queues[broker_name] = data

    def _is_older(self, group: BrokerGroup, header: RegisterBrokerHeader, version: DataVersion) -> bool:
        """Tell whether another process holds the broker's id with a larger state version."""
        address = group.addresses.get(header.broker_id)
        if address is None or address == header.broker_addr:
            return False
        live = self._live.get(address)
        return live is not None and live.version.state_version > version.state_version

    def _take_topics(
        self, group: BrokerGroup, header: RegisterBrokerHeader, table: TopicConfigTable, is_new: bool
    ) -> None:
        is_master = header.broker_id == MASTER_ID
        acts = header.enable_acting_master is not None and header.broker_id == min(group.addresses)
        if not (is_master or acts):
            return
        known = self._live.get(header.broker_addr)
        changed = is_new or known is None or known.version != table.data_version
        name = header.broker_name
        if changed and self._config.delete_with_registration:
            for topic in [topic for topic, queues in self._queues.items() if name in queues]:
                if topic not in table.topic_config_table:
                    self._remove_queues(topic, name)
        for topic, config in table.topic_config_table.items():
            if changed or name not in self._queues.get(topic, {}):
                perm = config.perm if is_master or not header.enable_acting_master else config.perm & ~Perm.WRITE
                self._put_queues(
                    topic,
                    name,
                    QueueData(name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag),
                )

    def refresh(self, header: BrokerHeader, version: DataVersion, now_ms: int) -> tuple[bool, DataVersion | None]:
        """Note a sign of life; return whether the broker must register again, and the version known of it."""
        live = self._live.get(header.broker_addr)
        if live is None:
            return True, None
        live.seen_ms = now_ms
        return live.version != version, live.version

    def seen(self, address: str, now_ms: int) -> None:
        """Note a sign of life; of a broker that is not registered it is none."""
        live = self._live.get(address)
        if live is not None:
            live.seen_ms = now_ms

    def unregister(self, address: str, broker_name: str, broker_id: int) -> None:
        """Forget a broker, and the topics that were on it alone."""
        self._live.pop(address, None)
        group = self._groups.get(broker_name)
        if group is None:
            return
        if group.addresses.get(broker_id) == address:
            del group.addresses[broker_id]
        if not group.addresses:
            del self._groups[broker_name]
            for topic in [topic for topic, queues in self._queues.items() if broker_name in queues]:
                self._remove_queues(topic, broker_name)
        elif group.acting_master and MASTER_ID not in group.addresses:
            self._set_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        queues = self._queues.get(topic, {})
        if queues.pop(broker_name, None) is not None:
            self._route_count -= 1
        if not queues:
            self._queues.pop(topic, None)

    def disconnect(self, peer: PeerId) -> list[str]:
        """Forget the brokers of a closed connection; return their addresses."""
        return self._forget([live for live in self._live.values() if live.peer == peer])

    def expire(self, now_ms: int) -> list[str]:
        """Forget the brokers that were silent for too long; return their addresses."""
        return self._forget([live for live in self._live.values() if now_ms - live.seen_ms > live.expire_ms])

    def _forget(self, brokers: list[LiveBroker]) -> list[str]:
        for live in brokers:
            self.unregister(live.header.broker_addr, live.header.broker_name, live.header.broker_id)
        return [live.header.broker_addr for live in brokers]

    # What clients ask.

    def route(self, topic: str) -> TopicRouteData | None:
        """Return where the topic's queues are, or None: no live broker has any."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = tuple(self._groups[name].data(name) for name in sorted(queues) if name in self._groups)
        if not brokers:
            return None
        return TopicRouteData(tuple(queues[name] for name in sorted(queues)), brokers)

    def cluster(self) -> ClusterInfo:
        """Return all broker groups, and which cluster each belongs to."""
        clusters: dict[str, list[str]] = {}
        for name, group in sorted(self._groups.items()):
            clusters.setdefault(group.cluster, []).append(name)
        return ClusterInfo(
            {name: group.data(name) for name, group in sorted(self._groups.items())},
            {cluster: tuple(names) for cluster, names in sorted(clusters.items())},
        )

    def group(self, broker_name: str) -> BrokerData | None:
        found = self._groups.get(broker_name)
        return None if found is None else found.data(broker_name)

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = {name for name, group in self._groups.items() if group.cluster == cluster}
        return sorted(topic for topic, queues in self._queues.items() if names & queues.keys())

    def unit_topics(self, unit: bool | None, subscribed: bool | None) -> list[str]:
        """Return the topics whose UNIT and UNIT_SUB bits, on the first of their brokers, are as asked; None: either."""
        found = []
        for topic, queues in sorted(self._queues.items()):
            flags = next(iter(queues.values())).topic_sys_flag
            if unit in (None, bool(flags & TopicSysFlag.UNIT)) and subscribed in (
                None,
                bool(flags & TopicSysFlag.UNIT_SUB),
            ):
                found.append(topic)
        return found

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are topics too, and any broker's address."""
        names = sorted({group.cluster for group in self._groups.values()} | self._groups.keys())
        return names, next(iter(self._live), None)

    # What administrators change.

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write bit from all of a broker's queues; return how many topics it has."""
        return self._set_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Give all of a broker's queues read and write; return how many topics it has."""
        return self._set_perm(broker_name, lambda _: Perm.READ | Perm.WRITE)

    def _set_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._queues.values():
            if broker_name in queues:
                queues[broker_name] = replace(queues[broker_name], perm=change(queues[broker_name].perm))
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic, on one cluster's brokers or on all."""
        for broker_name in list(self._queues.get(topic, {})):
            group = self._groups.get(broker_name)
            if cluster is None or (group is not None and group.cluster == cluster):
                self._remove_queues(topic, broker_name)

    def register_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Note one topic's queues on brokers that are known. SystemBusy, InvalidParameter: there is no room."""
        known = {broker_name: data for broker_name, data in queues.items() if broker_name in self._groups}
        for broker_name in known:
            self._check_room((topic,), broker_name)
        for broker_name, data in known.items():
            self._put_queues(topic, broker_name, data)


def _check_length(what: str, text: str, length_max: int) -> None:
    if len(text) > length_max:
        raise InvalidParameter(
            f"found {what} of {len(text)} characters ({text[:40]}…), expected at most {length_max}: use a shorter one"
        )
