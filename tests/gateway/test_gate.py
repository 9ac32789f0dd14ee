"""The rules of an operator at the door: tokens, groups, addresses, limits."""

from __future__ import annotations

from typing import Any

import pytest

from mqtrail.gateway import Gate, GateRules, new_token, read_rules
from mqtrail.gateway.gate import GroupRule, TokenBucket, TopicRule
from mqtrail.gateway.member_names import member_group
from mqtrail.gateway.problems import Problem
from mqtrail.gateway.receipts import Receipt
from mqtrail.wire import (
    InvalidParameter,
    OffsetResponseHeader,
    QueueHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionGroupConfig,
    UpdateConsumerOffsetHeader,
)

from .test_bounds import FakeBroker, asking

TOKEN, HASH = new_token()
BEARER = {"Authorization": f"Bearer {TOKEN}"}
MESSAGES, RECEIVE, ACK = "/v1/topics/t/messages", "/v1/groups/g/receive", "/v1/groups/g/ack"


@pytest.mark.parametrize(
    "text",
    [
        "[topics.t",
        "[topic.t]",
        '[topics.t]\ntokens = ["secret"]',
        "[topics.t]\nmessages_per_s = 0",
        '[groups.g]\nallow = ["10.0.0.0/99"]',
        '[groups.g]\ndeny = "10.0.0.1"',
    ],
)
def test_rules_that_cannot_be_used(text: str) -> None:
    """The error names the file and says what is expected."""
    with pytest.raises(
        InvalidParameter, match=r"rules.toml: found rules that cannot be used .* expected \[topics.NAME\]"
    ):
        read_rules(text, "rules.toml")


def test_rules_of_a_file() -> None:
    text = f'[topics."a.b"]\ntokens = ["{HASH}"]\ngroups = []\nmessages_per_s = 5\n[groups.g]\nallow = ["::1"]'
    assert read_rules(text, "f") == GateRules({"a.b": TopicRule((HASH,), (), 5.0)}, {"g": GroupRule(allow=("::1",))})


@pytest.mark.parametrize(
    ("allow", "deny", "ip", "expected"),
    [
        ((), (), "10.0.0.1", True),
        ((), ("10.0.0.1",), "10.0.0.1", False),
        ((), ("10.0.0.1",), "10.0.0.11", True),  # pmq compares parts of texts
        (("10.0.0.0/8",), (), "10.1.2.3", True),
        (("10.0.0.0/8",), (), "11.1.2.3", False),
        (("10.0.0.0/8",), ("10.1.0.0/16",), "10.1.2.3", False),
        (("::/0",), (), "10.0.0.1", False),
    ],
)
def test_addresses(allow: tuple[str, ...], deny: tuple[str, ...], ip: str, expected: bool) -> None:
    """Denied wins; networks are networks."""
    assert GroupRule(allow=allow, deny=deny).admits(ip) is expected


def test_a_bucket_asks_to_pause_and_then_refuses() -> None:
    """A second of the rate at once, then a pause for the rest; who is 5 s ahead gets nothing until time passes."""
    bucket = TokenBucket()
    assert [bucket.take(10, 10, 100.0), bucket.take(20, 10, 100.0), bucket.take(31, 10, 100.0)] == [0, 2.0, 5.1]
    assert bucket.take(1, 10, 100.0) is None
    assert bucket.take(1, 10, 100.2) == pytest.approx(5.0)
    assert bucket.take(1, 10, 1000.0) == 0


async def test_tokens_groups_and_addresses() -> None:
    """401 without the right token, 403 from elsewhere or for another group; other topics and groups are open."""
    rules = GateRules(
        {"t": TopicRule(tokens=(HASH,), groups=("g", "far"))},
        {"g": GroupRule(tokens=(HASH,)), "far": GroupRule(deny=("127.0.0.0/8",))},
    )
    async with asking(FakeBroker(), Gate(rules)) as client:

        async def asked(path: str, body: object, **headers: str) -> int:
            return (await client.post(path, json=body, headers=headers)).status_code

        assert await asked(MESSAGES, {"body": "x"}, **BEARER) == 200
        refused = await client.post(MESSAGES, json={"body": "x"})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert await asked(MESSAGES, {"body": "x"}, Authorization="Bearer other") == 401
        assert await asked(MESSAGES, {"body": "x"}, Authorization=f"Basic {TOKEN}") == 401
        assert await asked("/v1/topics/open/messages", {"body": "x"}) == 200
        assert await asked(RECEIVE, {"topic": "t"}) == 401
        assert await asked(RECEIVE, {"topic": "t"}, **BEARER) == 200
        assert await asked("/v1/groups/other/receive", {"topic": "t"}, **BEARER) == 403
        assert await asked("/v1/groups/far/receive", {"topic": "t"}) == 403
        assert await asked("/v1/groups/other/receive", {"topic": "open"}) == 200
        for act in ("ack", "nack", "extend"):
            assert await asked(f"/v1/groups/g/{act}", {"receipts": ["r"]}) == 401
        assert (await client.get("/v1/groups/g/events?topic=t")).status_code == 401
        assert (await client.put("/v1/topics/t", json={"queues": 1})).status_code == 401


def test_members_have_the_rules_of_their_group() -> None:
    """Its tokens, its addresses, and the topics that allow it."""
    rules = GateRules({"t": TopicRule(groups=("g",))}, {"g": GroupRule((HASH,), deny=("10.0.0.1",))})
    gate, member = Gate(rules), member_group("g", "m")
    gate.check_group(member, TOKEN, "10.0.0.2", "t")
    assert not gate.admits(member, "10.0.0.1")
    refused = [(member, None, "10.0.0.2", "t"), (member, TOKEN, "10.0.0.1", "t"), (f"{member}0", TOKEN, "::1", "t")]
    for group, token, ip, topic in refused:
        with pytest.raises(Problem):
            gate.check_group(group, token, ip, topic)


async def test_a_limit_is_first_an_answer_and_then_a_refusal() -> None:
    """What is over the rate is stored, and the answer asks for a pause; far over it nothing is stored."""
    async with asking(FakeBroker(), Gate(GateRules({"t": TopicRule(messages_per_s=0.1)}))) as client:
        answers = [await client.post(MESSAGES, json=[{"body": "x"}] * 50) for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 429]
        assert answers[0].json()["slow_down_ms"] == 499_000  # 500 s of its rate, without the first one
        assert 300 <= int(answers[1].headers["retry-after"]) <= 494
        assert (await client.post("/v1/topics/open/messages", json={"body": "x"})).json()["slow_down_ms"] == 0


async def test_pmqs_client_under_rules() -> None:
    """It sends the token of a topic in the body; a limit lets it sleep and repeat."""
    rules = GateRules({"t": TopicRule(tokens=(HASH,), messages_per_s=0.1)})
    consumer = "/api/client/consumer"
    async with asking(FakeBroker(), Gate(rules)) as client:

        async def publish(count: int, **token: str) -> Any:
            body = {"topicName": "t", "msgs": [{"body": "x"}] * count, **token}
            return (await client.post(f"{consumer}/publish", json=body)).json()

        assert "found no token" in (await publish(1))["msg"]
        assert (await publish(50, token=TOKEN))["suc"] is True
        limited = await publish(1, token=TOKEN)
        assert (limited["suc"], limited["code"], limited["sleepTime"]) == (False, "0", 1_000)


@pytest.mark.parametrize(
    ("topic", "group", "has_token", "expected"),
    [
        ("%RETRY%g", "thief", False, 403),
        ("%RETRY%g", "thief", True, 403),  # t is for g alone
        ("%RETRY%g", "g", True, 200),
        ("%RETRY%g_t", "thief", False, 403),
        ("%RETRY%g+t", "g", False, 401),
        ("%DLQ%g", "g", False, 401),
        ("%RETRY%thief_t", "thief", False, 403),
        ("%DLQ%other", "ops", False, 401),
        ("%DLQ%other", "ops", True, 200),
        ("%DLQ%open", "ops", False, 200),
        ("g_t_fail", "thief", False, 403),
        ("g_t_fail", "g", True, 200),
        ("other_x_fail", "ops", False, 401),
        ("SCHEDULE_TOPIC_XXXX", "ops", False, 403),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", "ops", False, 403),
        ("RMQ_SYS_TRACE_TOPIC", "ops", False, 403),
    ],
)
async def test_copies_of_messages_have_the_rules_of_the_messages(
    topic: str, group: str, has_token: bool, expected: int
) -> None:
    """A group's retries and dead letters are those of its topics; topics of the broker are for nobody."""
    rules = GateRules(
        {"t": TopicRule(groups=("g",))}, {"g": GroupRule(tokens=(HASH,)), "other": GroupRule(tokens=(HASH,))}
    )
    headers = BEARER if has_token else {}
    async with asking(FakeBroker(), Gate(rules)) as client:
        answer = await client.post(f"/v1/groups/{group}/receive", json={"topic": topic}, headers=headers)
        assert answer.status_code == expected
        events = await client.get(f"/v1/groups/{group}/events", params={"topic": topic}) if expected == 403 else answer
        assert events.status_code == expected


async def test_nobody_publishes_to_a_group_without_its_token() -> None:
    """What is in a retry topic is delivered to its group as a message of the real topic."""
    rules = GateRules({"t": TopicRule(tokens=(HASH,))}, {"g": GroupRule(tokens=(HASH,))})
    async with asking(FakeBroker(), Gate(rules)) as client:
        for topic, expected in (
            ("%25RETRY%25g", 401),
            ("%25RETRY%25g_t", 401),
            ("%25DLQ%25g", 401),
            ("%25RETRY%25other", 200),
            ("rmq_sys_REVIVE_LOG_DefaultCluster", 403),
            ("rmq_sys_wheel_timer", 403),
            ("RMQ_SYS_TRACE_TOPIC", 403),
            ("g_t_fail", 200),  # as pmq's client does, without a token
        ):
            path = f"/v1/topics/{topic}"
            assert (await client.post(f"{path}/messages", json={"body": "x"})).status_code == expected
            if expected != 200:
                assert (await client.put(path, json={"queues": 1})).status_code == expected
            if expected == 401:
                assert (await client.post(f"{path}/messages", json={"body": "x"}, headers=BEARER)).status_code == 200


@pytest.mark.parametrize("act", ["ack", "nack", "extend"])
async def test_receipts_that_are_made_up(act: str) -> None:
    """The broker would put a copy of the message into the retry topic of the group that never received it."""
    broker = FakeBroker()
    handle = "0 1795801590488 60000 1 0 broker-a 0 0"
    receipts = [Receipt(topic, handle, "ID", "", 0, "R", 0, "").encode() for topic in ("open", "t")]
    async with asking(broker, Gate(GateRules({"t": TopicRule(groups=("g",))}))) as client:
        answer = await client.post(f"/v1/groups/thief/{act}", json={"receipts": receipts})
    assert (answer.status_code, "expected one that may receive from t" in answer.json()["detail"]) == (403, True)
    assert broker.asked == []


async def test_commits_of_pmqs_client_have_the_rules_of_its_group() -> None:
    """Who may not receive for a group moves no offset of it either; rules may come after a group has begun."""
    gate, consumer = Gate(), "/api/client/consumer"
    broker = FakeBroker()
    async with asking(broker, gate) as client:

        async def ask(path: str, **body: Any) -> Any:
            return (await client.post(f"{consumer}/{path}", json=body)).json()

        number = (await ask("register", name="c"))["id"]
        groups = {"g": ["t"]}
        assert (await ask("registerConsumerGroup", consumerId=number, consumerGroupNames=groups))["suc"] is True
        polled = await ask("getConsumerGroupPolling", consumerId=number, consumerGroupVersion={"g": 0})
        queue = next(iter(polled["consumerGroups"]["g"]["queues"].values()))
        item = {name: queue[name] for name in ("queueOffsetId", "offsetVersion")} | {"offset": 1}
        gate.rules = GateRules({}, {"g": GroupRule(deny=("127.0.0.0/8",))})
        refused = await ask("commitOffset", queueOffsets=[item])
        assert (refused["suc"], "found the address 127.0.0.1" in refused["msg"]) == (False, True)
        assert not any(one.code == RequestCode.UPDATE_CONSUMER_OFFSET for one in broker.asked)
        gate.rules = GateRules()
        assert (await ask("commitOffset", queueOffsets=[item]))["suc"] is True
        assert any(one.code == RequestCode.UPDATE_CONSUMER_OFFSET for one in broker.asked)


class PmqBroker(FakeBroker):
    """It has every group, and two messages in every queue."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: list[int] = []

    async def ask(self, command: RemotingCommand, host: Any, timeout_ms: int) -> RemotingCommand:
        reply = RemotingCommand.reply_to(command, ResponseCode.SUCCESS)
        match command.code:
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
                reply.body = SubscriptionGroupConfig("g").encode()
                return reply
            case RequestCode.GET_MAX_OFFSET:
                QueueHeader.from_ext(command.ext)
                reply.ext = OffsetResponseHeader(2).to_ext()
                return reply
            case RequestCode.QUERY_CONSUMER_OFFSET:
                reply.ext = OffsetResponseHeader(0).to_ext()
                return reply
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.committed.append(UpdateConsumerOffsetHeader.from_ext(command.ext).commit_offset)
                return reply
        return await super().ask(command, host, timeout_ms)


async def test_pmqs_clients_change_no_group_that_denies_them() -> None:
    """Ids of consumers and offsets can be guessed: neither moves an offset, ends a member or shows its queues."""
    gate, broker, consumer = Gate(), PmqBroker(), "/api/client/consumer"
    async with asking(broker, gate) as client:

        async def asked(path: str, **body: Any) -> Any:
            return (await client.post(f"{consumer}/{path}", json=body)).json()

        number = (await asked("register", name="c"))["id"]
        await asked("registerConsumerGroup", consumerId=number, consumerName="c", consumerGroupNames={"g": ["t"]})
        poll = {"consumerId": number, "consumerGroupVersion": {"g": 0}}
        queues = (await asked("getConsumerGroupPolling", **poll))["consumerGroups"]["g"]["queues"]
        commits = [
            {"queueOffsetId": one["queueOffsetId"], "offsetVersion": one["offsetVersion"], "offset": 2}
            for one in queues.values()
        ]
        gate.rules = GateRules(groups={"g": GroupRule(deny=("127.0.0.0/8",))})
        assert (await asked("getConsumerGroupPolling", **poll))["consumerGroups"]["g"]["queues"] == {}
        await asked("commitOffset", queueOffsets=commits)
        assert (await asked("deRegister", id=number))["suc"] is False
        assert (await asked("getMessageCount", consumerGroupName="g"))["suc"] is False
        assert broker.committed == []
        gate.rules = GateRules()
        assert (await asked("getConsumerGroupPolling", **poll))["consumerGroups"]["g"]["queues"] == queues
        await asked("commitOffset", queueOffsets=commits)
        assert broker.committed == [2] * len(queues)
        assert (await asked("deRegister", id=number))["suc"] is True
