"""ACL files: permissions, source addresses, changes, and 4.9's texts of refusals."""

import traceback
from typing import Any

import pytest
import yaml

from mqtrail.broker import Broker, BrokerConfig, read_rules
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore
from mqtrail.wire import (
    TRACE_TOPIC,
    ConsumerData,
    Credentials,
    HeartbeatData,
    Host,
    InvalidParameter,
    Peer,
    PeerId,
    RemotingCommand,
    RequestCode,
    SubscriptionData,
    loads,
    sign,
)

from ..helpers import NOW_MS, PEER

DEFAULT = "/conf/plain_acl.yml"
MORE = "/conf/acl/more.yml"
FILES = {
    MORE: """
accounts:
- {accessKey: billing, secretKey: billing123, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: RocketMQ, secretKey: 12345678, topicPerms: [topicA=DENY, topicB=PUB|SUB, topicC=SUB],
   groupPerms: [groupA=DENY, groupB=PUB|SUB, groupC=SUB], defaultTopicPerm: DENY, defaultGroupPerm: SUB}
""",
    DEFAULT: """
globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
accounts:
- {accessKey: rocketmq2, secretKey: 12345678, admin: true, whiteRemoteAddress: 192.168.1.*}
- {accessKey: operator, secretKey: 12345678, admin: true, topicPerms: [topicB=PUB]}
""",
}


class Files:
    """ACL files in memory."""

    default = DEFAULT

    def __init__(self) -> None:
        self.texts = dict(FILES)

    def write(self, name: str, text: str) -> None:
        self.texts[name] = text


class Guarded:
    """A broker with these ACL files that gets signed requests."""

    def __init__(self, **settings: Any) -> None:
        self.files = Files()
        config = BrokerConfig(acl=True, **settings)
        disk = ConfigFileStore(MemoryDisk())
        self.broker = Broker(
            config, MemoryStore(), disk, unique_id=lambda: "0" * 32, now_ms=NOW_MS, acl_files=self.files
        )
        self.broker.access.load_acl(self.files.texts)

    def ask(
        self, key: str | None, code: int, ext: dict[str, str] | None = None, body: bytes = b"", ip: str = "10.0.0.1"
    ) -> RemotingCommand:
        request = RemotingCommand(code, dict(ext or {}), body, opaque=7)
        if key is not None:
            secret = "billing123" if key == "billing" else "12345678"
            sign(request, Credentials(access_key=key, secret_key=secret))
        (reply,) = [
            send.command
            for send in self.broker.handle(Peer(PeerId(1), Host(ip, 1)), request, NOW_MS)
            if send.command.opaque == 7
        ]
        return reply


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


HARMLESS = RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "g"}  # every known user may


def send_ext(topic: str, group: str = "pg") -> dict[str, str]:
    return {"a": group, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}


def pull_ext(topic: str, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "code", "ext", "remark"),
    [
        (None, 310, send_ext("topicB"), "No accessKey is configured"),
        ("nobody", 310, send_ext("topicB"), "No acl config for nobody"),
        ("RocketMQ", 310, send_ext("topicA"), "No default permission for topic:topicA"),
        ("RocketMQ", 310, send_ext("topicB"), None),
        ("RocketMQ", 310, send_ext("topicC"), "No default permission for topic:topicC"),
        ("RocketMQ", 310, send_ext("other"), "No default permission for topic:other"),
        ("RocketMQ", 320, send_ext("other"), "No default permission for topic:other"),
        ("RocketMQ", 310, send_ext(TRACE_TOPIC), None),
        ("RocketMQ", 310, send_ext("%RETRY%groupC", "groupC"), None),
        ("RocketMQ", 310, send_ext("%RETRY%groupA", "groupA"), "No default permission for group:groupA"),
        ("RocketMQ", 10, {"topic": "topicA", "producerGroup": "g"}, "No default permission for topic:topicA"),
        ("RocketMQ", 11, pull_ext("topicC", "groupC"), None),
        ("RocketMQ", 11, pull_ext("topicC", "groupA"), "No default permission for group:groupA"),
        ("RocketMQ", 11, pull_ext("topicC", "unlisted"), None),
        ("RocketMQ", 36, {"group": "groupA", "offset": "0", "delayLevel": "0"}, "No default permission for group:"),
        ("RocketMQ", 12, {"topic": "other", "key": "k"}, "No default permission for topic:other"),
        ("RocketMQ", 38, {"consumerGroup": "groupA"}, "No default permission for group:groupA"),
        ("RocketMQ", 35, {"clientID": "c", "consumerGroup": "groupA"}, "No default permission for group:groupA"),
        ("RocketMQ", 35, {"clientID": "c", "producerGroup": "g"}, None),
        ("RocketMQ", 17, {"topic": "new"}, "Need admin permission for request code=17, but accessKey=RocketMQ is not"),
        ("RocketMQ", 50, {"accessKey": "x"}, "Need admin permission for request code=50"),
        ("RocketMQ", 28, {}, "Need admin permission for request code=28"),
        ("rocketmq2", 310, send_ext("anything"), None),
        ("operator", 310, send_ext("anything"), "No default permission for topic:anything"),
        ("operator", 310, send_ext("topicB"), None),
        ("billing", 310, send_ext("anything"), None),
    ],
)
def test_permissions(guarded: Guarded, key: str | None, code: int, ext: dict[str, str], remark: str | None) -> None:
    """An account has the permissions of its file; a refusal has 4.9's text and code 1."""
    reply = guarded.ask(key, code, ext, b"body")
    if remark is None:
        assert not any(word in (reply.remark or "") for word in ("accessKey", "permission", "acl config"))
    else:
        assert reply.code == 1
        assert (reply.remark or "").startswith(remark)


def test_heartbeat_needs_every_group_and_topic(guarded: Guarded) -> None:
    """One topic that a consumer may not read refuses the whole heartbeat."""

    def beat(*topics: str) -> RemotingCommand:
        consumer = ConsumerData(
            group_name="groupC", subscription_data_set=tuple(SubscriptionData.build(topic, "*") for topic in topics)
        )
        data = HeartbeatData(client_id="c", consumer_data_set=(consumer,))
        return guarded.ask("RocketMQ", 34, {}, data.encode())

    assert beat("topicB", "%RETRY%groupC").code == 0
    assert (beat("topicB", "topicA").remark or "").startswith("No default permission for topic:topicA")


def test_white_addresses_need_no_signature(guarded: Guarded) -> None:
    """A global white address may do everything; an account's own needs its name alone."""
    assert guarded.ask(None, 28, ip="192.168.0.9").code == 0
    request = RemotingCommand(28, {"AccessKey": "rocketmq2"})
    assert guarded.broker.access.check(Peer(PeerId(1), Host("192.168.1.5", 1)), request) is None
    assert guarded.broker.access.check(PEER, request) is not None


def test_wrong_signature(guarded: Guarded) -> None:
    """Another body or key is rejected with 4.9's text."""
    request = RemotingCommand(310, send_ext("topicB"), b"body")
    sign(request, Credentials(access_key="RocketMQ", secret_key="12345678"))
    request.body = b"other"
    refusal = guarded.broker.access.check(PEER, request)
    assert refusal is not None
    assert refusal.remark.startswith("Check signature failed for accessKey=RocketMQ")
    assert refusal.response_code == 1


MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
# Each list has ten times the one before: 10^9 values in 400 characters.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("accounts: [", "found invalid YAML"),
        ("- a", "found a list"),
        ("accounts: {a: 1}", "accounts that is a dict"),
        ("accounts: [{accessKey: short, secretKey: 12345678}]", "accessKey=short"),
        ("accounts: [{accessKey: longenough, secretKey: short}]", "longer than 6"),
        ("accounts: [{accessKey: longenough, secretKey: 12345678, topicPerms: [a]}]", "topic:a"),
        ("accounts: [{accessKey: longenough, secretKey: 12345678, whiteRemoteAddress: host}]", "Netaddress"),
        ("globalWhiteRemoteAddresses: [host]", "Netaddress"),
        ("!!python/object/apply:os.system [ls]", "found invalid YAML"),
        (BOMB + "accounts: [{accessKey: *h, secretKey: 12345678}]", "aliases that expand to"),
        (BOMB + "accounts: *h", "aliases that expand to"),
        (BOMB + "globalWhiteRemoteAddresses: *h", "aliases that expand to"),
        (MERGES + "accounts: [{<<: *h, accessKey: longenough, secretKey: 12345678}]", "aliases that expand to"),
        ("accounts: &r [*r]", "found invalid YAML"),
    ],
)
def test_broken_file_keeps_the_old_rules(guarded: Guarded, text: str, found: str) -> None:
    """A file that cannot be read is reported, and the previous rules stay in force."""
    with pytest.raises(InvalidParameter, match=DEFAULT) as error:
        guarded.broker.access.load_acl({DEFAULT: text})
    assert found in error.value.remark
    assert guarded.ask("billing", *HARMLESS).code == 0


def test_secrets_are_in_no_error(guarded: Guarded) -> None:
    """The error about a file does not contain its keys."""
    with pytest.raises(InvalidParameter) as error:
        guarded.broker.access.load_acl({DEFAULT: "accounts: [{accessKey: abc, secretKey: sesame-open}]"})
    assert "sesame" not in error.value.remark
    assert "12345678" not in repr(guarded.broker.access.plain.rules)


def test_ignored_keys_are_reported(guarded: Guarded) -> None:
    """Unknown keys and an access key in two files are reported; the first file counts."""
    reports = guarded.broker.access.load_acl(
        {
            MORE: "accounts: [{accessKey: billing, secretKey: billing123, topicPerm: [a=PUB]}]",
            DEFAULT: "globalWhite: []\naccounts: [{accessKey: billing, secretKey: another1, admin: true}]",
        }
    )
    assert any("topicPerm" in text for text in reports)
    assert any("globalWhite" in text for text in reports)
    assert any(MORE in text and "already" in text for text in reports)
    assert not guarded.broker.access.plain.rules.accounts["billing"].admin


def test_administration(guarded: Guarded) -> None:
    """50 creates and changes accounts in their file, 51 deletes them, 53 sets white addresses, 52 and 54 show them."""
    made = {"accessKey": "newcomer", "secretKey": "12345678", "topicPerms": "a=PUB,b=PUB|SUB", "admin": "false"}
    assert guarded.ask("rocketmq2", 50, made).code == 0
    account = yaml.safe_load(guarded.files.texts[DEFAULT])["accounts"][-1]
    assert account["topicPerms"] == ["a=PUB", "b=PUB|SUB"]
    assert guarded.ask("newcomer", 310, send_ext("a"), b"x").code != 1
    assert guarded.ask("rocketmq2", 50, {"accessKey": "billing", "secretKey": "billing123", "admin": "true"}).code == 0
    changed = yaml.safe_load(guarded.files.texts[MORE])
    assert changed["accounts"][0]["admin"] is True
    assert changed["accounts"][0]["defaultTopicPerm"] == "PUB|SUB"  # what the request omitted stays
    assert changed["dataVersion"] == [{"counter": 1, "timestamp": NOW_MS}]
    versions = guarded.ask("rocketmq2", 52).ext
    assert loads(versions["allAclFileVersion"].encode())[MORE]["counter"] == 1
    assert loads(versions["version"].encode())["counter"] == 1
    shown = guarded.ask("rocketmq2", 54).body
    assert b"newcomer" in shown
    assert b"12345678" not in shown
    assert guarded.ask("rocketmq2", 51, {"accessKey": "newcomer"}).code == 0
    assert guarded.ask("newcomer", *HARMLESS).code == 1
    assert guarded.ask("rocketmq2", 51, {"accessKey": "newcomer"}).code == 210
    assert guarded.ask("rocketmq2", 53, {"globalWhiteAddrs": "10.0.0.1,10.0.1.*"}).code == 0
    assert guarded.ask(None, 28).code == 0
    assert guarded.ask("rocketmq2", 53, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/passwd"}).code == 211
    broker = Guarded().broker
    assert broker.access.load_acl(guarded.files.texts) == ()  # what was written reads again


@pytest.mark.parametrize(
    "wrong",
    [
        {"accessKey": "short", "secretKey": "12345678"},
        {"accessKey": "longenough"},
        {"accessKey": "longenough", "secretKey": "12345678", "topicPerms": "a=PUT"},
        {"accessKey": "longenough", "secretKey": "12345678", "whiteRemoteAddress": "host"},
    ],
)
def test_wrong_change_is_refused(guarded: Guarded, wrong: dict[str, str]) -> None:
    """The code is 209, and no file is changed."""
    before = dict(guarded.files.texts)
    reply = guarded.ask("rocketmq2", RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, wrong)
    assert reply.code == 209
    assert guarded.files.texts == before


def test_full_disk_changes_nothing(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that could not be saved has no effect."""

    def full(name: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(guarded.files, "write", full)
    reply = guarded.ask("rocketmq2", 50, {"accessKey": "newcomer", "secretKey": "12345678"})
    assert (reply.code, "No space" in (reply.remark or "")) == (209, True)
    assert "newcomer" not in guarded.broker.access.plain.rules.accounts


@pytest.mark.parametrize(
    "text",
    [
        "accounts:\n- accessKey: seller1\n  secretKey: sesame-42: oops\n",
        "accounts: [{accessKey: seller1, secretKey: 'sesame-42]\n",
        "accounts: [{secretKey: *sesame-42}]\n",
        "accounts: [{secretKey: !sesame-42 x}]\n",
        "- secretKey: sesame-42\n",
        "accounts: {secretKey: sesame-42}\n",
        "accounts: [sesame-42]\n",
        "accounts: [{accessKey: s, secretKey: sesame-42}]\n",
        "accounts: [{accessKey: seller1, secretKey: ses-42}]\n",
    ],
)
def test_errors_of_a_file_show_no_secret_key(text: str) -> None:
    """The YAML reader's own messages quote the wrong line."""
    with pytest.raises(InvalidParameter) as error:
        read_rules({"plain_acl.yml": text})
    assert "plain_acl.yml" in str(error.value)
    assert "ses" not in "".join(traceback.format_exception_only(error.value))
    assert error.value.__cause__ is None or "ses" not in str(error.value.__cause__)
