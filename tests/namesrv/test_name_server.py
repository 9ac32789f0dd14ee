"""The name server: registrations, replies to clients, and removal of brokers."""

import gc
import json
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.namesrv import NameServer, NameServerConfig, key_values, queries, registrations, route_tables
from mqtrail.namesrv.key_values import KeyValues
from mqtrail.namesrv.requests import BODY_SIZE_MAX, REQUESTS
from mqtrail.store import ConfigFileStore, MemoryDisk, StoreError
from mqtrail.wire import (
    ORDER_TOPIC_CONFIG,
    BrokerHeader,
    ClusterInfo,
    DataVersion,
    Host,
    KvTable,
    Peer,
    PeerId,
    QueueData,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    dumps_fastjson,
    read_registration,
)
from mqtrail.wire.body import REQUEST_DIALECT_NODES_MAX

NOW_MS = 1_700_000_000_000
BROKER, OTHER, CLIENT = (Peer(PeerId(number), Host("10.0.0.1", 5000 + number)) for number in (1, 2, 3))
FRAMES = Path(__file__).parents[1] / "golden" / "frames.jsonl"


class Bench:
    """One name server and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = NOW_MS
        self.files = ConfigFileStore(MemoryDisk())
        self.server = NameServer(NameServerConfig(**settings), self.files, now_ms=NOW_MS)

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", peer: Peer = CLIENT, version: int = 479
    ) -> RemotingCommand:
        command = RemotingCommand(code, ext or {}, body, opaque=7, version=version)
        (send,) = self.server.handle(peer, command, self.now_ms)
        assert (send.peer, send.command.opaque) == (peer.id, 7)
        return send.command

    def tell(self, request: RemotingCommand, peer: Peer = CLIENT) -> tuple[RemotingCommand, int]:
        """Send a request and tick until it is answered; return the reply and the number of ticks."""
        request.opaque = 7
        sends = self.server.handle(peer, request, self.now_ms)
        for ticks in range(1_000):
            if sends:
                return sends[0].command, ticks
            assert self.server.next_tick_ms() <= self.now_ms
            sends = self.server.tick(self.now_ms)
        raise AssertionError("no answer")

    def register(
        self,
        name: str = "a",
        address: str = "1.1.1.1:10911",
        *,
        topics: tuple[str, ...] = ("orders", "TBW102"),
        broker_id: int = 0,
        version: DataVersion | None = None,
        peer: Peer = BROKER,
        perm: int = 6,
        **header: Any,
    ) -> RemotingCommand:
        table = {topic: TopicConfig(topic, 4, 4, perm) for topic in topics}
        body = RegisterBrokerBody(TopicConfigTable(table, version or DataVersion(1))).encode()
        fields = RegisterBrokerHeader(name, address, "C", f"{address}1", broker_id, **header)
        return self.tell(RemotingCommand(RequestCode.REGISTER_BROKER, fields.to_ext(), body), peer)[0]

    def route(self, topic: str = "orders", **fields: Any) -> TopicRouteData | None:
        reply = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, **fields)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return TopicRouteData.decode(reply.body)

    def advance(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (next_ms := self.server.next_tick_ms()) <= end_ms:
            self.now_ms = next_ms
            self.server.tick(next_ms)
        self.now_ms = end_ms


def test_a_route_in_both_dialects() -> None:
    """Clients from 4.9.4, and requests for it, get standard JSON; older ones get unquoted broker ids."""
    bench = Bench()
    bench.register()
    strict = bench.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    asked = bench.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders", "acceptStandardJsonOnly": "true"}, version=317
    )
    old = bench.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, version=317)
    assert strict.body == asked.body
    assert json.loads(strict.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "1.1.1.1:10911"}
    assert b'"brokerAddrs":{0:"1.1.1.1:10911"}' in old.body


def test_an_unknown_topic() -> None:
    """No route is code 17 with a remedy."""
    reply = Bench().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "absent"})
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark is not None
    assert "No topic route info in name server for the topic: absent" in reply.remark


def test_silent_brokers_are_forgotten() -> None:
    """After 120 s, or the broker's own timeout, it is removed with the topics that no other broker has."""
    bench = Bench()
    bench.register("a")
    bench.register("b", "2.2.2.2:10911", peer=OTHER, topics=("orders", "b_only"), heartbeat_timeout_millis=10_000)
    bench.advance(15_000)
    route = bench.route()
    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["a"]
    assert bench.route("b_only") is None
    bench.advance(110_000)
    assert bench.route() is None


def test_a_sign_of_life_keeps_a_broker() -> None:
    """QUERY_DATA_VERSION counts as a heartbeat and returns whether topics changed."""
    bench = Bench()
    bench.register(version=DataVersion(5))
    ext = BrokerHeader("a", "1.1.1.1:10911", "C", 0).to_ext()
    for _ in range(3):
        bench.advance(100_000)
        same = bench.ask(RequestCode.QUERY_DATA_VERSION, ext, DataVersion(5).encode())
        assert same.ext == {"changed": "false"}
    newer = bench.ask(RequestCode.QUERY_DATA_VERSION, ext, DataVersion(6).encode())
    assert (newer.ext, DataVersion.decode(newer.body)) == ({"changed": "true"}, DataVersion(5))
    unknown = bench.ask(
        RequestCode.QUERY_DATA_VERSION, BrokerHeader("x", "9.9.9.9:1", "C", 0).to_ext(), DataVersion(5).encode()
    )
    assert unknown.ext == {"changed": "true"}


def test_a_closed_connection_is_the_end() -> None:
    """A broker is removed when its connection closes; brokers of other connections are not."""
    bench = Bench()
    bench.register()
    bench.server.disconnected(OTHER.id)
    assert bench.route() is not None
    bench.server.disconnected(BROKER.id)
    assert bench.route() is None


def test_a_broker_that_reconnected_survives_its_old_connection() -> None:
    """If the old connection's end is noticed after a new registration, it must not undo that."""
    bench = Bench()
    bench.register(peer=BROKER)
    bench.register(peer=OTHER)
    bench.server.disconnected(BROKER.id)
    assert bench.route() is not None


def test_unregister() -> None:
    """104 removes the broker."""
    bench = Bench()
    bench.register()
    bench.ask(RequestCode.UNREGISTER_BROKER, BrokerHeader("a", "1.1.1.1:10911", "C", 0).to_ext())
    assert bench.route() is None


def test_the_trap_of_one_topic() -> None:
    """As in 5.x, a broker's first registration with exactly one topic is refused; a later one is an update."""
    bench = Bench()
    refused = bench.register(topics=("orders",))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    bench.register()
    assert bench.register(topics=("more",), version=DataVersion(2)).code == ResponseCode.SUCCESS
    assert bench.route("more") is not None
    assert bench.route("orders") is not None


def test_a_topic_that_is_gone_stays_by_default() -> None:
    """A registration removes topics only with deleteTopicWithBrokerRegistration."""
    for delete, found in ((False, True), (True, False)):
        bench = Bench(delete_with_registration=delete)
        bench.register(topics=("orders", "old"))
        bench.register(topics=("orders", "new"), version=DataVersion(2))
        assert (bench.route("old") is not None) == found
        assert bench.route("new") is not None


def test_slaves_learn_their_master() -> None:
    """A slave gets the master's addresses in reply; its topics are not used."""
    bench = Bench()
    bench.register()
    reply = bench.register(address="2.2.2.2:10911", broker_id=1, peer=OTHER, topics=("orders", "slave_only"))
    assert reply.ext == {"masterAddr": "1.1.1.1:10911", "haServerAddr": "1.1.1.1:109111"}
    assert bench.route("slave_only") is None
    route = bench.route()
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "1.1.1.1:10911", 1: "2.2.2.2:10911"}


def test_an_address_that_changes_its_id() -> None:
    """A slave that became master is listed once."""
    bench = Bench()
    bench.register(broker_id=1, enable_acting_master=False)
    bench.register(broker_id=0)
    route = bench.route()
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "1.1.1.1:10911"}


def test_two_brokers_of_one_name() -> None:
    """The one with the newer state keeps the name; the other gets an error with a remedy."""
    bench = Bench()
    bench.register(version=DataVersion(1, 1, 5))
    refused = bench.register(address="2.2.2.2:10911", version=DataVersion(1, 1, 4), peer=OTHER)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark is not None
    assert "another name or id" in refused.remark


def test_the_bodys_crc() -> None:
    """A body that does not match its CRC registers nothing."""
    bench = Bench()
    reply = bench.register(body_crc32=1)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert reply.remark.startswith("crc32 not match")
    assert bench.route() is None


def test_a_compressed_registration() -> None:
    """The compressed form of 4.9 and 5.x is read, with and without attributes."""

    def text(value: str) -> bytes:
        data = value.encode()
        return struct.pack(">i", len(data)) + data

    version = '{"counter":1,"stateVersion":0,"timestamp":3}'
    plain = (
        text(version) + struct.pack(">i", 2) + text("orders 4 4 6 SINGLE_TAG") + text('T 1 1 6 SINGLE_TAG {"a":"b"}')
    )
    bench = Bench()
    fields = RegisterBrokerHeader("a", "1.1.1.1:10911", "C", "h", 0, compressed=True)
    reply = bench.ask(RequestCode.REGISTER_BROKER, fields.to_ext(), zlib.compress(plain + text("[]")), BROKER)
    assert reply.code == ResponseCode.SUCCESS
    assert bench.route() is not None
    assert bench.route("T") is not None


def test_a_registration_of_one_name_many_times_is_served_in_slices() -> None:
    """However often a registration has one topic: no turn has more than a slice of its lines."""
    texts = ["{}", "U 1 1 6 SINGLE_TAG", *["T 1 1 6 SINGLE_TAG"] * 2_999, "[]"]
    parts = [struct.pack(">i", len(text)) + text.encode() for text in texts]
    body = zlib.compress(b"".join([parts[0], struct.pack(">i", 3_000), *parts[1:]]))
    fields = RegisterBrokerHeader("a", "1.1.1.1:10911", "C", "h", 0, compressed=True)
    bench = Bench()
    reply, ticks = bench.tell(RemotingCommand(RequestCode.REGISTER_BROKER, fields.to_ext(), body), BROKER)
    assert reply.code == 0, reply.remark
    assert ticks >= 2
    assert bench.route("T") is not None


def test_clusters_and_topics() -> None:
    """106, 206, 224, 304 and 216 are consistent."""
    bench = Bench()
    bench.register()
    cluster = ClusterInfo.decode(bench.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert cluster.cluster_addr_table == {"C": ("a",)}
    topics = TopicList.decode(bench.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
    assert topics.topic_list == ("TBW102", "orders")
    for name, found in (("C", ("TBW102", "orders")), ("D", ())):
        reply = bench.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": name})
        assert TopicList.decode(reply.body).topic_list == found
    system = TopicList.decode(bench.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert system == TopicList(("C", "a"), "1.1.1.1:10911")
    bench.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "D"})
    assert bench.route() is not None
    bench.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert bench.route() is None


def test_wiping_write_permission() -> None:
    """205 removes the write permission of a broker's queues until 327 restores it."""
    bench = Bench()
    bench.register()
    assert bench.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"}).ext == {"wipeTopicCount": "2"}
    bench.register()  # an unchanged registration does not undo it
    route = bench.route()
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert bench.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "a"}).ext == {"addTopicCount": "2"}
    route = bench.route()
    assert route is not None
    assert route.queue_datas[0].perm == 6


def test_key_values_survive_a_restart() -> None:
    """100, 101, 102 and 219; kvConfig.json stores the values."""
    bench = Bench()
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"}
    bench.ask(RequestCode.PUT_KV_CONFIG, entry)
    bench.server = NameServer(NameServerConfig(order_conf_in_route=True), bench.files, now_ms=NOW_MS)
    assert bench.ask(RequestCode.GET_KV_CONFIG, entry).ext == {"value": "a:4"}
    listed = bench.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, entry)
    assert KvTable.decode(listed.body).table == {"orders": "a:4"}
    registered = bench.register()
    assert KvTable.decode(registered.body).table == {"orders": "a:4"}
    route = bench.route()
    assert route is not None
    assert route.order_topic_conf == "a:4"
    bench.ask(RequestCode.DELETE_KV_CONFIG, entry)
    assert bench.ask(RequestCode.GET_KV_CONFIG, entry).code == ResponseCode.QUERY_NOT_FOUND
    assert bench.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "x"}).code == ResponseCode.QUERY_NOT_FOUND


def test_zones() -> None:
    """A client in zone mode gets the brokers of its own zone."""
    bench = Bench()
    bench.register("a")
    table = TopicConfigTable({name: TopicConfig(name, 4, 4) for name in ("orders", "T")}, DataVersion(1))
    fields = RegisterBrokerHeader("b", "2.2.2.2:1", "C", "h", 0).to_ext() | {"__ZONE_NAME": "z"}
    bench.ask(RequestCode.REGISTER_BROKER, fields, RegisterBrokerBody(table).encode(), OTHER)
    ext = {"topic": "orders", "__ZONE_MODE": "true", "__ZONE_NAME": "z"}
    route = TopicRouteData.decode(bench.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext).body)
    assert [queues.broker_name for queues in route.queue_datas] == ["b"]


def test_oneway_and_unknown_codes() -> None:
    """A one-way request gets no reply; an unknown code is refused with Java's text."""
    bench = Bench()
    oneway = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, flag=2)
    assert bench.server.handle(CLIENT, oneway, NOW_MS) == []
    assert bench.server.handle(CLIENT, RemotingCommand(0, flag=1), NOW_MS) == []
    reply = bench.ask(10)
    assert (reply.code, reply.remark) == (3, " request type 10 not supported")


def test_settings() -> None:
    """319 returns settings, 318 changes them at once."""
    bench = Bench()
    bench.register()
    assert b"listenPort=9876\n" in bench.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert bench.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == 0
    changed = b"enableAllTopicList=false\nwaitSecondsForService=3\n"
    assert bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=changed).code == 0
    assert bench.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == 1
    shown = bench.ask(RequestCode.GET_NAMESRV_CONFIG).body.splitlines()
    assert set(changed.splitlines()) < set(shown)


@pytest.mark.parametrize(
    "text",
    [
        b"enableTopicList: false",
        b"enableTopicList false",
        b"! a comment\n enableTopicList = false",
        b"enableTopicLi\\\n  st=false",
        b"enable\\u0054opicList=\\u0066alse",
    ],
)
def test_settings_are_read_as_java_reads_them(text: bytes) -> None:
    """As those of a broker: blanks or a colon separate, lines continue, and characters may be escaped."""
    bench = Bench()
    assert bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=text).code == 0
    assert b"enableTopicList=false" in bench.ask(RequestCode.GET_NAMESRV_CONFIG).body


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b"kvConfigPath=/tmp/x", 16, "Can not update config in black list."),
        (b"configBlackList=", 16, "black list"),
        (b"clusterTest=true", 29, "found clusterTest, which has no effect here"),
        (b"listenPort=1", 29, "needs a restart"),
        (b"scanNotActiveBrokerInterval=soon", 29, "expected a number"),
        (b"scanNotActiveBrokerInterval=0", 29, "found scan_ms 0"),
    ],
)
def test_settings_that_cannot_be_changed(line: bytes, code: int, words: str) -> None:
    """If one setting is invalid, none is changed; older tools get code 1 where they do not know the code."""
    bench = Bench()
    body = b"enableTopicList=false\n" + line + b"\n"
    reply = bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert reply.code == code
    assert words in (reply.remark or "")
    assert b"enableTopicList=true" in bench.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body, version=409).code == (16 if code == 16 else 1)


def test_no_routes_before_brokers_had_time() -> None:
    """needWaitForService: a name server that has just started does not answer that a topic is unknown."""
    bench = Bench(wait_for_service=True)
    bench.register()
    reply = bench.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert (reply.code, (reply.remark or "")[:21]) == (1, "name server not ready")
    bench.now_ms += 45_000
    assert bench.route() is not None


def test_topics_of_units() -> None:
    """311 to 313 use the bits registered by the topic's first broker."""
    bench = Bench()
    flags = {"plain": 0, "unit": 1, "subscribed": 2, "both": 3}
    table = {name: TopicConfig(name, 4, 4, topic_sys_flag=flag) for name, flag in flags.items()}
    body = RegisterBrokerBody(TopicConfigTable(table, DataVersion(1))).encode()
    bench.ask(RequestCode.REGISTER_BROKER, RegisterBrokerHeader("a", "1.1.1.1:1", "C", "h", 0).to_ext(), body, BROKER)
    found = {code: TopicList.decode(bench.ask(code).body).topic_list for code in (311, 312, 313)}
    assert found == {311: ("both", "unit"), 312: ("both", "subscribed"), 313: ("subscribed",)}
    bench.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=false")
    assert bench.ask(311).code == 1


def test_heartbeats_of_brokers() -> None:
    """904 renews a registered broker; for another one it is answered without effect."""
    bench = Bench()
    bench.register()
    for address in ("1.1.1.1:10911", "9.9.9.9:1"):
        bench.now_ms += 100_000
        ext = {"clusterName": "C", "brokerAddr": address, "brokerName": "a"}
        assert bench.ask(RequestCode.BROKER_HEARTBEAT, ext).code == 0
        bench.server.tick(bench.now_ms)
        assert bench.route() is not None


def test_brokers_are_bounded() -> None:
    """Beyond the limit, new brokers are rejected; registered ones are served."""
    bench = Bench(brokers_max=1)
    bench.register()
    assert bench.register("b", "2.2.2.2:1").code == ResponseCode.SYSTEM_BUSY
    assert bench.register().code == ResponseCode.SUCCESS


def test_topics_of_brokers_are_bounded() -> None:
    """Limits per broker and in total: a rejected registration changes nothing, known brokers continue."""
    bench = Bench(broker_topics_max=3, topic_routes_max=5)
    assert bench.register(topics=("a", "b", "c")).code == 0
    reply = bench.register("b", "2.2.2.2:1", topics=("a", "b", "c", "d"))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "found 4 topics in a registration, expected at most 3" in (reply.remark or "")
    reply = bench.register("b", "2.2.2.2:1", topics=("a", "b", "c"))
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "found 3 topics of all brokers and 3 more of b, expected at most 5" in (reply.remark or "")
    assert bench.register("b", "2.2.2.2:1", topics=("a", "d"), peer=OTHER).code == 0
    assert bench.register(topics=("a", "b", "c"), version=DataVersion(2)).code == 0
    route = TopicRouteData((QueueData("b", 1, 1, 6, 0),)).encode()
    reply = bench.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "e"}, route)
    assert (reply.code, bench.route("e")) == (ResponseCode.SYSTEM_BUSY, None)
    assert bench.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "d"}, route).code == 0
    bench.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "a"})
    assert bench.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "e"}, route).code == 0
    bench.server.disconnected(BROKER.id)
    assert bench.register(topics=("x", "y", "z")).code == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "n" * 256}, "a broker's name of 256 characters"),
        ({"address": "1" * 256}, "a broker's address of 256 characters"),
        ({"topics": ("t" * 256, "u")}, "a topic of 256 characters"),
    ],
)
def test_names_that_are_too_long(fields: dict[str, Any], message: str) -> None:
    """Such names would be stored and sent to all clients; the registration is rejected."""
    bench = Bench()
    reply = bench.register(**fields)
    assert (reply.code, message in (reply.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert list(bench.server.routes.groups()) == []


def registration(count: int, counter: int = 1, name: str = "a", address: str = "1.1.1.1:10911") -> RemotingCommand:
    """103 of a broker with many topics."""
    table = {f"t{number}": TopicConfig(f"t{number}", 4, 4) for number in range(count)}
    body = RegisterBrokerBody(TopicConfigTable(table, DataVersion(1, counter))).encode()
    header = RegisterBrokerHeader(name, address, "C", f"{address}1", 0)
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), body)


LARGE = 3 * registrations.TOPICS_AT_ONCE


def test_a_large_registration_is_served_in_slices() -> None:
    """Other requests are answered meanwhile, and none of its topics has a route before all of them have one."""
    bench = Bench()
    bench.register("b", "2.2.2.2:10911", peer=OTHER)
    assert bench.server.handle(BROKER, registration(LARGE), bench.now_ms) == []
    while not (sends := bench.server.tick(bench.now_ms)):
        assert bench.route("orders") is not None
        assert bench.route("t0") is None
        assert bench.route(f"t{LARGE - 1}") is None
    assert sends[0].command.code == ResponseCode.SUCCESS
    assert bench.route("t0") is not None
    assert bench.route(f"t{LARGE - 1}") is not None
    assert bench.server.next_tick_ms() > bench.now_ms


def test_a_registration_takes_effect_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topics are processed in slices first; topics that others delete or register meanwhile are respected."""
    bench = Bench(topic_routes_max=60)
    topics = tuple(f"t{number}" for number in range(30))
    bench.register(topics=(*topics, "own", "deleted"))
    monkeypatch.setattr(route_tables, "ROUTES_A_SLICE", 2)
    table = {topic: TopicConfig(topic, 9, 9) for topic in (*topics, "new")}
    body = RegisterBrokerBody(TopicConfigTable(table, DataVersion(2))).encode()
    header = RegisterBrokerHeader("a", "1.1.1.1:10911", "C", "", 0).to_ext()
    assert bench.server.handle(BROKER, RemotingCommand(RequestCode.REGISTER_BROKER, header, body), NOW_MS) == []
    for _ in range(28):
        assert bench.server.tick(NOW_MS) == []
    bench.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "deleted"})
    route = TopicRouteData((QueueData("a", 1, 1, 6, 0),)).encode()
    assert bench.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "single"}, route).code == 0
    sends: list[Send] = []
    ticks = 0
    while not sends:
        assert bench.route("new") is None
        assert queues_of(bench, "t0") == queues_of(bench, "t29") == 4
        sends, ticks = bench.server.tick(NOW_MS), ticks + 1
    assert (sends[0].command.code, ticks > 2) == (ResponseCode.SUCCESS, True)
    assert [queues_of(bench, topic) for topic in ("t0", "t29", "new", "own", "single")] == [9, 9, 9, 4, 1]
    assert bench.route("deleted") is None
    reply, _ = bench.tell(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert sorted(TopicList.decode(reply.body).topic_list) == sorted((*topics, "new", "own", "single"))


def queues_of(bench: Bench, topic: str) -> int:
    route = bench.route(topic)
    assert route is not None
    return route.queue_datas[0].read_queue_nums


def test_what_a_refused_registration_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no topics and no memory behind."""
    monkeypatch.setattr(route_tables, "ROUTES_A_SLICE", 2)
    bench = Bench(topic_routes_max=10)
    topics = tuple(f"t{number}" for number in range(8))
    bench.register("b", "2.2.2.2:1", topics=("orders", "t0"), peer=OTHER)
    fields = RegisterBrokerHeader("a", "1.1.1.1:1", "C", "", 0).to_ext()
    body = RegisterBrokerBody(
        TopicConfigTable({topic: TopicConfig(topic) for topic in topics}, DataVersion(2))
    ).encode()
    bench.server.handle(BROKER, RemotingCommand(RequestCode.REGISTER_BROKER, fields, body), NOW_MS)
    bench.register("b", "2.2.2.2:1", topics=("orders", "t0", "more"), version=DataVersion(2), peer=OTHER)
    while bench.server.next_tick_ms() == 0:
        bench.server.tick(NOW_MS)
    assert bench.route("t1") is None
    assert sorted(bench.server.routes._names) == ["more", "orders", "t0"]
    assert bench.server.routes._names["t0"] == {"b": None}
    assert bench.server.routes._coming == {}


def test_a_broker_that_acts_as_master() -> None:
    """While the master is away its queues are read only; they are written again as soon as it is back."""
    bench = Bench()
    bench.register(enable_acting_master=True)
    bench.register(address="1.1.1.2:10911", broker_id=1, peer=OTHER, enable_acting_master=True)
    assert perm_of(bench) == 6
    bench.server.disconnected(BROKER.id)
    assert perm_of(bench) == 4
    bench.register(version=DataVersion(2), enable_acting_master=True)
    assert perm_of(bench) == 6


def perm_of(bench: Bench) -> int:
    route = bench.route()
    assert route is not None
    return route.queue_datas[0].perm


def test_the_same_registration_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers send it every 30 s. It renews the heartbeat of the connection on which it arrived."""
    read: list[int] = []

    def counting(data: bytes, **settings: Any) -> Any:
        read.append(len(data))
        return read_registration(data, **settings)

    monkeypatch.setattr(registrations, "read_registration", counting)
    bench = Bench()
    _, ticks = bench.tell(registration(LARGE), BROKER)
    assert (len(read), ticks > 2) == (1, True)
    bench.advance(100_000)
    assert bench.tell(registration(LARGE), OTHER)[1] == 0
    assert len(read) == 1
    bench.server.disconnected(BROKER.id)
    bench.advance(100_000)
    assert bench.route("t0") is not None
    bench.tell(registration(LARGE, 2), OTHER)
    assert len(read) == 2
    bench.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "t1"})
    assert bench.route("t1") is None
    bench.tell(registration(LARGE, 2), OTHER)
    assert len(read) == 3, "a topic is missing"
    assert bench.route("t1") is not None
    bench.server.disconnected(OTHER.id)
    bench.tell(registration(LARGE, 2), OTHER)
    assert len(read) == 4, "the broker is gone"


@pytest.mark.parametrize("event", ["closed", "unregistered", "registered again"])
def test_a_registration_that_no_longer_counts(event: str) -> None:
    """A later unregistration wins over a registration being read, so that no stopped broker stays in the routes."""
    bench = Bench()
    assert bench.server.handle(BROKER, registration(LARGE), bench.now_ms) == []
    bench.server.tick(bench.now_ms)
    match event:
        case "closed":
            bench.server.disconnected(BROKER.id)
        case "unregistered":
            fields = BrokerHeader("a", "1.1.1.1:10911", "C", 0).to_ext()
            bench.ask(RequestCode.UNREGISTER_BROKER, fields, peer=BROKER)
        case _:
            assert bench.register(topics=("new", "TBW102"), version=DataVersion(2)).code == 0
    while not (sends := bench.server.tick(bench.now_ms)):
        pass
    assert sends[0].command.code == ResponseCode.SYSTEM_ERROR
    assert "registered again, unregistered or closed" in (sends[0].command.remark or "")
    assert bench.route("t0") is None
    assert (bench.route("new") is not None) == (event == "registered again")


def test_large_answers_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply equals one without slices."""
    bench = Bench()
    for number in range(9):
        topics = ("everywhere", *(f"b{number}-{topic}" for topic in range(9)))
        assert bench.register(f"b{number}", f"1.1.1.{number}:1", topics=topics).code == 0
    for number in range(9):
        put(bench, ORDER_TOPIC_CONFIG, f"key-{number}")
    requests: list[tuple[int, dict[str, str], int]] = [
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "everywhere"}, 479),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "everywhere"}, 300),
        (RequestCode.GET_BROKER_CLUSTER_INFO, {}, 479),
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, 479),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}, 479),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, 479),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_TOPIC_CONFIG}, 479),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b1"}, 479),
    ]
    whole = [bench.tell(RemotingCommand(code, ext, version=version)) for code, ext, version in requests]
    assert [ticks for _, ticks in whole] == [0] * len(requests)
    monkeypatch.setattr(queries, "BROKERS_A_SLICE", 2)
    monkeypatch.setattr(queries, "NAMES_A_SLICE", 2)
    monkeypatch.setattr(key_values, "VALUES_A_SLICE", 2)
    monkeypatch.setattr(route_tables, "ROUTES_A_SLICE", 2)
    for (code, ext, version), (expected, _) in zip(requests, whole, strict=True):
        reply, ticks = bench.tell(RemotingCommand(code, ext, version=version))
        assert (reply.code, reply.ext, reply.body) == (expected.code, expected.ext, expected.body), code
        assert ticks >= 3, code


def test_topics_of_brokers_that_went_are_cleared_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes exclude such brokers at once; one that returns has only its new topics."""
    monkeypatch.setattr(route_tables, "ROUTES_A_SLICE", 2)
    bench = Bench(topic_routes_max=30)
    for name in ("a", "b"):
        assert bench.register(name, f"1.1.1.{ord(name)}:1", topics=tuple(f"{name}{n}" for n in range(9))).code == 0
    bench.server.disconnected(BROKER.id)
    assert not any(bench.route(f"{name}{number}") for name in "ab" for number in range(9))
    assert bench.server.next_tick_ms() == 0
    assert bench.register("b", "1.1.1.98:1", topics=("b8", "new"), peer=OTHER).code == 0
    bench.server.tick(bench.now_ms)
    while bench.server.next_tick_ms() == 0:
        bench.server.tick(bench.now_ms)
    reply, _ = bench.tell(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert sorted(TopicList.decode(reply.body).topic_list) == ["b8", "new"]
    assert bench.register("c", "1.1.1.3:1", topics=tuple(f"c{n}" for n in range(28))).code == 0, "there is room again"


@pytest.mark.parametrize("code", [RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.QUERY_DATA_VERSION])
def test_values_of_a_request_are_counted(code: RequestCode) -> None:
    """Also of one whose class is used in larger replies."""
    bench = Bench()
    ext = {"topic": "t", "brokerName": "a", "brokerAddr": "1.1.1.1:1", "clusterName": "c", "brokerId": "0"}
    reply = bench.ask(code, ext, b'{"x":[%b]}' % b",".join([b"{}"] * 60_000))
    limit = f"expected at most {REQUEST_DIALECT_NODES_MAX} values"
    assert (reply.code, limit in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_topics_that_are_no_longer_registered_are_cleared_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With deleteTopicWithBrokerRegistration. A topic registered by 217 meanwhile stays."""
    monkeypatch.setattr(route_tables, "ROUTES_A_SLICE", 2)
    bench = Bench(delete_with_registration=True)
    bench.register(topics=tuple(f"t{n}" for n in range(20)))
    bench.register(topics=("t0", "t1"), version=DataVersion(2))
    route = TopicRouteData((QueueData("a", 1, 1, 6, 0),)).encode()
    assert bench.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t9"}, route).code == 0
    while bench.server.next_tick_ms() == 0:
        bench.server.tick(bench.now_ms)
    reply, _ = bench.tell(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert sorted(TopicList.decode(reply.body).topic_list) == ["t0", "t1", "t9"]


def test_other_requests_have_small_bodies() -> None:
    """Parsing one large JSON text would block all other requests."""
    bench = Bench()
    bench.register()
    body = b"{" + b" " * BODY_SIZE_MAX + b"}"
    for code in (
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    ):
        reply = bench.ask(code, {"topic": "t"}, body)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert f"expected at most {REQUESTS[code].body_size_max}" in (reply.remark or "")


def test_filter_servers_are_bounded() -> None:
    """Their clients are gone, and no part of an interrupted registration is used."""
    bench = Bench()
    header = RegisterBrokerHeader("a", "1.1.1.1:1", "C", "1.1.1.1:2", 0).to_ext()
    for count, code in ((1_001, ResponseCode.INVALID_PARAMETER), (1_000, ResponseCode.SUCCESS)):
        table = TopicConfigTable({topic: TopicConfig(topic) for topic in ("x", "y")}, DataVersion(1))
        body = RegisterBrokerBody(table, tuple(f"1.1.1.1:{number}" for number in range(count))).encode()
        assert bench.ask(RequestCode.REGISTER_BROKER, header, body, BROKER).code == code


def test_an_address_that_takes_name_after_name_keeps_one() -> None:
    """The old name is removed with its topics; otherwise names would accumulate without limit."""
    bench = Bench(brokers_max=1)
    for number in range(5):
        assert bench.register(f"n{number}", topics=(f"t{number}", "TBW102")).code == 0
    assert [name for name, _ in bench.server.routes.groups()] == ["n4"]
    reply, _ = bench.tell(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert sorted(TopicList.decode(reply.body).topic_list) == ["TBW102", "t4"]


def put(bench: Bench, namespace: str = "n", key: str = "k", value: str = "v") -> RemotingCommand:
    return bench.ask(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


def test_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of number, length and total size. Existing values can be changed and deleted, which makes room."""
    monkeypatch.setattr(key_values, "VALUES_MAX", 2)
    monkeypatch.setattr(key_values, "SIZE_MAX", 100)
    bench = Bench()
    for fields, message in (
        ({"namespace": "n" * 1_025}, "a namespace of 1025 characters"),
        ({"key": "k" * 1_025}, "a key of 1025 characters"),
        ({"value": "v" * 65_537}, "a value of 65537 characters"),
        ({"value": "v" * 100}, "101 characters of keys and values"),
    ):
        reply = put(bench, **fields)
        assert (reply.code, message in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), fields
    assert put(bench, value="v" * 60).code == 0
    assert put(bench, key="l", value="v").code == 0
    assert "3 values with this one" in (put(bench, key="m").remark or "")
    assert put(bench, value="v" * 90).code == 0
    assert put(bench, value="v" * 99).code == ResponseCode.SYSTEM_ERROR
    bench.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"})
    assert put(bench, key="m", value="v" * 90).code == 0


def test_control_characters_count_as_their_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the file of 16 MiB of them has 100 MB, which each save writes and no reply can hold."""
    monkeypatch.setattr(key_values, "SIZE_MAX", 100)
    bench = Bench()
    assert put(bench, value="\x01" * 16).code == 0
    assert "103 characters of keys and values" in (put(bench, value="\x01" * 17).remark or "")
    assert put(bench, value="é" * 99).code == 0
    bench.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"})
    assert put(bench, value="\x01" * 16).code == 0


def test_large_values_are_listed_in_slices() -> None:
    """As many characters as a slice's values may have at most end it."""
    value = "\x01" * key_values.VALUE_LENGTH_MAX
    table = KeyValues(ConfigFileStore(MemoryDisk()))
    table._tables["n"] = {f"k{number}": value for number in range(8)}
    slices = table.encoded("n")
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            body = end.value
            break
        count += 1
    assert count == 2
    assert KvTable.decode(body).table == table._tables["n"]


def test_namespaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty namespace is removed for a new one."""
    monkeypatch.setattr(key_values, "NAMESPACES_MAX", 2)
    bench = Bench()
    assert [put(bench, namespace).code for namespace in ("a", "b", "c")] == [0, 0, ResponseCode.SYSTEM_ERROR]
    bench.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "a", "key": "k"})
    listed = bench.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "a"})
    assert (listed.code, KvTable.decode(listed.body).table) == (0, {})
    assert put(bench, "c").code == 0


def test_a_value_is_durable_when_it_is_acknowledged() -> None:
    """The reply waits for the save, which runs off the loop; a value that cannot be saved is undone."""
    disk = MemoryDisk()
    files = ConfigFileStore(disk, gathers=True)
    server = NameServer(NameServerConfig(), files, now_ms=NOW_MS)
    ext = {"namespace": "n", "key": "k", "value": "v"}
    (send,) = server.handle(CLIENT, RemotingCommand(RequestCode.PUT_KV_CONFIG, ext), NOW_MS)
    assert send.after_tables > files.settled
    files.finish()
    assert send.after_tables <= files.settled
    assert ConfigFileStore(disk).load("kvConfig.json") == {"configTable": {"n": {"k": "v"}}}
    server.handle(CLIENT, RemotingCommand(RequestCode.PUT_KV_CONFIG, {**ext, "value": "w"}), NOW_MS)
    files.begin_save()
    files.end_save(failed=True)
    (send,) = server.handle(CLIENT, RemotingCommand(RequestCode.GET_KV_CONFIG, ext), NOW_MS)
    assert send.command.ext["value"] == "v"


@pytest.mark.parametrize("damage", [b"{}", b'{"configTable":[]}', b'{"configTable":{"n":{"k":7}}}', b'{"conf', b""])
def test_damaged_values_are_taken_from_the_bak(damage: bytes) -> None:
    """The state before the last save is used and reported; without it the start is refused."""
    disk = MemoryDisk()
    disk.replace("config/kvConfig.json", damage)
    with pytest.raises(StoreError, match=r"kvConfig\.json: .*repair one of them by hand"):
        NameServer(NameServerConfig(), ConfigFileStore(disk), now_ms=NOW_MS)
    disk.replace("config/kvConfig.json.bak", b'{"configTable":{"n":{"k":"v"}}}')
    files = ConfigFileStore(disk)
    server = NameServer(NameServerConfig(), files, now_ms=NOW_MS)
    (found,) = files.report
    assert "kvConfig.json: " in found
    assert "using config/kvConfig.json.bak" in found
    ext = {"namespace": "n", "key": "k"}
    (send,) = server.handle(CLIENT, RemotingCommand(RequestCode.GET_KV_CONFIG, ext), NOW_MS)
    assert send.command.ext["value"] == "v"


def recorded() -> list[Any]:
    """Return recorded requests to a 5.3.3 name server, with its replies."""
    rows = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    return [
        pytest.param(request, reply, id=f"{request['code']}-{reply['code']}")
        for request, reply in pairwise(rows)
        if request["release"] == reply["release"] == "5.3.3"
        and request["direction"] in ("client>namesrv", "broker>namesrv")
        and reply.get("request_code") == request["code"] != RequestCode.UPDATE_NAMESRV_CONFIG
        and reply["kind"] == "reply"
    ]


@pytest.mark.parametrize(("request_row", "reply_row"), recorded())
def test_answers_as_recorded(request_row: dict[str, Any], reply_row: dict[str, Any]) -> None:
    """Our reply has the recorded code, ext fields and body members, with the same broker registered."""
    header, expected = (
        json.loads(row["header"]) if isinstance(row["header"], str) else row["header"]
        for row in (request_row, reply_row)
    )
    ext = header.get("extFields") or {}
    bench = Bench()
    if expected["code"] == ResponseCode.SUCCESS and header["code"] != RequestCode.REGISTER_BROKER:
        bench.register("broker-a", topics=("TBW102", "other", ext.get("topic", "x")))
    if header["code"] == RequestCode.GET_KV_CONFIG:
        bench.ask(RequestCode.PUT_KV_CONFIG, {**ext, "value": "v"})
    found = bench.ask(header["code"], ext, bytes.fromhex(request_row["body_hex"]), BROKER, version=header["version"])
    assert (found.code, sorted(found.ext)) == (expected["code"], sorted(expected.get("extFields") or {}))
    assert found.empty_ext == ("extFields" in expected)
    body = bytes.fromhex(reply_row["body_hex"])
    if header["code"] == RequestCode.GET_ROUTEINFO_BY_TOPIC and body:
        assert json.loads(found.body).keys() == json.loads(body).keys()
    assert bool(found.body) == bool(body)


@given(
    st.sampled_from([int(code) for code in RequestCode]),
    st.dictionaries(
        st.sampled_from(["brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId", "topic", "compressed"]),
        st.sampled_from(["", "0", "a", "-1", "true"]) | st.text(max_size=8),
    ),
    st.binary(max_size=60) | st.sampled_from([b"{}", b'{"topicConfigSerializeWrapper":1}', b"[1]"]),
)
def test_garbage_is_answered(code: int, ext: dict[str, str], body: bytes) -> None:
    """The name server answers malformed requests and continues."""
    bench = Bench()
    bench.ask(code, ext, body)
    bench.advance(10_000)
    assert bench.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS


class _Table(dict[str, Any]):
    """A table that allows look-ups and no iteration."""

    def keys(self) -> Any:
        raise AssertionError("walked over")

    __iter__ = keys


@pytest.mark.slow
def test_one_topic_costs_the_same_in_any_table() -> None:
    """217 looks its topic up. The garbage collector does not visit topics either, however many there are."""
    bench = Bench()
    bench.register("a", topics=tuple(f"t{number}" for number in range(500)))
    table = bench.server.routes._topics["a"] = _Table(bench.server.routes._topics["a"])
    body = TopicRouteData((QueueData("a", 4, 4),)).encode()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1_000):
        assert bench.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": f"t{number}"}, body).code == 0
    assert len(table) == 1_000
    gc.collect()
    assert len(gc.get_objects()) - before < 100


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.text(max_size=9)), max_size=3))
def test_values_are_saved_as_their_general_json(tables: dict[str, dict[str, str]]) -> None:
    """The file has the same bytes, whatever the pieces."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_values, "PIECE_COUNT", 2)
        patched.setattr(key_values, "LARGE_SIZE", 4)
        assert key_values.encode_tables(tables) == dumps_fastjson({"configTable": tables})


def test_many_values_are_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put waits for the save of the whole table, so its file must not take a call for each value."""
    encode, calls = key_values._encode, [0]

    def counted(value: object) -> bytes:
        calls[0] += 1
        return encode(value)

    monkeypatch.setattr(key_values, "_encode", counted)
    tables = {"n": {f"k{number}": "value" for number in range(2_000)}}
    assert key_values.encode_tables(tables) == dumps_fastjson({"configTable": tables})
    assert calls[0] <= 1 + 2_000 / key_values.PIECE_COUNT
