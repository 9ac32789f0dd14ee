"""Limits of one request and its cost: a refusal names the limit, and no part of the request takes effect."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mqtrail.broker import Broker, Lane, bounds
from mqtrail.broker.clients import heartbeats
from mqtrail.broker.filter import table
from mqtrail.broker.requests import BODY_SIZES
from mqtrail.broker.tables import offsets
from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.wire import (
    ConsumerConnections,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    Peer,
    PeerId,
    ProducerConnections,
    ProducerData,
    ProducerTable,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    encode_command,
)
from mqtrail.wire.body import REQUEST_DIALECT_NODES_MAX

from .helpers import NOW_MS, OTHER, PEER, Bench


def heartbeat(
    *groups: str, producers: tuple[str, ...] = (), client_id: str = "c", expression: str = ""
) -> HeartbeatData:
    subscribed = (SubscriptionData("orders", expression),) if expression else ()
    return HeartbeatData(
        client_id,
        tuple(map(ProducerData, producers)),
        tuple(ConsumerData(group, subscription_data_set=subscribed) for group in groups),
    )


def names(count: int, prefix: str = "g") -> tuple[str, ...]:
    return tuple(f"{prefix}{number}" for number in range(count))


def refused(bench: Bench, data: HeartbeatData) -> str:
    reply = bench.ask(RequestCode.HEART_BEAT, body=data.encode())
    assert reply.code == ResponseCode.INVALID_PARAMETER
    return reply.remark or ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (heartbeat(*names(1_001)), "found 1001 consumer groups in one request, expected at most 1000"),
        (heartbeat(producers=names(1_001)), "found 1001 producer groups in one request, expected at most 1000"),
        (heartbeat("g", client_id="c" * 1_025), "a clientID of 1025 characters"),
        (heartbeat("g", expression="x" * 65_537), "an expression for topic orders of 65537 characters"),
        (heartbeat(producers=("p" * 256,)), "a producer group of 256 characters"),
    ],
)
def test_a_heartbeat_that_names_too_much_is_refused_whole(data: HeartbeatData, message: str) -> None:
    """No part of a refused heartbeat takes effect: it adds no group and no client."""
    bench = Bench()
    groups = len(bench.broker.groups.all())
    assert message in refused(bench, data)
    assert len(bench.broker.groups.all()) == groups
    assert not list(bench.broker.clients.consumer_groups())
    assert not bench.broker.clients.producer_groups()


def test_subscriptions_and_size_of_a_heartbeat_are_bounded() -> None:
    """A group may have 1000 topics, a heartbeat 4 MiB."""
    bench = Bench()
    many = tuple(SubscriptionData(f"t{number}") for number in range(1_001))
    data = HeartbeatData("c", (), (ConsumerData("g", subscription_data_set=many),))
    assert "1001 subscriptions of group g" in refused(bench, data)
    long = tuple(SubscriptionData(f"t{number}", "x" * 60_000) for number in range(75))
    data = HeartbeatData("c", (), (ConsumerData("g", subscription_data_set=long),))
    assert "expected at most 4194304" in refused(bench, data)


def test_groups_of_one_connection_are_bounded_over_its_heartbeats() -> None:
    """Groups sent in several heartbeats count like groups sent in one; known groups are renewed."""
    bench = Bench()
    for part in range(2):
        data = heartbeat(*names(500, f"g{part}-"), producers=names(500, f"p{part}-"))
        assert bench.ask(RequestCode.HEART_BEAT, body=data.encode()).code == 0
    assert "1001 consumer groups of one connection" in refused(bench, heartbeat("one-more"))
    assert "1001 producer groups of one connection" in refused(bench, heartbeat(producers=("one-more",)))
    assert bench.ask(RequestCode.HEART_BEAT, body=heartbeat("g0-0", producers=("p0-0",)).encode()).code == 0
    assert bench.ask(RequestCode.HEART_BEAT, body=heartbeat("one-more").encode(), peer=OTHER).code == 0


@pytest.mark.parametrize("code", [RequestCode.CHECK_CLIENT_CONFIG, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP])
def test_values_of_a_request_are_counted(code: RequestCode) -> None:
    """Also of one whose class is used in larger replies, or that is not read by a class."""
    reply = Bench().ask(code, body=b'{"x":[%b]}' % b",".join([b"{}"] * 60_000))
    limit = f"expected at most {REQUEST_DIALECT_NODES_MAX} values"
    assert (reply.code, limit in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_producer_groups_are_bounded() -> None:
    """Producer groups have the same limit as consumer groups; known ones continue."""
    bench = Bench(producer_groups_max=3)
    assert bench.ask(RequestCode.HEART_BEAT, body=heartbeat(producers=names(3)).encode()).code == 0
    reply = bench.ask(RequestCode.HEART_BEAT, body=heartbeat(producers=("other",)).encode())
    assert (reply.code, "producer_groups_max" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert bench.ask(RequestCode.HEART_BEAT, body=heartbeat(producers=names(3)).encode()).code == 0


def test_a_heartbeat_with_many_new_groups_is_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 groups and their retry topics: each table is written once, and each entry is encoded once."""
    bench = Bench()
    files = ConfigFileStore(bench.disk, gathers=True)
    broker = Broker(bench.config, bench.store, files, unique_id=lambda: "id", now_ms=NOW_MS)
    replaced = Counter[str]()
    replace = bench.disk.replace

    def counted(path: str, data: bytes) -> None:
        replaced[path] += 1
        replace(path, data)

    monkeypatch.setattr(bench.disk, "replace", counted)
    request = RemotingCommand(RequestCode.HEART_BEAT, {}, heartbeat(*names(400)).encode())
    sends = broker.handle(PEER, request, NOW_MS)
    while len(broker.jobs):
        sends += broker.tick(NOW_MS)
    (reply,) = [send for send in sends if send.command.is_response]
    assert not replaced, "nothing is written inside the loop"
    assert reply.after_tables > files.settled
    job = files.begin_save()
    assert job is not None
    job()
    files.end_save()
    assert reply.after_tables <= files.settled
    assert replaced == {"config/topics.json": 1, "config/subscriptionGroup.json": 1}
    again = Broker(bench.config, bench.store, ConfigFileStore(bench.disk), unique_id=lambda: "id", now_ms=NOW_MS)
    assert all(again.groups.get(name) is not None and f"%RETRY%{name}" in again.topics for name in names(400))


Lists = LockBatchBody | TopicConfigList | SubscriptionGroupList


def too_many_locks() -> LockBatchBody:
    return LockBatchBody("g", "c", tuple(MessageQueue("t", "b", number) for number in range(5_001)))


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.LOCK_BATCH_MQ, too_many_locks),
        (RequestCode.UNLOCK_BATCH_MQ, too_many_locks),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            lambda: TopicConfigList(tuple(TopicConfig(name) for name in names(1_001))),
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            lambda: SubscriptionGroupList(tuple(SubscriptionGroupConfig(name) for name in names(1_001))),
        ),
    ],
)
def test_lists_are_bounded(code: int, body: Callable[[], Lists]) -> None:
    """Lists up to the limit are accepted; a longer list is rejected as a whole."""
    bench = Bench()
    before = (len(bench.broker.topics), len(bench.broker.groups.all()))
    reply = bench.ask(code, body=body().encode())
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert re.match(r"found (5001 queues|1001 topics|1001 groups) in one request", reply.remark or "")
    assert (len(bench.broker.topics), len(bench.broker.groups.all())) == before


@pytest.mark.parametrize(
    ("code", "size"),
    [
        (RequestCode.UPDATE_BROKER_CONFIG, bounds.LINES_SIZE_MAX),
        (RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, bounds.LINES_SIZE_MAX),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, bounds.BODY_SIZE_MAX),
        (RequestCode.CHECK_CLIENT_CONFIG, bounds.BODY_SIZE_MAX),
        (RequestCode.AUTH_CREATE_ACL, bounds.BODY_SIZE_MAX),
        (RequestCode.LOCK_BATCH_MQ, bounds.LIST_SIZE_MAX),
        (RequestCode.HEART_BEAT, bounds.HEARTBEAT_SIZE_MAX),
        (RequestCode.GET_ALL_TOPIC_CONFIG, bounds.BODY_SIZE_MAX),
    ],
)
@pytest.mark.parametrize("acl", [False, True])
def test_bodies_are_bounded(monkeypatch: pytest.MonkeyPatch, code: int, size: int, acl: bool) -> None:
    """Neither the permission check nor the handler reads a body above the limit."""
    bench = Bench(acl=acl)

    def read(*arguments: Any) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr(bench.broker.access, "check", read)
    reply = bench.ask(code, body=b" " * (size + 1))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert f"expected at most {size}" in (reply.remark or "")


def test_every_body_is_bounded() -> None:
    """All bodies have this limit except messages, which have maxMessageSize."""
    unbounded = {code for code, size in BODY_SIZES.items() if size is None}
    assert unbounded == {10, 310, 320, 324, 325}


def test_locks_of_many_groups_are_counted_not_summed() -> None:
    """A refused lock leaves no entry, and the table stays full until locks expire."""
    bench = Bench(locks_max=2, lock_ttl_ms=1_000)
    locks = bench.broker.locks
    queues = [MessageQueue("t", "b", number) for number in range(3)]
    assert locks.lock("g", "c", queues[:1], NOW_MS) == queues[:1]
    assert locks.lock("h", "c", queues[:1], NOW_MS) == queues[:1]
    assert locks.lock("g", "other", queues[:1], NOW_MS) == []
    reply = bench.ask(RequestCode.LOCK_BATCH_MQ, body=LockBatchBody("i", "c", tuple(queues)).encode())
    assert "found 2 held queue locks" in (reply.remark or "")
    locks.unlock("g", "c", queues)
    assert locks.lock("i", "c", queues[1:2], NOW_MS) == queues[1:2]
    assert locks.lock("i", "c", queues[2:], NOW_MS + 3_000) == queues[2:]
    assert not locks.is_any_held("h", NOW_MS + 3_000)


def test_names_in_locks_are_bounded() -> None:
    """A lock lives while it is renewed, so the queue names in it have the usual length limit."""
    bench = Bench()
    for queue in (MessageQueue("t" * 256, "b", 0), MessageQueue("t", "b" * 256, 0)):
        reply = bench.ask(RequestCode.LOCK_BATCH_MQ, body=LockBatchBody("g", "c", (queue,)).encode())
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert "of 256 characters" in (reply.remark or "")


def test_retry_queues_of_a_group_are_bounded() -> None:
    """A group's retry topic has at most as many queues as any topic, whatever the request or groups.json says."""
    bench = Bench()
    for code, body in (
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig("g", retry_queue_nums=65_537)),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            SubscriptionGroupList((SubscriptionGroupConfig("g", retry_queue_nums=1 << 31),)),
        ),
    ):
        reply = bench.ask(code, body=body.encode())
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert "expected at most 65536" in (reply.remark or "")
    assert bench.broker.topics.create_own("%RETRY%g", 1 << 31, 6, NOW_MS).read_queue_nums == 65_536


def test_a_connection_has_one_producer_id() -> None:
    """A producer id is removed when the connection's next heartbeat has another one, and when the connection closes."""
    bench = Bench()
    clients = bench.broker.clients
    for number in range(5):
        data = heartbeat(producers=(f"p{number}",), client_id=f"c{number}")
        assert bench.ask(RequestCode.HEART_BEAT, body=data.encode()).code == ResponseCode.SUCCESS
    assert [clients.producer(f"c{number}") is not None for number in range(5)] == [False] * 4 + [True]
    data = heartbeat(producers=("p",), client_id="c4")
    assert bench.ask(RequestCode.HEART_BEAT, body=data.encode(), peer=OTHER).code == ResponseCode.SUCCESS
    bench.broker.disconnected(PEER.id)
    taken_over = clients.producer("c4")
    assert taken_over is not None
    assert taken_over.peer == OTHER
    bench.broker.disconnected(OTHER.id)
    assert clients.producer("c4") is None


def test_one_message_for_many_held_pulls_is_handed_out_in_slices() -> None:
    """The send is answered at once together with a few held pulls; ticks answer the others, each once."""
    bench = Bench()
    bench.send()
    for _ in range(500):
        assert bench.tell(RequestCode.PULL_MESSAGE, bench.pull_ext(queue_offset=1, hold_ms=60_000)) == []
    before = bench.now_ms
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=NOW_MS)
    sends = bench.tell(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"hi", peer=OTHER)
    assert 1 < len(sends) < 100
    assert bench.broker.next_tick_ms() <= before
    answered = [send.command.opaque for send in [*sends, *bench.advance(0)] if send.peer == PEER.id]
    assert len(answered) == len(set(answered)) == 500


def test_expressions_of_all_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expressions of all groups together have a limit; groups that leave free their share."""
    monkeypatch.setattr(heartbeats, "SUBSCRIPTIONS_SIZE_MAX", 100_000)
    bench = Bench()
    long = "x" * 60_000
    assert bench.ask(RequestCode.HEART_BEAT, body=heartbeat("g", expression=long).encode()).code == ResponseCode.SUCCESS
    assert bench.ask(RequestCode.HEART_BEAT, body=heartbeat("g", expression=long).encode()).code == ResponseCode.SUCCESS
    reply = bench.ask(RequestCode.HEART_BEAT, body=heartbeat("h", expression=long).encode(), peer=OTHER)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "use shorter expressions" in (reply.remark or "")
    bench.broker.disconnected(PEER.id)
    assert bench.broker.clients.subscriptions_size == 0
    reply = bench.ask(RequestCode.HEART_BEAT, body=heartbeat("h", expression=long).encode(), peer=OTHER)
    assert reply.code == ResponseCode.SUCCESS


def test_kept_filters_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression above the remaining room is not kept; a shorter one is, and replacing one frees its room."""
    monkeypatch.setattr(table, "FILTERS_SIZE_MAX", 100)
    filters = table.FilterTable(ConfigFileStore(MemoryDisk()), NOW_MS)

    def register(group: str, size: int, version: int) -> None:
        expression = f"a = '{'x' * (size - 6)}'"
        filters.register(group, [SubscriptionData("t", expression, (), (), version, "SQL92")], NOW_MS)

    register("g", 60, 1)
    register("h", 60, 1)
    assert filters.get("t", "h") is None
    register("g", 40, 2)
    register("h", 60, 1)
    assert filters.get("t", "h") is not None


def test_members_of_many_groups_are_notified_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that joins or leaves a thousand groups of a thousand members does not block the loop; every member is
    notified."""
    monkeypatch.setattr(heartbeats, "NOTIFIED_A_SLICE", 10)
    bench = Bench()
    peers = [Peer(PeerId(number), PEER.address) for number in range(10, 20)]
    for peer in peers:
        bench.ask(RequestCode.HEART_BEAT, body=heartbeat(*names(7), client_id=f"c{peer.id}").encode(), peer=peer)
        bench.advance(0)
    request = bench.request(RequestCode.HEART_BEAT, body=heartbeat(*names(7), client_id="new").encode())
    joins, leaves = (
        partial(bench.broker.handle, PEER, request, bench.now_ms),
        partial(bench.broker.disconnected, PEER.id),
    )
    for act in (joins, leaves):
        slices = [act()]
        while bench.broker.next_tick_ms() <= bench.now_ms:
            slices.append(bench.broker.tick(bench.now_ms))
        notified = [
            [send for send in some if send.command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] for some in slices
        ]
        assert max(map(len, notified)) == 10
        found = Counter((send.peer, send.command.ext["consumerGroup"]) for some in notified for send in some)
        assert {(peer.id, name): 1 for peer in peers for name in names(7)}.items() <= found.items()


def test_committed_offsets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of queues that do not exist count too. Known offsets can still be committed, and deleting some makes
    room."""
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 3)
    bench = Bench()
    bench.send()
    bench.ask(RequestCode.HEART_BEAT, body=heartbeat("g").encode())

    def commit(queue_id: int, offset: int = 1) -> RemotingCommand:
        ext = {"consumerGroup": "g", "topic": "orders", "queueId": str(queue_id), "commitOffset": str(offset)}
        return bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    assert [commit(queue_id).code for queue_id in range(4)] == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
    assert "delete groups or topics" in (commit(4).remark or "")
    ext = bench.pull_ext() | {"sysFlag": "5", "commitOffset": "1", "queueId": "3"}
    lane = Lane(bench.broker)
    frame = encode_command(bench.request(RequestCode.PULL_MESSAGE, ext))
    (send,) = lane.process(PEER, frame, 0, len(frame), bench.now_ms).sends
    assert send.command.code == ResponseCode.SYSTEM_BUSY
    assert commit(2, 7).code == 0
    assert bench.broker.offsets.queues("g", "orders") == {0: 1, 1: 1, 2: 7}
    bench.broker.offsets.forget_topic("orders")
    assert commit(3).code == 0


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE])
def test_expressions_of_pulls_are_bounded(code: int) -> None:
    """Expressions in pulls have the same limit as in heartbeats: 250 KB of tags take 0.1 s and twenty times the
    memory."""
    bench = Bench()
    bench.send()
    expression = "||".join(f"{number:x}" for number in range(14_000))
    assert len(expression) > bounds.EXPRESSION_LENGTH_MAX
    ext = bench.pull_ext(tags=expression) | {
        "exp": expression, "expType": "TAG", "invisibleTime": "60000", "pollTime": "0", "bornTime": str(bench.now_ms),
        "initMode": "0",
    }  # fmt: skip
    reply = bench.ask(code, ext)
    assert reply.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    assert "expected at most 65536" in (reply.remark or "")


def test_the_lane_keeps_short_subscriptions_alone() -> None:
    """The lane caches thousands of subscriptions, so it caches only short ones: long ones would take gigabytes."""
    bench = Bench()
    bench.send(TAGS="1")
    bench.ask(RequestCode.HEART_BEAT, body=heartbeat("g").encode())
    lane = Lane(bench.broker)
    for tags in ("1", "||".join(map(str, range(2_000)))):
        frame = encode_command(bench.request(RequestCode.PULL_MESSAGE, bench.pull_ext(tags=tags)))
        served = lane.process(PEER, frame, 0, len(frame), bench.now_ms)
        assert served.replies or served.sends[0].command.code == ResponseCode.SUCCESS
    assert [key[1] for key in lane._pulls._filters] == ["1"]


def test_memberships_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memberships of all connections in all groups have a limit; members stay, and members that leave make room."""
    monkeypatch.setattr(heartbeats, "MEMBERSHIPS_MAX", 5)
    bench = Bench()

    def beat(peer: Peer, count: int) -> RemotingCommand:
        data = heartbeat(*names(count), producers=names(count), client_id=f"c{peer.id}")
        return bench.ask(RequestCode.HEART_BEAT, body=data.encode(), peer=peer)

    assert [beat(PEER, 2).code, beat(PEER, 2).code] == [0, 0]
    assert bench.broker.clients.memberships == 4
    assert "expected at most 5" in (beat(OTHER, 1).remark or "")
    assert beat(PEER, 2).code == 0
    bench.broker.disconnected(PEER.id)
    assert bench.broker.clients.memberships == 0
    assert beat(OTHER, 2).code == 0


@pytest.mark.slow
def test_many_clients_are_listed_in_slices() -> None:
    """203, 204 and 328 are answered in slices: other requests are served meanwhile, and the reply lists every
    client."""
    bench = Bench()
    for number in range(10, 710):
        client = Peer(PeerId(number), PEER.address)
        data = heartbeat("g", producers=("p", f"p{number}"), client_id=f"c{number}")
        bench.tell(RequestCode.HEART_BEAT, body=data.encode(), peer=client)
        bench.advance(0)
    ids = {f"c{number}" for number in range(10, 710)}
    lists: tuple[tuple[int, Callable[[bytes], set[str]]], ...] = (
        (203, lambda body: {one.client_id for one in ConsumerConnections.decode(body).connection_set}),
        (204, lambda body: {one.client_id for one in ProducerConnections.decode(body).connection_set}),
        (328, lambda body: {one.client_id for one in ProducerTable.decode(body).data["p"]}),
    )
    for code, listed in lists:
        ext = {"consumerGroup": "g", "producerGroup": "p"}
        assert bench.tell(code, ext, peer=OTHER) == []
        reply = bench.ask(code, ext)
        assert listed(reply.body) == ids
    assert len(ProducerTable.decode(bench.ask(328).body).data) == 701
