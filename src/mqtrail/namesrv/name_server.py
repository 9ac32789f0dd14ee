"""The name server: brokers register with it, clients query it for routes. Pure, like the broker.

It keeps everything in memory and saves only the key-value configuration (kvConfig.json). Name servers do not exchange
data: brokers register with each of them.

Other requests wait while one is served. So requests that read or change a large table are generators that run as jobs
(wire/jobs), and a registration that equals the broker's last one is not parsed.

Source: DefaultRequestProcessor, ClientRequestProcessor, KVConfigManager, apache/rocketmq namesrv/.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

import msgspec

from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.wire import (
    VERSION_STRICT_ROUTE_JSON,
    AddWritePermResponseHeader,
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    ClusterInfo,
    DataVersion,
    DataVersionResponseHeader,
    DeleteTopicInNamesrvHeader,
    Handler,
    InvalidParameter,
    Jobs,
    KvHeader,
    KvResponseHeader,
    KvTable,
    MQError,
    NamespaceHeader,
    Peer,
    PeerId,
    Perm,
    QueryNotFound,
    QueueData,
    Refusal,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    Registration,
    RemotingCommand,
    RequestCode,
    RequestCodeNotSupported,
    ResponseCode,
    RouteHeader,
    Send,
    SystemError_,
    TopicHeader,
    TopicList,
    TopicNotExist,
    TopicRouteData,
    WipeWritePermResponseHeader,
    Work,
    answer,
    dumps_fastjson,
    encode_in_slices,
    encode_list_in_slices,
    read_registration,
    version_of,
)

from .access import Accounts, NameServerAccess, no_accounts
from .config import NameServerConfig
from .routes import MASTER_ID, Registered, RouteTable, check_topic
from .settings import settings_text, update_settings

KV_FILE: Final = "kvConfig.json"
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
EXT_ZONE_NAME: Final = "__ZONE_NAME"
EXT_ZONE_MODE: Final = "__ZONE_MODE"
FILTER_SERVERS_MAX: Final = 1_000  # of one registration; they are read and not kept
BODY_SIZE_MAX: Final = 256 * 1024  # of other requests than a registration: one topic, one version, settings
DIGEST_SIZE_A_SLICE: Final = 4 * 1024 * 1024  # bytes of a registration
TOPICS_AT_ONCE: Final = 1_000  # a registration with fewer topics is served without a pause
BROKERS_A_SLICE: Final = 500  # encoded as JSON
NAMES_A_SLICE: Final = 5_000
VALUES_A_SLICE: Final = 2_000

# Limits of the key-value configuration, which is kept in memory and saved whole. Lengths are characters.
KV_NAMESPACES_MAX: Final = 1_000
KV_VALUES_MAX: Final = 100_000
KV_NAME_LENGTH_MAX: Final = 1_024  # of a namespace, of a key
KV_VALUE_LENGTH_MAX: Final = 64 * 1024
KV_SIZE_MAX: Final = 16 * 1024 * 1024  # total of all keys and values


class NameServer:
    """One name server. files: store of its key-value configuration. accounts: look-up of keys, if acl is set."""

    def __init__(
        self,
        config: NameServerConfig,
        files: ConfigFileStore | None = None,
        *,
        now_ms: int = 0,
        accounts: Accounts = no_accounts,
    ) -> None:
        self.config = config
        self._access = NameServerAccess(config, accounts)
        self.routes = RouteTable(config)
        self._files = ConfigFileStore(MemoryDisk()) if files is None else files
        self._jobs = Jobs(self._files)
        self._registering: dict[str, tuple[PeerId, RemotingCommand]] = {}  # broker address -> the last that came
        self.stalls: dict[str, list[int]] = {}  # work that held the loop -> times, ms; noted by the shell
        self._kv = _read_kv(self._files.load(KV_FILE))
        self._kv_count = sum(map(len, self._kv.values()))
        self._kv_size = sum(len(key) + len(value) for table in self._kv.values() for key, value in table.items())
        self._next_scan_ms = now_ms + config.scan_ms
        self._boot_ms = now_ms
        job = self._jobs.handler
        self._handlers: dict[int, Handler] = {
            RequestCode.REGISTER_BROKER: job(self._register),
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: job(self._route),
            RequestCode.GET_BROKER_CLUSTER_INFO: job(self._cluster),
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: job(self._wipe_write_perm),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: job(self._add_write_perm),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: job(self._topics),
            RequestCode.GET_TOPICS_BY_CLUSTER: job(self._topics_of_cluster),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: job(self._unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: job(self._unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: job(self._unit_topics),
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: job(self._list_kv),
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }

    # Commands, connections and the clock, as in the broker.

    @property
    def refused(self) -> int:
        """Return how many requests access control refused since the start."""
        return self._access.refused

    def connected(self, peer: Peer) -> None:
        """Note a new connection. The name server needs nothing before its first request."""

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Serve one command; return the Sends."""
        if command.is_response:
            return []
        self._files.looked = 0
        return self._after_tables(self._serve(peer, command, partial(self._act, peer, command, now_ms)))

    def _act(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        handler = self._handlers.get(command.code)
        if handler is None:
            raise RequestCodeNotSupported(f" request type {command.code} not supported")
        self._access.check(peer.address.ip, command)
        if len(command.body) > BODY_SIZE_MAX and command.code != RequestCode.REGISTER_BROKER:
            raise SystemError_(
                f"found a body of {len(command.body)} bytes of request {command.code}, expected at most {BODY_SIZE_MAX}"
            )
        return handler(peer, command, now_ms)

    def _serve(self, peer: Peer, command: RemotingCommand, act: Callable[[], list[Send]]) -> list[Send]:
        """Call act; turn an error into an error reply."""
        try:
            sends = act()
        except MQError as error:
            code = error.response_code if isinstance(error, Refusal) else int(ResponseCode.SYSTEM_ERROR)
            if code == ResponseCode.INVALID_PARAMETER and command.version < version_of(5, 0, 0):
                code = ResponseCode.SYSTEM_ERROR
            remark = error.remark if isinstance(error, Refusal) else str(error)
            sends = answer(peer, command, code=code, remark=remark)
        return [] if command.is_oneway else sends

    def _after_tables(self, sends: list[Send]) -> list[Send]:
        number = self._files.looked
        if number <= self._files.settled:
            return sends
        return [replace(send, after_tables=number) for send in sends]

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Remove the brokers that registered over the closed connection."""
        self._jobs.disconnected(peer)
        self._registering = {at: registered for at, registered in self._registering.items() if registered[0] != peer}
        self.routes.disconnect(peer)
        return []

    def next_tick_ms(self) -> int:
        """Return the time of the next `tick`."""
        return 0 if self.routes.has_work or self._jobs.next_due_ms() is not None else self._next_scan_ms

    def tick(self, now_ms: int) -> list[Send]:
        """Continue jobs, and remove brokers whose heartbeat has expired."""
        self._files.looked = 0
        sends: list[Send] = []
        if (job := self._jobs.take()) is not None:
            sends = self._serve(job.peer, job.request, partial(self._jobs.step, job))
        self.routes.work()
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + self.config.scan_ms
            self.routes.expire(now_ms)
        return self._after_tables(sends)

    # Brokers.

    def _register(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """103. SystemError_: the body differs from the header's CRC, or the registration is refused."""
        header = RegisterBrokerHeader.from_ext(request.ext)
        zone = request.ext.get(EXT_ZONE_NAME)
        self._registering[header.broker_addr] = peer.id, request
        try:
            digest = yield from _digest(request.body)
            if not self.routes.renew(header, zone, digest, peer.id, now_ms):
                registered = yield from self._read_registration(header, zone, digest, request)
                if self._registering.get(header.broker_addr) != (peer.id, request):
                    raise SystemError_(
                        f"register broker failed: {header.broker_addr} has registered again, unregistered or closed "
                        "its connection meanwhile"
                    )
                self.routes.register(registered, peer.id, now_ms)
        finally:
            if self._registering.get(header.broker_addr, (None, None))[1] is request:
                del self._registering[header.broker_addr]
        master, ha_address = self.routes.master_of(header)
        ext = RegisterBrokerResponseHeader(ha_address, master).to_ext()
        order = self._kv.get(ORDER_TOPIC_CONFIG) if self.config.order_conf_to_broker else None
        body = (yield from self._kv_body(ORDER_TOPIC_CONFIG)) if order else b""
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
            request.body, compressed=bool(header.compressed), topics_max=self.config.broker_topics_max
        )
        while True:
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
            if len(queues) >= TOPICS_AT_ONCE or not topics:
                yield
        if rest.filter_servers > FILTER_SERVERS_MAX:
            raise InvalidParameter(
                f"found {rest.filter_servers} filter servers of broker {name}, expected at most {FILTER_SERVERS_MAX}: "
                "register fewer"
            )
        if len(queues) >= TOPICS_AT_ONCE:
            yield
        return Registered(header, zone, rest.data_version, queues, digest)

    def _unregister(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """104."""
        header = BrokerHeader.from_ext(request.ext)
        self._registering.pop(header.broker_addr, None)
        self.routes.unregister(header.broker_addr, header.broker_name, header.broker_id)
        return answer(peer, request)

    def _data_version(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """322: return whether the broker's topics have changed since its registration."""
        header = BrokerHeader.from_ext(request.ext)
        version = DataVersion.decode(request.body or b"{}")
        changed, known = self.routes.refresh(header, version, now_ms)
        body = b"" if known is None else known.encode()
        return answer(peer, request, DataVersionResponseHeader(changed).to_ext(), body=body)

    def _heartbeat(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """904: heartbeat of a registered broker. One of an unknown broker is answered, without effect."""
        header = BrokerHeartbeatHeader.from_ext(request.ext)
        self.routes.seen(header.broker_addr, now_ms)
        return answer(peer, request)

    # Routes.

    def _route(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """105. The body is standard JSON for clients from 4.9.4 or on request, otherwise broker ids are unquoted."""
        config = self.config
        if config.wait_for_service and now_ms - self._boot_ms < config.wait_for_service_ms:
            raise SystemError_(
                f"name server not ready: found {now_ms - self._boot_ms} ms since its start, expected "
                f"{config.wait_for_service_ms} (waitSecondsForService): brokers are still registering"
            )
        header = RouteHeader.from_ext(request.ext)
        route = self.routes.route(header.topic)
        if route is None:
            raise TopicNotExist(
                f"No topic route info in name server for the topic: {header.topic}: no live broker has registered it; "
                "check that the topic exists and that its brokers know this name server"
            )
        if self.config.order_conf_in_route:
            conf = self._kv.get(ORDER_TOPIC_CONFIG, {}).get(header.topic)
            route = msgspec.structs.replace(route, order_topic_conf=conf)
        if request.ext.get(EXT_ZONE_MODE, "").lower() == "true" and request.ext.get(EXT_ZONE_NAME):
            route = _of_zone(route, request.ext[EXT_ZONE_NAME])
        strict = request.version >= VERSION_STRICT_ROUTE_JSON or header.accept_standard_json_only is True
        if len(route.broker_datas) <= BROKERS_A_SLICE:
            return answer(peer, request, body=route.encode(strict=strict))
        return answer(peer, request, body=(yield from route.encode_in_slices(BROKERS_A_SLICE, strict=strict)))

    def _cluster(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """106."""
        rest = ClusterInfo({}, self.routes.clusters())
        groups = self.routes.groups()
        body = yield from encode_in_slices(rest, "brokerAddrTable", groups, BROKERS_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def _member_group(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """901."""
        header = BrokerMemberGroupHeader.from_ext(request.ext)
        group = self.routes.group(header.broker_name)
        addresses = group.broker_addrs if group is not None and group.cluster == header.cluster_name else {}
        members = {"brokerAddrs": addresses, "brokerName": header.broker_name, "cluster": header.cluster_name}
        return answer(peer, request, body=dumps_fastjson({"brokerMemberGroup": members}))

    # Topics.

    def _topics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """206."""
        self._require_topic_list()
        return (yield from self._answer_topics(peer, request, self.routes.topics()))

    def _answer_topics(self, peer: Peer, request: RemotingCommand, topics: list[str]) -> Work:
        body = yield from encode_list_in_slices(TopicList(), "topicList", topics, NAMES_A_SLICE)
        return answer(peer, request, body=body)

    def _topics_of_cluster(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """224."""
        self._require_cluster_topic_list()
        header = ClusterHeader.from_ext(request.ext)
        topics = yield from self.routes.topics_of_cluster(header.cluster)
        return (yield from self._answer_topics(peer, request, topics))

    def _require_topic_list(self) -> None:
        if not self.config.topic_list:
            raise SystemError_("disable: enableAllTopicList is off on this name server")

    def _require_cluster_topic_list(self) -> None:
        if not self.config.cluster_topic_list:
            raise SystemError_("disable: enableTopicList is off on this name server")

    def _unit_topics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """311: topics of a unit. 312: topics that units subscribe to. 313: the latter without the former."""
        self._require_cluster_topic_list()
        unit, subscribed = {
            RequestCode.GET_UNIT_TOPIC_LIST: (True, None),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, True),
        }.get(RequestCode(request.code), (False, True))
        topics = yield from self.routes.unit_topics(unit, subscribed)
        return (yield from self._answer_topics(peer, request, topics))

    def _system_topics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """304."""
        names, address = self.routes.system_topics()
        return answer(peer, request, body=TopicList(tuple(names), address).encode())

    def _delete_topic(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """216."""
        header = DeleteTopicInNamesrvHeader.from_ext(request.ext)
        self.routes.delete_topic(header.topic, header.cluster_name)
        return answer(peer, request)

    def _register_topic(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """217."""
        header = TopicHeader.from_ext(request.ext)
        route = TopicRouteData.decode(request.body or b"{}")
        self.routes.register_topic(header.topic, {queues.broker_name: queues for queues in route.queue_datas})
        return answer(peer, request)

    def _wipe_write_perm(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """205."""
        count = yield from self.routes.wipe_write_perm(BrokerNameHeader.from_ext(request.ext).broker_name)
        return answer(peer, request, WipeWritePermResponseHeader(count).to_ext())

    def _add_write_perm(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """327."""
        count = yield from self.routes.add_write_perm(BrokerNameHeader.from_ext(request.ext).broker_name)
        return answer(peer, request, AddWritePermResponseHeader(count).to_ext())

    # Key-value configuration.

    def _put_kv(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """100."""
        header = KvHeader.from_ext(request.ext)
        if header.value is None:
            raise SystemError_(f"found no value for {header.namespace}/{header.key}, expected one")
        self._check_kv_room(header.namespace, header.key, header.value)
        self._change_kv(header.namespace, header.key, header.value)
        return answer(peer, request)

    def _check_kv_room(self, namespace: str, key: str, value: str) -> None:
        """Check the limits for a new value. SystemError_: one would be exceeded."""
        if namespace not in self._kv and len(self._kv) >= KV_NAMESPACES_MAX:
            self._kv = {known: table for known, table in self._kv.items() if table}
        table = self._kv.get(namespace)
        before = None if table is None else table.get(key)
        size = self._kv_size + len(value) - len(before) if before is not None else self._kv_size + len(key) + len(value)
        for what, found, limit in (
            ("a namespace of {} characters", len(namespace), KV_NAME_LENGTH_MAX),
            ("a key of {} characters", len(key), KV_NAME_LENGTH_MAX),
            ("a value of {} characters", len(value), KV_VALUE_LENGTH_MAX),
            ("{} namespaces with this one", len(self._kv) + (table is None), KV_NAMESPACES_MAX),
            ("{} values with this one", self._kv_count + (before is None), KV_VALUES_MAX),
            ("{} characters of keys and values with this one", size, KV_SIZE_MAX),
        ):
            if found > limit:
                raise SystemError_(
                    f"found {what.format(found)}, expected at most {limit}: delete some, or use shorter ones"
                )

    def _change_kv(self, namespace: str, key: str, value: str | None) -> None:
        """Set or delete a value. It is saved together with other concurrent changes."""
        before = self._kv.get(namespace, {}).get(key)
        self._set_kv(namespace, key, value)
        self._files.change(KV_FILE, self._kv_document, lambda: self._set_kv(namespace, key, before))

    def _set_kv(self, namespace: str, key: str, value: str | None) -> None:
        table = self._kv.setdefault(namespace, {})
        before = table.pop(key, None)
        if before is not None:
            self._kv_count -= 1
            self._kv_size -= len(key) + len(before)
        if value is not None:
            table[key] = value
            self._kv_count += 1
            self._kv_size += len(key) + len(value)

    def _kv_document(self) -> Callable[[], bytes]:
        tables = {namespace: table.copy() for namespace, table in self._kv.items()}
        return lambda: dumps_fastjson({"configTable": tables})

    def _get_kv(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """101."""
        header = KvHeader.from_ext(request.ext)
        value = self._kv.get(header.namespace, {}).get(header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return answer(peer, request, KvResponseHeader(value).to_ext())

    def _delete_kv(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """102."""
        header = KvHeader.from_ext(request.ext)
        if header.key in self._kv.get(header.namespace, {}):
            self._change_kv(header.namespace, header.key, None)
        return answer(peer, request)

    def _list_kv(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """219."""
        header = NamespaceHeader.from_ext(request.ext)
        if header.namespace not in self._kv:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace}")
        return answer(peer, request, body=(yield from self._kv_body(header.namespace)))

    def _kv_body(self, namespace: str) -> Generator[None, None, bytes]:
        values = sorted(self._kv[namespace].items())
        return (yield from encode_in_slices(KvTable(), "table", values, VALUES_A_SLICE))

    # Configuration.

    def _get_config(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """319."""
        return answer(peer, request, body=settings_text(self.config).encode())

    def _update_config(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """318. The change lasts until the name server stops. NoPermission, InvalidParameter."""
        update_settings(self.config, str(request.body, "utf-8", "replace"))
        return answer(peer, request)


def _digest(body: bytes) -> Generator[None, None, bytes]:
    digest = blake2b(digest_size=16)
    for first in range(0, len(body), DIGEST_SIZE_A_SLICE):
        if first:
            yield
        digest.update(memoryview(body)[first : first + DIGEST_SIZE_A_SLICE])
    return digest.digest()


def _read_kv(document: dict[str, Any] | None) -> dict[str, dict[str, str]]:
    if document is None:
        return {}
    try:
        return msgspec.convert(document.get("configTable") or {}, dict[str, dict[str, str]])
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"{KV_FILE}: {error}: restore {KV_FILE}.bak or repair it by hand") from error


def _of_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Return the route without brokers of other zones, but keep brokers without a master."""
    brokers = tuple(broker for broker in route.broker_datas if broker.zone_name == zone or broker.master is None)
    names = {broker.broker_name for broker in brokers}
    queues = tuple(queues for queues in route.queue_datas if queues.broker_name in names)
    return msgspec.structs.replace(route, broker_datas=brokers, queue_datas=queues)
