"""Users and policies of 5.x: authentication, permissions, and their changes by mqadmin."""

from typing import Any

import pytest

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore
from mqtrail.wire import (
    AclInfo,
    BatchAck,
    BatchAckBody,
    ConsumerData,
    Credentials,
    HeartbeatData,
    Host,
    InvalidParameter,
    LockBatchBody,
    MessageQueue,
    Peer,
    PeerId,
    PolicyEntryInfo,
    PolicyInfo,
    RemotingCommand,
    SubscriptionData,
    SubscriptionGroupConfig,
    UserInfo,
    loads,
    sign,
)

from ..helpers import NOW_MS
from .test_plain import FILES, HARMLESS, pull_ext, send_ext

ROOT = '{"username":"root","password":"rootpass"}'


class Guarded:
    """A broker with users that gets signed requests."""

    def __init__(self, **settings: Any) -> None:
        self.config = BrokerConfig(**{"authentication": True, "authorization": True, "init_user": ROOT, **settings})
        self.disk = ConfigFileStore(MemoryDisk())
        self.start()

    def start(self) -> None:
        self.broker = Broker(self.config, MemoryStore(), self.disk, unique_id=lambda: "0" * 32, now_ms=NOW_MS)

    def ask(
        self, user: str | None, code: int, ext: dict[str, str] | None = None, body: bytes = b"", ip: str = "10.0.0.1"
    ) -> RemotingCommand:
        request = RemotingCommand(code, dict(ext or {}), body, opaque=7)
        if user is not None:
            sign(request, Credentials(access_key=user, secret_key=f"{user}pass"))
        (reply,) = [
            send.command
            for send in self.broker.handle(Peer(PeerId(1), Host(ip, 1)), request, NOW_MS)
            if send.command.opaque == 7
        ]
        return reply

    def make_user(self, name: str, **fields: str) -> None:
        info = UserInfo(None, f"{name}pass", **fields)
        assert self.ask("root", 3001, {"username": name}, info.encode()).code == 0

    def allow(self, name: str, resource: str, *actions: str, decision: str = "Allow", **fields: Any) -> RemotingCommand:
        kind = fields.pop("policy_type", None)
        entry = PolicyEntryInfo(resource, actions, fields.pop("ips", None), decision)
        info = AclInfo(None, (PolicyInfo(kind, (entry,)),))
        return self.ask("root", 3006, {"subject": f"User:{name}"}, info.encode())


@pytest.fixture
def guarded() -> Guarded:
    guarded = Guarded()
    guarded.make_user("alice")
    return guarded


def test_authentication(guarded: Guarded) -> None:
    """A missing or unknown name, a wrong password and a disabled user are each refused with 16 and 5.3.3's text."""
    assert guarded.ask("alice", *HARMLESS).code == 0
    unsigned = guarded.ask(None, 28)
    assert (unsigned.code, (unsigned.remark or "").startswith("username cannot be null.")) == (16, True)
    unknown = guarded.ask("bob", 28)
    assert (unknown.code, (unknown.remark or "").startswith("User:bob is not found.")) == (16, True)
    request = RemotingCommand(28, {}, opaque=7)
    sign(request, Credentials(access_key="alice", secret_key="guess"))
    refusal = guarded.broker.access.check(Peer(PeerId(1), Host("10.0.0.1", 1)), request)
    assert refusal is not None
    assert (refusal.response_code, refusal.remark.startswith("check signature failed.")) == (16, True)
    assert guarded.ask("root", 3002, {"username": "alice"}, UserInfo(user_status="disable").encode()).code == 0
    disabled = guarded.ask("alice", *HARMLESS)
    assert (disabled.code, (disabled.remark or "").startswith("User:alice is disabled.")) == (16, True)


def test_white_lists() -> None:
    """Codes on a white list are not checked."""
    guarded = Guarded(authentication_whitelist="35, 34", authorization_whitelist="310")
    assert guarded.ask(None, *HARMLESS).code == 0
    guarded.make_user("alice")
    assert guarded.ask("alice", 310, send_ext("orders"), b"x").code != 16
    with pytest.raises(InvalidParameter, match="request codes"):
        Guarded(authentication_whitelist="28,pull")


CASES = [
    ("Topic:orders", ("Pub",), 310, send_ext("orders"), True),
    ("Topic:orders", ("Pub",), 320, send_ext("orders"), True),
    ("Topic:orders", ("Sub",), 310, send_ext("orders"), False),
    ("Topic:orders", ("All",), 310, send_ext("orders"), True),
    ("Topic:ord*", ("Pub",), 310, send_ext("orders"), True),
    ("Topic:ord*", ("Pub",), 310, send_ext("stock"), False),
    ("Topic:*", ("Pub",), 310, send_ext("stock"), True),
    ("*", ("Pub",), 310, send_ext("stock"), True),
    ("Group:orders", ("All",), 310, send_ext("orders"), False),
    ("Group:billing", ("Sub",), 310, send_ext("%RETRY%billing", "billing"), True),
    ("Group:billing", ("Sub",), 36, {"group": "billing", "offset": "0", "delayLevel": "0"}, True),
    ("Topic:orders", ("Sub",), 11, pull_ext("orders", "billing"), False),
    ("*", ("Sub",), 11, pull_ext("orders", "billing"), True),
    ("Group:billing", ("Sub",), 11, pull_ext("%RETRY%billing", "billing"), True),
    ("Topic:orders", ("Get",), 30, {"topic": "orders", "queueId": "0"}, True),
    ("Topic:orders", ("Pub",), 30, {"topic": "orders", "queueId": "0"}, False),
    ("Topic:new", ("Create",), 17, {"topic": "new", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}, True),
    ("Topic:new", ("Pub",), 17, {"topic": "new"}, False),
    ("Topic:orders", ("Delete",), 215, {"topic": "orders"}, True),
    ("Cluster:DefaultCluster", ("Get",), 3005, {}, True),
    ("Cluster:DefaultCluster", ("Get",), 3003, {"username": "x"}, False),
    ("Cluster:other", ("All",), 3005, {}, False),
    ("Cluster:DefaultCluster", ("Get",), 25, {}, False),
    ("Group:billing", ("Get",), 203, {"consumerGroup": "billing"}, True),
    ("Group:billing", ("Get",), 208, {"consumerGroup": "billing"}, True),
    ("Group:billing", ("Get",), 208, {"consumerGroup": "billing", "topicList": "a;b"}, False),
    ("Group:billing", ("Get",), 14, {"consumerGroup": "billing", "topic": "%RETRY%billing", "queueId": "0"}, True),
    ("Group:billing", ("Create",), 200, {}, True),
]


@pytest.mark.parametrize(("resource", "actions", "code", "ext", "allowed"), CASES)
def test_policies(
    guarded: Guarded, resource: str, actions: tuple[str, ...], code: int, ext: dict[str, str], allowed: bool
) -> None:
    """An entry allows its actions on its resource, and no others."""
    assert guarded.allow("alice", resource, *actions).code == 0
    reply = guarded.ask("alice", code, ext, SubscriptionGroupConfig("billing").encode() if code == 200 else b"x")
    assert (reply.code == 16) is not allowed, reply.remark
    if not allowed:
        assert (reply.remark or "").startswith("User:alice has no permission to access ")
        assert "from 10.0.0.1, no matched policies." in (reply.remark or "")


def test_bodies_name_resources(guarded: Guarded) -> None:
    """A heartbeat and a lock need permissions for the resources in their bodies."""
    consumer = ConsumerData(group_name="billing", subscription_data_set=(SubscriptionData.build("orders", "*"),))
    beat = HeartbeatData(client_id="c", consumer_data_set=(consumer,)).encode()
    lock = LockBatchBody("billing", "c", (MessageQueue("orders", "broker-a", 0),)).encode()
    assert guarded.ask("alice", 34, {}, beat).code == 16
    guarded.allow("alice", "Group:billing", "Sub")
    assert guarded.ask("alice", 41, {}, lock).code == 16
    guarded.allow("alice", "Topic:orders", "Sub")
    assert guarded.ask("alice", 34, {}, beat).code == 0
    assert guarded.ask("alice", 41, {}, lock).code == 0
    assert guarded.ask("alice", 34, {}, b"no json").code == 16
    acks = BatchAckBody("broker-a", (BatchAck("billing", "stock"),)).encode()
    assert guarded.ask("alice", 200151, {}, acks).code == 16
    acks = BatchAckBody("broker-a", (BatchAck("billing", "orders"),)).encode()
    assert guarded.ask("alice", 200151, {}, acks).code != 16


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([("Topic:orders", "Allow"), ("Topic:ord*", "Deny")], True),
        ([("Topic:ord*", "Deny"), ("Topic:orders", "Allow")], True),
        ([("Topic:orders", "Deny"), ("Topic:ord*", "Allow"), ("*", "Allow")], False),
        ([("Topic:o*", "Deny"), ("Topic:ord*", "Allow")], True),
        ([("Topic:ord*", "Deny"), ("Topic:o*", "Allow")], False),
        ([("Topic:*", "Deny"), ("Topic:o*", "Allow")], True),
        ([("*", "Allow"), ("Topic:*", "Deny")], False),
        ([("*", "Deny"), ("Topic:*", "Allow")], True),
        ([("Topic:stock", "Deny"), ("Topic:*", "Allow")], True),
    ],
)
def test_precedence(guarded: Guarded, entries: list[tuple[str, str]], allowed: bool) -> None:
    """The entry with the most specific resource decides, in any order of creation."""
    for resource, decision in entries:
        assert guarded.allow("alice", resource, "Pub", decision=decision).code == 0
    reply = guarded.ask("alice", 310, send_ext("orders"), b"x")
    assert (reply.code != 16) is allowed
    if not allowed:
        assert "the decision is deny." in (reply.remark or "")


def test_of_equal_entries_the_denial_counts(guarded: Guarded) -> None:
    """Two entries for one resource in one request: the one that denies is kept."""
    for first, second in (("Allow", "Deny"), ("Deny", "Allow")):
        entries = tuple(PolicyEntryInfo("Topic:orders", ("Pub",), None, decision) for decision in (first, second))
        info = AclInfo(None, (PolicyInfo("Custom", entries),))
        assert guarded.ask("root", 3006, {"subject": "User:alice"}, info.encode()).code == 0
        assert guarded.ask("alice", 310, send_ext("orders"), b"x").code == 16


def test_default_policy_is_for_what_no_custom_one_says(guarded: Guarded) -> None:
    """A default entry applies where no custom entry matches."""
    guarded.allow("alice", "Topic:*", "Pub", policy_type="Default")
    assert guarded.ask("alice", 310, send_ext("stock"), b"x").code != 16
    guarded.allow("alice", "Topic:*", "Pub", decision="Deny")
    assert guarded.ask("alice", 310, send_ext("stock"), b"x").code == 16


def test_sources(guarded: Guarded) -> None:
    """An entry with source addresses applies to those only."""
    guarded.allow("alice", "Topic:orders", "Pub", ips=("10.0.0.0/24", "fe80::1"))
    assert guarded.ask("alice", 310, send_ext("orders"), b"x").code != 16
    assert guarded.ask("alice", 310, send_ext("orders"), b"x", ip="fe80::1").code != 16
    assert guarded.ask("alice", 310, send_ext("orders"), b"x", ip="10.0.1.1").code == 16


def test_super_users_may_do_everything(guarded: Guarded) -> None:
    """They need no policy."""
    assert guarded.ask("root", 310, send_ext("orders"), b"x").code != 16
    assert guarded.ask("root", 25).code != 16


def test_users_are_administered(guarded: Guarded) -> None:
    """3001 to 3005, with 5.3.3's codes."""
    again = guarded.ask("root", 3001, {"username": "alice"}, UserInfo(None, "x").encode())
    assert (again.code, (again.remark or "").startswith("The user is existed")) == (16, True)
    assert guarded.ask("root", 3001, {"username": ""}, b"{}").code == 29
    assert guarded.ask("root", 3001, {"username": "bob"}, b"{}").code == 16  # no password
    shown = loads(guarded.ask("root", 3004, {"username": "alice"}).body)
    assert shown == {"password": "", "userStatus": "enable", "userType": "Normal", "username": "alice"}
    assert guarded.ask("root", 3004, {"username": "nobody"}).body == b""
    assert [user["username"] for user in loads(guarded.ask("root", 3005, {"filter": "li"}).body)] == ["alice"]
    assert guarded.ask("root", 3002, {"username": "bob"}, UserInfo(None, "x").encode()).code == 16
    changed = UserInfo(user_type="super").encode()
    assert guarded.ask("root", 3002, {"username": "alice"}, changed).code == 0
    assert guarded.ask("alice", 3005).code == 0  # a Super user by now
    assert guarded.ask("root", 3003, {"username": "alice"}).code == 0
    assert guarded.ask("alice", *HARMLESS).code == 16


def test_super_users_are_changed_by_super_users(guarded: Guarded) -> None:
    """A user who may update the cluster but is not a Super user can neither create nor change a Super user."""
    guarded.allow("alice", "Cluster:DefaultCluster", "Update")
    rise = UserInfo(None, "x", "Super").encode()
    assert guarded.ask("alice", 3001, {"username": "evil"}, rise).code == 1
    assert guarded.ask("alice", 3002, {"username": "alice"}, rise).code == 1
    assert guarded.ask("alice", 3002, {"username": "root"}, UserInfo(None, "mine").encode()).code == 16
    assert guarded.ask("alice", 3003, {"username": "root"}).code == 16
    assert guarded.ask("alice", 3001, {"username": "peer"}, UserInfo(None, "x").encode()).code == 0


def test_policies_are_administered(guarded: Guarded) -> None:
    """3006 to 3010, with 5.3.3's codes; saved policies exist after a restart."""
    guarded.allow("alice", "Topic:orders", "Pub", "Sub", ips=("10.0.0.1",))
    guarded.allow("alice", "Group:*", "Sub", decision="Deny", policy_type="Default")
    shown = loads(guarded.ask("root", 3009, {"subject": "User:alice"}).body)
    assert shown["policies"][0] == {
        "policyType": "Custom",
        "entries": [
            {"actions": ["Pub", "Sub"], "decision": "Allow", "resource": "Topic:orders", "sourceIps": ["10.0.0.1"]}
        ],
    }
    assert [policy["policyType"] for policy in shown["policies"]] == ["Custom", "Default"]
    guarded.start()
    assert loads(guarded.ask("root", 3009, {"subject": "User:alice"}).body) == shown
    listed = loads(guarded.ask("root", 3010, {"resourceFilter": "orders"}).body)
    assert [len(one["policies"]) for one in listed] == [1]
    assert guarded.ask("root", 3010, {"subjectFilter": "nobody"}).body == b""
    gone = {"subject": "User:alice", "resource": "Topic:orders", "policyType": "Custom"}
    assert guarded.ask("root", 3008, gone).code == 0
    assert len(loads(guarded.ask("root", 3009, {"subject": "User:alice"}).body)["policies"]) == 1
    assert guarded.ask("root", 3008, {"subject": "User:alice"}).code == 0
    assert guarded.ask("root", 3009, {"subject": "User:alice"}).body == b""
    assert guarded.ask("root", 3008, {"subject": "User:alice"}).code == 16
    assert guarded.ask("root", 3009, {"subject": "User:nobody"}).code == 16
    assert guarded.ask("root", 3009, {"subject": "alice"}).code == 16


@pytest.mark.parametrize(
    ("resource", "actions", "fields", "remark"),
    [
        ("Thing:x", ("Pub",), {}, "The resource is null"),
        ("Topic:x", (), {}, "The actions is empty"),
        ("Topic:x", ("Any",), {}, "The actions can not be Any"),
        ("Topic:x", ("Pub",), {"decision": "Maybe"}, "The decision is null or illegal"),
        ("Topic:x", ("Pub",), {"ips": ("host",)}, "The source ip is invalid"),
    ],
)
def test_wrong_policies_are_refused(
    guarded: Guarded, resource: str, actions: tuple[str, ...], fields: dict[str, Any], remark: str
) -> None:
    """The refusal has 16 and 5.3.3's text; nothing is saved."""
    reply = guarded.allow("alice", resource, *actions, **fields)
    assert (reply.code, (reply.remark or "").startswith(remark)) == (16, True)
    assert guarded.ask("root", 3009, {"subject": "User:alice"}).body == b""


@pytest.mark.parametrize("text", ["root", "[]", '{"username":"root"}'])
def test_wrong_first_user_is_refused_unshown(text: str) -> None:
    """An invalid first user stops the start; the error does not show its text."""
    with pytest.raises(InvalidParameter) as error:
        Guarded(init_user=text)
    assert text not in error.value.remark


def test_first_user_is_made_once() -> None:
    """The next start does not reset a changed password; the settings do not show the password."""
    guarded = Guarded()
    assert guarded.ask("root", 3002, {"username": "root"}, UserInfo(None, "changed").encode()).code == 0
    guarded.start()
    assert guarded.ask("root", 28).code == 16
    assert "rootpass" not in repr(guarded.config)


def test_accounts_of_acl_files_become_users() -> None:
    """migrateAuthFromV1Enabled: keys, permissions and defaults become users and policies, once."""
    guarded = Guarded(migrate_acl=True)
    guarded.broker.access.load_acl(FILES)
    assert guarded.broker.access.auth.users["rocketmq2"].user_type == "Super"
    peer = Peer(PeerId(1), Host("10.0.0.1", 1))

    def may(topic: str) -> bool:
        request = RemotingCommand(310, send_ext(topic), b"x")
        sign(request, Credentials(access_key="RocketMQ", secret_key="12345678"))
        return guarded.broker.access.check(peer, request) is None

    assert [may(topic) for topic in ("topicA", "topicB", "topicC", "other")] == [False, True, False, False]
    guarded.broker.access.auth.delete_acl("User:RocketMQ")
    guarded.broker.access.load_acl(FILES)
    assert not may("topicB")  # a user that is there is left alone
