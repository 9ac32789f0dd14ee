"""Signed requests in the fast lane: it serves the same requests as `handle`, with the same results."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqtrail.broker import Lane
from mqtrail.broker.lane import signed as signed_lane
from mqtrail.wire import (
    BatchItem,
    ConsumerData,
    Credentials,
    Frame,
    HeartbeatData,
    Peer,
    RemotingCommand,
    RemotingError,
    SubscriptionData,
    TopicConfig,
    cut_frame,
    decode_command,
    encode_batch,
    encode_command,
    encode_frame,
    is_signed_with,
    sign,
)

from ..helpers import NOW_MS, OTHER, PEER
from ..lane.test_lane import frames_of
from .test_auth import Guarded as WithUsers
from .test_plain import Guarded as WithFiles

SEND = {
    "a": "pg", "b": "topicB", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01AC1100010000000000000000000000000\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    "n": "broker-a",
}  # fmt: skip
PULL = {
    "consumerGroup": "groupC", "topic": "topicB", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip
ALICE, CAROL = ("alice", "alicepass"), ("carol", "carolpass")
BATCH = encode_batch([BatchItem(b"one", b""), BatchItem(b"two", b"")])


def signed(code: int, ext: dict[str, str], body: bytes = b"", key: str = "RocketMQ", secret: str = "12345678") -> bytes:
    command = RemotingCommand(code, dict(ext), body, opaque=5)
    sign(command, Credentials(access_key=key, secret_key=secret))
    return encode_command(command)


class Twins:
    """Two guarded brokers: one served by its lane, one by handle."""

    def __init__(self, kind: type[Any]) -> None:
        self.fast, self.general = kind(), kind()
        for one in (self.fast, self.general):
            one.broker.topics.update(TopicConfig("topicB", 4, 4), NOW_MS)
            one.broker.topics.update(TopicConfig("topicA", 4, 4), NOW_MS)
        self.handled = 0
        self.lane = Lane(self.fast.broker, self._count)

    def _count(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Any]:
        self.handled += 1
        return list(self.fast.broker.handle(peer, command, now_ms))

    def feed(self, frame: bytes, peer: Peer = PEER) -> bytes:
        served = self.lane.process(peer, frame, 0, len(frame), NOW_MS)
        assert served.position == len(frame)
        fast = frames_of(served.replies) + [encode_command(send.command) for send in served.sends]
        other = Lane(self.general.broker, self.general.broker.handle)
        other._json_headers, other._reads_binary = {}, False
        slow = [encode_command(send.command) for send in other.process(peer, frame, 0, len(frame), NOW_MS).sends]
        assert fast == slow
        return b"".join(fast)


@pytest.fixture
def files() -> Twins:
    return Twins(WithFiles)


def test_signed_requests_take_the_lane(files: Twins) -> None:
    """The lane serves sends, batches and pulls of a permitted account without `handle`, with the same results."""
    assert b'"code":0' in files.feed(signed(310, SEND, b"hello"))
    assert b'"code":0' in files.feed(signed(320, {**SEND, "m": "true", "i": ""}, BATCH))
    token = RemotingCommand(310, dict(SEND), b"hello", opaque=5)
    sign(token, Credentials(access_key="RocketMQ", secret_key="12345678", security_token="sts"))
    assert b'"code":0' in files.feed(encode_command(token))
    files.handled = 0
    files.feed(signed(310, SEND, b"again"))
    assert files.handled == 0
    data = HeartbeatData(
        client_id="c",
        consumer_data_set=(ConsumerData("groupC", subscription_data_set=(SubscriptionData.build("topicB", "*"),)),),
    )
    files.feed(signed(34, {}, data.encode()))
    files.handled = 0
    found = files.feed(signed(11, PULL))
    assert b'"remark":"FOUND"' in found
    assert b"hello" in found
    assert files.handled == 0
    logs = [one.broker.store.end_offset for one in (files.fast, files.general)]
    assert logs[0] == logs[1] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"b": "topicA"},
        {"e": "1"},
        {"i": "WAIT\x01true\x02"},
        {"Signature": "xpS2X5pR3eXfPqKxlBWjhgIPmYc="},
        {"Signature": ""},
        {"Signature": "é"},
        {"AccessKey": "rocketmq2"},
        {"AccessKey": "nobody"},
        {"SecurityToken": "x"},
        {"extra": "x"},
    ],
)
def test_every_signature_is_checked(files: Twins, change: dict[str, str]) -> None:
    """After a valid request, the same request with any changed part is refused."""
    assert b'"code":0' in files.feed(signed(310, SEND, b"hello"))
    end = files.fast.broker.store.end_offset
    command = RemotingCommand(310, dict(SEND), b"hello", opaque=5)
    sign(command, Credentials(access_key="RocketMQ", secret_key="12345678"))
    command.ext |= change
    assert b'"code":1,' in files.feed(encode_command(command))
    assert files.fast.broker.store.end_offset == end


def test_unsigned_and_binary_requests_are_checked(files: Twins) -> None:
    """Requests that the lane would serve without access control go to handle, which rejects them."""
    files.feed(signed(310, SEND, b"hello"))
    assert b"No accessKey" in files.feed(encode_command(RemotingCommand(310, dict(SEND), b"x", opaque=5)))
    body = json.dumps({"code": 10, "extFields": {"topic": "topicB"}, "flag": 0, "opaque": 5}).encode()
    assert b"No accessKey" in files.feed(encode_frame(Frame(0, body, b"x")))


def test_changed_rules_count_at_once(files: Twins) -> None:
    """A change of the files drops what the lane cached about an account, for every address."""
    files.feed(signed(310, SEND, b"hello"))
    files.feed(signed(310, SEND, b"hello"), OTHER)
    for one in (files.fast, files.general):
        one.broker.access.load_acl({"f": "accounts: [{accessKey: RocketMQ, secretKey: 12345678}]"})
    assert b"No default permission" in files.feed(signed(310, SEND, b"hello"))
    assert b"No default permission" in files.feed(signed(310, SEND, b"hello"), OTHER)


def test_users_take_the_lane_too() -> None:
    """5.x users are served like accounts: in the lane while allowed, refused once disabled."""
    twins = Twins(WithUsers)
    for one in (twins.fast, twins.general):
        one.make_user("alice")
        one.allow("alice", "Topic:topicB", "Pub")
    frame = signed(310, SEND, b"hello", "alice", "alicepass")
    assert b'"code":0' in twins.feed(frame)
    assert twins.handled == 0
    for one in (twins.fast, twins.general):
        one.ask("root", 3002, {"username": "alice"}, b'{"userStatus":"disable"}')
    assert b'"code":16' in twins.feed(frame)


@pytest.mark.parametrize(
    ("known", "foreign", "peer"),
    [
        (signed(310, SEND, b"x", *ALICE), signed(310, {**SEND, "b": "topicA"}, b"x", *ALICE), PEER),
        (signed(11, PULL, b"", *ALICE), signed(11, {**PULL, "topic": "topicA"}, b"", *ALICE), PEER),
        (signed(11, PULL, b"", *ALICE), signed(11, {**PULL, "consumerGroup": "groupD"}, b"", *ALICE), PEER),
        (signed(11, PULL, b"", *CAROL), signed(310, {**SEND, "a": "groupC"}, b"x", *CAROL), PEER),
        (signed(310, SEND, b"x", *ALICE), signed(310, SEND, b"x", *ALICE), OTHER),
        (signed(310, SEND, b"x", *ALICE), signed(310, SEND, b"x", "bobby", "alicepass"), PEER),
    ],
    ids=["topic of a send", "topic of a pull", "group", "kind", "address", "account"],
)
def test_what_is_learned_counts_for_that_alone(known: bytes, foreign: bytes, peer: Peer) -> None:
    """A cached permission applies to its account, address, kind of request, group and topic only."""
    twins = Twins(WithUsers)
    for one in (twins.fast, twins.general):
        for name in ("alice", "bobby", "carol"):
            one.make_user(name)
            one.allow(name, "Topic:topicB", "Sub", ips=["10.0.0.1"])
            one.allow(name, "Group:groupC", "Sub")
        for name in ("alice", "bobby"):
            one.allow(name, "Topic:topicB", "Pub", "Sub", ips=["10.0.0.1"])
        one.allow("bobby", "Group:groupD", "Sub")
    for name, group in (("alice", "groupC"), ("bobby", "groupD")):
        subscriptions = (SubscriptionData.build("topicB", "*"),)
        data = HeartbeatData(
            client_id=name, consumer_data_set=(ConsumerData(group, subscription_data_set=subscriptions),)
        )
        assert b'"code":0' in twins.feed(signed(34, {}, data.encode(), name, f"{name}pass"))
    assert b'"code":0' in twins.feed(signed(310, SEND, b"x", *ALICE))
    assert b'"code":16' not in twins.feed(known)
    assert b'"code":16' in twins.feed(foreign, peer)


def test_what_is_learned_is_bounded(files: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that names ever new groups does not fill the cache."""
    monkeypatch.setattr(signed_lane, "KEYS_KEPT_MAX", 3)
    for number in range(10):
        assert b'"code":0' in files.feed(signed(310, {**SEND, "a": f"pg-{number}"}, b"x"))
    assert files.lane._signatures is not None
    assert 0 < len(files.lane._signatures._keys) <= 3


@pytest.fixture(scope="module")
def lasting() -> Twins:
    return Twins(WithFiles)


@given(
    frame=st.sampled_from(
        [
            signed(310, SEND, b"hello"),
            signed(310, SEND, b"hello", "billing", "billing123"),
            signed(310, SEND, b"hello", "billing", "guess1234"),
            signed(320, {**SEND, "m": "true", "i": ""}, BATCH),
            signed(11, PULL),
        ]
    ),
    place=st.integers(8, 700),
    value=st.integers(0, 255),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_damaged_request_is_answered_alike(lasting: Twins, frame: bytes, place: int, value: int) -> None:
    """For any changed byte of a signed request, the lane replies and stores what handle does."""
    damaged = bytearray(frame)
    damaged[place % len(frame)] = value
    if damaged[:8] != frame[:8]:
        return  # another length: the rest would be a frame of its own
    ends = [one.broker.store.end_offset for one in (lasting.fast, lasting.general)]
    with suppress(RemotingError):
        lasting.feed(bytes(damaged))
    grown = [one.broker.store.end_offset - end for one, end in zip((lasting.fast, lasting.general), ends, strict=True)]
    assert grown[0] == grown[1]
    assert not grown[0] or is_genuine(bytes(damaged))


def is_genuine(frame: bytes) -> bool:
    """Whether a permitted account has signed the request."""
    command = decode_command(cut_frame(frame, 0, len(frame)))
    return is_signed_with(command, b"12345678") or is_signed_with(command, b"billing123")
