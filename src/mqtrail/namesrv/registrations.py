"""Requests of brokers and operators that change routes: registrations, heartbeats, topics and permissions.

A registration may have 100,000 topics, so it is read in slices, unless it equals the broker's last one: then it is not
read. A later registration of the broker, its unregistration, or the end of its connection cancels one that is being
read.

Source: DefaultRequestProcessor, apache/rocketmq namesrv/.
"""

from collections.abc import Generator
from hashlib import blake2b
from itertools import count
from typing import Final
from zlib import crc32

from mqtrail.wire import (
    MASTER_ID,
    ORDER_TOPIC_CONFIG,
    AddWritePermResponseHeader,
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    DataVersion,
    DataVersionResponseHeader,
    DeleteTopicInNamesrvHeader,
    InvalidParameter,
    Peer,
    PeerId,
    Perm,
    QueueData,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    Registration,
    RemotingCommand,
    Send,
    SystemError_,
    TopicHeader,
    TopicRouteData,
    WipeWritePermResponseHeader,
    Work,
    answer,
    read_registration,
)

from .config import NameServerConfig
from .key_values import KeyValues
from .route_tables import EXT_ZONE_NAME, Registered, RouteTable, check_topic

FILTER_SERVERS_MAX: Final = 1_000  # of one registration; they are read and not kept
DIGEST_SIZE_A_SLICE: Final = 4 * 1024 * 1024  # bytes of a registration
TOPICS_AT_ONCE: Final = 1_000  # a registration with fewer topics is served without a pause


class Registrations:
    """Changes the routes of one name server."""

    def __init__(self, config: NameServerConfig, routes: RouteTable, key_values: KeyValues) -> None:
        self._config = config
        self._routes = routes
        self._key_values = key_values
        self._registering: dict[str, tuple[PeerId, RemotingCommand]] = {}  # broker address -> its latest registration

    def disconnected(self, peer: PeerId) -> None:
        """Forget the registrations of a closed connection that are being read."""
        self._registering = {at: registered for at, registered in self._registering.items() if registered[0] != peer}

    def register(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """103. SystemError_: the body differs from the header's CRC, or the registration is refused."""
        header = RegisterBrokerHeader.from_ext(request.ext)
        zone = request.ext.get(EXT_ZONE_NAME)
        self._registering[header.broker_addr] = peer.id, request
        try:
            digest = yield from _digest(request.body)
            if not self._routes.renew(header, zone, digest, peer.id, now_ms):
                registered = yield from self._read_registration(header, zone, digest, request)
                coming = yield from self._routes.prepare(registered)
                try:
                    if self._registering.get(header.broker_addr) != (peer.id, request):
                        raise SystemError_(
                            f"register broker failed: {header.broker_addr} has registered again, unregistered or "
                            "closed its connection meanwhile"
                        )
                    self._routes.register(coming, peer.id, now_ms)
                finally:
                    self._routes.forget(coming)
        finally:
            if self._registering.get(header.broker_addr, (None, None))[1] is request:
                del self._registering[header.broker_addr]
        master, ha_address = self._routes.master_of(header)
        ext = RegisterBrokerResponseHeader(ha_address, master).to_ext()
        body = b""
        if self._config.order_conf_to_broker and self._key_values.has_values(ORDER_TOPIC_CONFIG):
            body = yield from self._key_values.encoded(ORDER_TOPIC_CONFIG)
        return answer(peer, request, ext, body=body)

    def _read_registration(
        self, header: RegisterBrokerHeader, zone: str | None, digest: bytes, request: RemotingCommand
    ) -> Generator[None, None, Registered]:
        found = crc32(request.body) & 0x7FFFFFFF
        if header.body_crc32 and header.body_crc32 != found:
            raise SystemError_(f"crc32 not match: found {found}, expected {header.body_crc32} (bodyCrc32)")
        if len(request.body) > DIGEST_SIZE_A_SLICE:
            yield
        name = header.broker_name
        writable = header.broker_id == MASTER_ID or not header.enable_acting_master
        denied = 0 if writable else Perm.WRITE
        queues: dict[str, QueueData] = {}
        reader = read_registration(
            request.body, compressed=bool(header.compressed), topics_max=self._config.broker_topics_max
        )
        for number in count():
            try:
                topics = next(reader)
            except StopIteration as end:
                rest: Registration = end.value
                break
            for topic, registered in topics.items():
                check_topic(topic)
                perm = registered.perm & ~denied
                queues[topic] = QueueData(
                    name, registered.read_queue_nums, registered.write_queue_nums, perm, registered.topic_sys_flag
                )
            if number or len(queues) >= TOPICS_AT_ONCE or not topics:  # a slice may have one name many times
                yield
        if rest.filter_servers > FILTER_SERVERS_MAX:
            raise InvalidParameter(
                f"found {rest.filter_servers} filter servers of broker {name}, expected at most {FILTER_SERVERS_MAX}: "
                "register fewer"
            )
        if len(queues) >= TOPICS_AT_ONCE:
            yield
        return Registered(header, zone, rest.data_version, queues, digest)

    def unregister(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """104."""
        header = BrokerHeader.from_ext(request.ext)
        self._registering.pop(header.broker_addr, None)
        self._routes.unregister(header.broker_addr, header.broker_name, header.broker_id)
        return answer(peer, request)

    def data_version(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """322: return whether the broker's topics have changed since its registration."""
        header = BrokerHeader.from_ext(request.ext)
        version = DataVersion.decode_request(request.body or b"{}")
        changed, known = self._routes.refresh(header, version, now_ms)
        body = b"" if known is None else known.encode()
        return answer(peer, request, DataVersionResponseHeader(changed).to_ext(), body=body)

    def heartbeat(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """904: heartbeat of a registered broker. That of an unknown broker gets a reply and has no effect."""
        header = BrokerHeartbeatHeader.from_ext(request.ext)
        self._routes.seen(header.broker_addr, now_ms)
        return answer(peer, request)

    def delete_topic(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """216."""
        header = DeleteTopicInNamesrvHeader.from_ext(request.ext)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return answer(peer, request)

    def register_topic(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """217."""
        header = TopicHeader.from_ext(request.ext)
        route = TopicRouteData.decode_request(request.body or b"{}")
        self._routes.register_topic(header.topic, {queues.broker_name: queues for queues in route.queue_datas})
        return answer(peer, request)

    def wipe_write_perm(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """205."""
        count = yield from self._routes.wipe_write_perm(BrokerNameHeader.from_ext(request.ext).broker_name)
        return answer(peer, request, WipeWritePermResponseHeader(count).to_ext())

    def add_write_perm(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """327."""
        count = yield from self._routes.add_write_perm(BrokerNameHeader.from_ext(request.ext).broker_name)
        return answer(peer, request, AddWritePermResponseHeader(count).to_ext())


def _digest(body: bytes) -> Generator[None, None, bytes]:
    digest = blake2b(digest_size=16)
    for first in range(0, len(body), DIGEST_SIZE_A_SLICE):
        if first:
            yield
        digest.update(memoryview(body)[first : first + DIGEST_SIZE_A_SLICE])
    return digest.digest()
