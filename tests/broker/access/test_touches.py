"""Access beyond the names in a request: other clients, records found by hash, messages that it removes."""

from typing import Any

import pytest

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore, PendingRecord
from mqtrail.wire import (
    ConsumerData,
    HeartbeatData,
    Host,
    LockBatchBody,
    MessageQueue,
    Peer,
    PeerId,
    ProducerData,
    RemotingCommand,
    Send,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    decode_records,
    encode_properties,
    encode_record,
    index_key_hash,
    loads,
    offset_msg_id,
    sign,
)
from mqtrail.wire import Credentials as Keys
from mqtrail.wire.record import RECORD_V4

from ..helpers import NOW_MS
from .test_auth import Guarded as WithUsers
from .test_plain import Guarded as WithFiles

ALICE, BOB = Peer(PeerId(1), Host("10.0.0.1", 1)), Peer(PeerId(2), Host("10.0.0.2", 2))
ACCOUNTS = """
accounts:
- {accessKey: alicealice, secretKey: alicealicepass, topicPerms: [orders=PUB|SUB], groupPerms: [g=SUB]}
- {accessKey: bobbybobby, secretKey: bobbybobbypass, topicPerms: [stock=PUB|SUB], groupPerms: [h=SUB]}
"""


class Two:
    """Alice owns topic orders and group g, Bob stock and h."""

    def __init__(self, kind: str) -> None:
        self.now_ms = NOW_MS
        guarded: Any = WithUsers() if kind == "users" else WithFiles()
        self.guarded = guarded
        self.broker: Broker = self.guarded.broker
        if kind == "files":
            self.broker.access.load_acl({"f": ACCOUNTS})
        else:
            for name, topic, group in (("alicealice", "orders", "g"), ("bobbybobby", "stock", "h")):
                self.guarded.make_user(name)
                self.guarded.allow(name, f"Topic:{topic}", "Pub", "Sub")
                self.guarded.allow(name, f"Group:{group}", "Sub")
        for topic in ("orders", "stock"):
            self.broker.topics.update(TopicConfig(topic, 1, 1), NOW_MS)
        for group in ("g", "h"):
            self.broker.groups.update(SubscriptionGroupConfig(group), NOW_MS)

    def ask(self, name: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        request = RemotingCommand(code, dict(ext), body, opaque=7)
        sign(request, Keys(access_key=name, secret_key=f"{name}pass"))
        peer = ALICE if name == "alicealice" else BOB
        (reply,) = [send.command for send in self.broker.handle(peer, request, self.now_ms) if send.command.opaque == 7]
        return reply

    def send(self, name: str, topic: str, body: bytes = b"x", **properties: str) -> RemotingCommand:
        ext = {"a": "pg", "b": topic, "e": "0", "g": str(NOW_MS), "i": encode_properties(properties)}
        return self.ask(name, 310, ext, body)

    def beat(self, name: str, client_id: str) -> RemotingCommand:
        data = HeartbeatData(client_id, (ProducerData("pg"),))
        return self.ask(name, 34, {}, data.encode())

    def advance(self, ms: int) -> list[Send]:
        sends: list[Send] = []
        end_ms = self.now_ms + ms
        while (next_ms := self.broker.next_tick_ms()) <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            sends += self.broker.tick(self.now_ms)
        self.now_ms = end_ms
        return sends


@pytest.fixture(params=["users", "files"])
def two(request: pytest.FixtureRequest) -> Two:
    return Two(request.param)


def test_half_messages_are_shown_to_publishers_alone(two: Two) -> None:
    """A producer that names another account's producer group gets no checks (39) of its half messages."""
    assert two.beat("bobbybobby", "bob").code == 0
    assert two.send("alicealice", "orders", TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="A1").code == 0
    first = [send for send in two.advance(70_000) if send.command.code == 39]
    assert first == []
    assert two.beat("alicealice", "alice").code == 0
    second = [send.peer for send in two.advance(70_000) if send.command.code == 39]
    assert second
    assert set(second) == {ALICE.id}


def pull_ext(topic: str, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip


@pytest.mark.parametrize("code", [11, 200050])
def test_a_held_request_is_refused_once_it_is_not_allowed_any_more(two: Two, code: int) -> None:
    """A held pull or pop whose permission is revoked gets no new message."""
    two.advance(60_000)
    ext = pull_ext("orders", "g")
    if code == 200050:
        ext |= {"invisibleTime": "10000", "pollTime": "15000", "bornTime": str(two.now_ms), "initMode": "0"}
    request = RemotingCommand(code, ext, opaque=8)
    sign(request, Keys(access_key="alicealice", secret_key="alicealicepass"))
    assert two.broker.handle(ALICE, request, two.now_ms) == []
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("bobbybobby", "Topic:orders", "Pub")
        two.guarded.allow("alicealice", "Topic:orders", "Pub")
    else:
        text = ACCOUNTS.replace("[orders=PUB|SUB]", "[orders=PUB]").replace("[stock=PUB|SUB]", "[orders=PUB]")
        two.broker.access.load_acl({"f": text})
    ext = {"a": "pg", "b": "orders", "e": "0", "g": str(NOW_MS), "i": encode_properties({"UNIQ_KEY": "A1"})}
    sent = RemotingCommand(310, ext, b"late", opaque=7)
    sign(sent, Keys(access_key="bobbybobby", secret_key="bobbybobbypass"))
    sends = two.broker.handle(BOB, sent, two.now_ms)
    (reply,) = [send.command for send in sends if send.peer == ALICE.id]
    assert reply.opaque == 8
    assert reply.code in (1, 16)
    assert not reply.body


def test_a_client_id_is_not_taken_over(two: Two) -> None:
    """Replies (326) go to a client id: another account cannot use the id of an online client, but can use it later."""
    assert two.beat("alicealice", "one").code == 0
    assert "client id one" in (two.beat("bobbybobby", "one").remark or "")
    assert two.broker.clients.producer("one") is not None
    assert two.beat("bobbybobby", "two").code == 0
    two.broker.disconnected(ALICE.id)
    assert two.beat("bobbybobby", "one").code == 0


def test_a_recall_needs_the_topic_it_takes_from(two: Two) -> None:
    """A timer message that names another account's message in TIMER_DEL_UNIQKEY is refused, and that message is
    delivered."""
    due = str(NOW_MS + 20_000)
    assert two.send("alicealice", "orders", b"kept", TIMER_DELIVER_MS=due, UNIQ_KEY="A1").code == 0
    recall = two.send("bobbybobby", "stock", TIMER_DELIVER_MS=due, UNIQ_KEY="B1", TIMER_DEL_UNIQKEY="orders+A1")
    assert "orders" in (recall.remark or "")
    assert recall.code in (1, 16)
    two.advance(30_000)
    found = two.broker.store.read("orders", 0, 0, 10, 1 << 20).records
    assert [message.body for message in decode_records(b"".join(found))] == [b"kept"]
    own = two.send("alicealice", "orders", TIMER_DELIVER_MS=str(NOW_MS + 60_000), TIMER_DEL_UNIQKEY="orders+A2")
    assert own.code == 0


@pytest.mark.parametrize("code", [10, 310, 320])
def test_every_send_that_recalls_is_checked(two: Two, code: int) -> None:
    """This applies to short and long names, and to batches."""
    properties = encode_properties({"TIMER_DELIVER_MS": str(NOW_MS + 20_000), "TIMER_DEL_UNIQKEY": "orders+A1"})
    long = {"topic": "stock", "producerGroup": "pg", "queueId": "0", "properties": properties}
    short = {"b": "stock", "a": "pg", "e": "0", "i": properties}
    reply = two.ask("bobbybobby", code, long if code == 10 else short, b"x")
    assert "orders" in (reply.remark or "")
    assert reply.code in (1, 16)


def test_a_recall_is_not_hidden_under_a_second_name(two: Two) -> None:
    """A send with short names and a second properties field under the long name is served with the checked one."""
    due = str(NOW_MS + 20_000)
    assert two.send("alicealice", "orders", b"kept", TIMER_DELIVER_MS=due, UNIQ_KEY="A1").code == 0
    recall = encode_properties({"TIMER_DELIVER_MS": due, "UNIQ_KEY": "B1", "TIMER_DEL_UNIQKEY": "orders+A1"})
    ext = {"a": "pg", "b": "stock", "e": "0", "g": str(NOW_MS), "i": "", "properties": recall}
    two.ask("bobbybobby", 310, ext, b"x")
    two.advance(30_000)
    found = two.broker.store.read("orders", 0, 0, 10, 1 << 20).records
    assert [message.body for message in decode_records(b"".join(found))] == [b"kept"]


def test_what_properties_claim_of_a_destination_is_replaced(two: Two) -> None:
    """REAL_TOPIC in a sent message does not redirect a delayed, timed or half message to another topic."""
    claim: dict[str, Any] = {"REAL_TOPIC": "orders", "REAL_QID": "0"}
    end = two.broker.store.max_offset("orders", 0)
    extras: tuple[dict[str, Any], ...] = ({"DELAY": "1"}, {"TIMER_DELIVER_MS": str(NOW_MS + 5_000)}, {})
    for extra in extras:
        assert two.send("bobbybobby", "stock", UNIQ_KEY="B1", **extra, **claim).code == 0
    sent = two.send("bobbybobby", "stock", TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="B2", **claim)
    assert sent.code == 0
    two.advance(10_000)
    (record,) = two.broker.store.read("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0, 1, 1 << 20).records
    (half,) = decode_records(record)
    ended = {
        "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": "8", "msgId": "B2",
    }  # fmt: skip
    assert two.ask("bobbybobby", 37, ended).code == 0
    assert two.broker.store.max_offset("stock", 0) == 4
    assert two.broker.store.max_offset("orders", 0) == end


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_both_namings_in_one_send(two: Two, code: int) -> None:
    """A header with long and short names is checked for the topic that the broker reads from it."""
    both = {"topic": "orders", "b": "stock", "a": "pg", "producerGroup": "pg", "e": "0", "queueId": "0", "i": ""}
    assert "orders" in (two.ask("bobbybobby", code, both, b"x").remark or "")
    assert two.broker.store.max_offset("orders", 0) == 0


def test_only_the_broker_writes_its_own_logs(two: Two) -> None:
    """Clients cannot send to the logs of timers and pops, not even with Pub on all topics."""
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("bobbybobby", "Topic:*", "Pub")
    else:
        keys = "accessKey: bobbybobby, secretKey: bobbybobbypass, defaultTopicPerm: PUB|SUB"
        two.broker.access.load_acl({"f": f"accounts: [{{{keys}}}]"})
    assert two.send("bobbybobby", "orders").code == 0
    for topic in ("rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"):
        assert two.send("bobbybobby", topic, TIMER_OUT_MS="1", UNIQ_KEY="B1").code in (1, 16)
        assert two.broker.store.max_offset(topic, 0) == 0


def test_only_the_broker_moves_its_own_groups(two: Two) -> None:
    """The offsets of these groups are the progress of transactions and pops: Sub on all groups and topics does not move
    them."""
    if isinstance(two.guarded, WithUsers):
        for resource in ("Topic:*", "Group:*"):
            two.guarded.allow("bobbybobby", resource, "Sub")
    else:
        keys = "accessKey: bobbybobby, secretKey: bobbybobbypass, defaultTopicPerm: SUB, defaultGroupPerm: SUB"
        two.broker.access.load_acl({"f": f"accounts: [{{{keys}}}]"})
    for group, topic in (
        ("CID_RMQ_SYS_REVIVE_GROUP", "rmq_sys_REVIVE_LOG_DefaultCluster"),
        ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    ):
        before = two.broker.offsets.get(group, topic, 0)
        pull = pull_ext(topic, group) | {"commitOffset": "7", "sysFlag": "5"}
        consumer = ConsumerData(group, subscription_data_set=(SubscriptionData("stock", "*"),))
        beat = HeartbeatData("bob", consumer_data_set=(consumer,)).encode()
        for code, ext, body in ((15, pull, b""), (11, pull, b""), (34, {}, beat)):
            assert two.ask("bobbybobby", code, ext, body).code in (1, 16), code
        assert two.broker.offsets.get(group, topic, 0) == before
    assert two.ask("bobbybobby", 14, pull_ext("stock", "any")).code not in (1, 16)


def test_a_pop_reads_no_retry_topic_of_a_group_that_is_named_alike(two: Two) -> None:
    """%RETRY%g_orders is the pop retry topic of g for orders, unless there is a group g_orders: then it is that
    group's."""
    ext = {
        "consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "10000",
        "pollTime": "0", "bornTime": "0", "initMode": "0",
    }  # fmt: skip
    retry = {"consumerGroup": "g", "topic": "%RETRY%g_orders", "queueId": "0"}
    refused = (1, 16)
    assert two.ask("alicealice", 200050, ext).code not in refused
    assert two.ask("alicealice", 14, retry).code not in refused
    two.broker.groups.update(SubscriptionGroupConfig("g_orders"), NOW_MS)
    assert "g_orders" in (two.ask("alicealice", 200050, ext).remark or "")
    assert "g_orders" in (two.ask("alicealice", 14, retry).remark or "")


def test_offsets_are_cloned_from_readable_groups_alone() -> None:
    """314 reveals the offsets of the source group, so it needs a permission for that group too."""
    two = Two("users")
    for resource in ("Topic:orders", "Group:g"):
        two.guarded.allow("alicealice", resource, "Update")
    ext = {"srcGroup": "h", "destGroup": "g", "topic": "orders", "offline": "true"}
    assert "Group:h" in (two.ask("alicealice", 314, ext).remark or "")
    assert two.ask("alicealice", 314, ext | {"srcGroup": "g"}).code == 0


def test_lists_in_fields(two: Two) -> None:
    """The topics listed in a field of 208 and the groups listed in 308 are each checked."""
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("alicealice", "Topic:orders", "Get")
        two.guarded.allow("alicealice", "Group:g", "Get")
    stats = {"consumerGroup": "g", "topicList": "orders;stock"}
    assert "stock" in (two.ask("alicealice", 208, stats).remark or "")
    assert two.ask("alicealice", 208, {"consumerGroup": "g", "topicList": "orders"}).code == 0
    corrections = {"topic": "orders", "compareGroup": "g", "filterGroups": "g, h"}
    assert ":h" in (two.ask("alicealice", 308, corrections).remark or "")
    assert two.ask("alicealice", 308, corrections | {"filterGroups": ""}).code == 0


@pytest.mark.parametrize("acl", [False, True])
def test_a_query_by_key_finds_its_topic_and_key_alone(acl: bool) -> None:
    """12 omits records of other topics or keys with the same hash, for any number of them."""
    store = MemoryStore()
    users: dict[str, Any] = {"authentication": True, "init_user": '{"username":"root","password":"rootpass"}'}
    settings = users if acl else {}
    files = ConfigFileStore(MemoryDisk())
    broker = Broker(BrokerConfig(**settings), store, files, unique_id=lambda: "0" * 32, now_ms=NOW_MS)
    assert len({index_key_hash("Aa", "k1"), index_key_hash("BB", "k1"), index_key_hash("Aa", "jP")}) == 1

    def put(topic: str, keys: str) -> None:
        text = encode_properties({"KEYS": keys}).encode()
        store.append([PendingRecord(topic, 0, topic.encode(), text, 0, NOW_MS, bytes(8))], NOW_MS)

    put("Aa", "k1")
    for _ in range(100):
        put("BB", "k1")
    ext = {"topic": "Aa", "key": "k1", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(NOW_MS * 2)}
    request = RemotingCommand(12, ext, opaque=7)
    sign(request, Keys(access_key="root", secret_key="rootpass"))
    (reply,) = broker.handle(ALICE, request, NOW_MS)
    assert [message.body for message in decode_records(reply.command.body)] == [b"Aa"]
    request = RemotingCommand(12, ext | {"key": "jP"}, opaque=7)
    sign(request, Keys(access_key="root", secret_key="rootpass"))
    (reply,) = broker.handle(ALICE, request, NOW_MS)
    assert reply.command.code == 22


def test_no_answer_has_a_secret() -> None:
    """Users, accounts, settings and statistics are shown without passwords and keys."""
    inner = '{"accessKey":"root","secretKey":"innerpass"}'
    users = WithUsers(inner_credentials=inner)
    users.make_user("alicealice")
    for code, ext in (
        (3004, {"username": "alicealice"}), (3005, {}), (3009, {"subject": "User:alicealice"}), (3010, {}), (26, {}),
        (28, {}), (54, {}), (52, {}),
    ):  # fmt: skip
        shown = users.ask("root", code, ext)
        for secret in ("alicealicepass", "rootpass", "innerpass"):
            assert secret not in shown.body.decode() + str(shown.ext) + str(shown.remark), code
    assert loads(users.ask("root", 3004, {"username": "alicealice"}).body)["username"] == "alicealice"
    assert users.broker.access.auth.users["alicealice"].password == "alicealicepass"
    files = WithFiles()
    for code in (26, 28, 52, 54):
        shown = files.ask("rocketmq2", code, {})
        assert "12345678" not in shown.body.decode() + str(shown.ext), code
        assert "billing123" not in shown.body.decode() + str(shown.ext), code


def test_a_record_that_a_body_imitates_is_not_read(two: Two) -> None:
    """A forged head in Bob's message before Alice's, with a forged end in his message after it, looks like one record:
    33 at its position returns no data of hers, nor do 36 and 309."""
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("bobbybobby", "Topic:stock", "Pub", "Sub", "Get")
    store, end = two.broker.store, bytes((5,)) + b"stock" + bytes(2)
    hers = b"nobody else's business"

    def three(head: bytes) -> tuple[int, int, int]:
        """Send Bob's head, Alice's message and Bob's end; return the position of each."""
        places = []
        for name, topic, body in (
            ("bobbybobby", "stock", head),
            ("alicealice", "orders", hers),
            ("bobbybobby", "stock", end),
        ):
            places.append(store.end_offset)
            assert two.send(name, topic, body, UNIQ_KEY="K").code == 0
        return places[0], places[1], places[2]

    first, _, last = three(bytes(RECORD_V4.size))
    place = store.end_offset + RECORD_V4.size
    hosts: dict[str, Any] = {
        "born_host": bytes(8),
        "store_host": bytes(8),
        "born_timestamp_ms": 1,
        "store_timestamp_ms": 1,
    }
    head = encode_record(
        "stock", bytes(last - first - RECORD_V4.size), queue_id=0, queue_offset=2, physical_offset=place, **hosts
    )[: RECORD_V4.size]
    three(head)
    msg_id = offset_msg_id(Host("127.0.0.1", 10911), place)
    requests: tuple[tuple[int, dict[str, str]], ...] = (
        (33, {"offset": str(place), "topic": "stock"}),
        (36, {"offset": str(place), "group": "h", "delayLevel": "0"}),
        (309, {"consumerGroup": "h", "clientId": "bob", "msgId": msg_id}),
    )
    before = store.end_offset
    for code, ext in requests:
        reply = two.ask("bobbybobby", code, ext)
        assert reply.code in (1, 22)
        assert hers not in reply.body
    assert store.end_offset == before


@pytest.mark.parametrize("code", [307, 309])
def test_a_signature_is_not_passed_on_to_a_client(two: Two, code: int) -> None:
    """An operator's request that is forwarded to a consumer does not give the consumer the operator's signature, which
    would fit another request with the same values."""
    if isinstance(two.guarded, WithUsers):
        for resource in ("Topic:stock", "Group:h"):
            two.guarded.allow("alicealice", resource, "Sub", "Get")
    else:
        two.broker.access.load_acl({"f": ACCOUNTS.replace("[g=SUB]", "[h=SUB]").replace("[orders=", "[stock=SUB, a=")})
    consumer = ConsumerData("h", subscription_data_set=(SubscriptionData("stock", "*"),))
    two.ask("bobbybobby", 34, {}, HeartbeatData("orders", consumer_data_set=(consumer,)).encode())
    place = two.broker.store.end_offset
    assert two.send("bobbybobby", "stock").code == 0
    msg_id = offset_msg_id(Host("127.0.0.1", 10911), place)
    ext = {"consumerGroup": "h", "clientId": "orders", "msgId": msg_id}
    request = RemotingCommand(code, dict(ext), opaque=8)
    sign(request, Keys(access_key="alicealice", secret_key="alicealicepass", security_token="token"))
    (sent,) = two.broker.handle(ALICE, request, two.now_ms)
    assert (sent.peer, sent.command.code) == (BOB.id, code)
    assert sent.command.ext == ext


REFUSED = (1, 16)


def grant(two: Two, name: str, topics: str, groups: str) -> None:
    """Grant Pub and Sub on topics and Sub on groups, besides what the other one has."""
    if isinstance(two.guarded, WithUsers):
        for topic in topics.split():
            two.guarded.allow(name, f"Topic:{topic}", "Pub", "Sub")
        for group in groups.split():
            two.guarded.allow(name, f"Group:{group}", "Sub")
        return
    perms = ", ".join(f"{topic}=PUB|SUB" for topic in topics.split())
    group_perms = ", ".join(f"{group}=SUB" for group in groups.split())
    own = f"{{accessKey: {name}, secretKey: {name}pass, topicPerms: [{perms}], groupPerms: [{group_perms}]}}"
    others = [line for line in ACCOUNTS.splitlines() if name not in line]
    two.broker.access.load_acl({"f": "\n".join([*others, f"- {own}"])})


def test_no_group_takes_the_name_of_pop_retries(two: Two) -> None:
    """%RETRY%g_orders has what g popped from orders. A grant for a group g_orders that does not exist does not open it,
    and the group cannot be made to take it over; g itself goes on."""
    two.broker.topics.update(TopicConfig("%RETRY%g_orders", 1, 1), NOW_MS)
    grant(two, "bobbybobby", "stock", "g_orders")
    consumer = ConsumerData("g_orders", subscription_data_set=(SubscriptionData("stock", "*"),))
    lock = LockBatchBody("g_orders", "bob", (MessageQueue("stock", "broker-a", 0),))
    for code, ext, body in (
        (11, pull_ext("%RETRY%g_orders", "g_orders"), b""),
        (11, pull_ext("stock", "g_orders"), b""),
        (34, {}, HeartbeatData("bob", consumer_data_set=(consumer,)).encode()),
        (36, {"group": "g_orders", "offset": "0", "delayLevel": "0"}, b""),
        (41, {}, lock.encode()),
        (310, {"a": "g_orders", "b": "%RETRY%g_orders", "e": "0", "i": ""}, b"x"),
    ):
        reply = two.ask("bobbybobby", code, ext, body)
        assert reply.code in REFUSED, code
        assert {"Group:g", "group:g:"} & set((reply.remark or "").split()), code
    assert two.broker.groups.get("g_orders") is None
    pop = {"invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
    assert two.ask("alicealice", 200050, pull_ext("orders", "g") | pop).code not in REFUSED
    assert two.ask("alicealice", 14, pull_ext("%RETRY%g_orders", "g")).code not in REFUSED
    place = two.broker.store.end_offset
    hers = {"a": "g", "b": "%RETRY%g_orders", "e": "0", "i": encode_properties({"KEYS": "k"})}
    assert two.ask("alicealice", 310, hers, b"hers").code == 0
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("bobbybobby", "Group:g_orders", "Sub", "Get")
        two.guarded.allow("alicealice", "Group:g", "Sub", "Get")
        two.guarded.allow("alicealice", "Topic:orders", "Pub", "Sub", "Get")
    query = {"topic": "%RETRY%g_orders", "key": "k", "maxNum": "9", "beginTimestamp": "0"}
    for code, ext in ((12, query | {"endTimestamp": str(NOW_MS * 2)}), (33, {"offset": str(place)})):
        assert two.ask("bobbybobby", code, ext).code in REFUSED, code
        assert b"hers" in two.ask("alicealice", code, ext).body, code


def test_pops_that_share_a_retry_topic_need_both(two: Two) -> None:
    """What g pops from x_orders and g_x from orders is retried in %RETRY%g_x_orders: neither may read the other's."""
    two.broker.groups.update(SubscriptionGroupConfig("g_x"), NOW_MS)
    two.broker.topics.update(TopicConfig("x_orders", 1, 1), NOW_MS)
    grant(two, "bobbybobby", "x_orders", "g")
    pop = pull_ext("x_orders", "g") | {"invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
    assert two.ask("bobbybobby", 200050, pop).code not in REFUSED
    two.broker.topics.update(TopicConfig("%RETRY%g_x_orders", 1, 1), NOW_MS)
    for code, ext in ((200050, pop), (11, pull_ext("%RETRY%g_x_orders", "g"))):
        reply = two.ask("bobbybobby", code, ext)
        assert reply.code in REFUSED
        assert "g_x" in (reply.remark or "")
    grant(two, "bobbybobby", "x_orders orders", "g g_x")
    assert two.ask("bobbybobby", 200050, pop).code not in REFUSED


def test_waiting_messages_are_not_shown_to_who_may_read_all_topics_but_theirs(two: Two) -> None:
    """A delayed message of a denied topic is not read in the topic where it waits, by no request that returns
    messages."""
    two.send("alicealice", "orders", b"hers", DELAY="3", UNIQ_KEY="A1", KEYS="k")
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("bobbybobby", "Topic:*", "Sub", "Get")
        two.guarded.allow("bobbybobby", "Topic:orders", "Sub", "Get", decision="Deny")
    else:
        keys = "accessKey: bobbybobby, secretKey: bobbybobbypass, defaultTopicPerm: SUB, topicPerms: [orders=DENY]"
        two.broker.access.load_acl({"f": f"accounts: [{{{keys}, groupPerms: [h=SUB]}}]"})
    pull = {**pull_ext("SCHEDULE_TOPIC_XXXX", "h"), "queueId": "2", "sysFlag": "4"}
    pop = {"invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0", "maxMsgNums": "1"}
    query = {"key": "k", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(NOW_MS * 2)}
    requests = ((11, pull), (361, pull), (200050, pull | pop), (200052, pull | pop), (12, pull | query))
    for code, ext in requests:
        reply = two.ask("bobbybobby", code, ext)
        assert reply.code in REFUSED, code
        assert not reply.body
    if isinstance(two.guarded, WithUsers):
        two.guarded.allow("bobbybobby", "Cluster:DefaultCluster", "Get")
        assert b"hers" in two.ask("bobbybobby", 11, pull).body
