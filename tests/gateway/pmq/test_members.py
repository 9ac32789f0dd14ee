"""Members of broadcast groups: each has a group of its own, which begins at the end and ends with the member."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mqtrail.client import SyncAdmin
from mqtrail.gateway import DoorConfig, Gate
from mqtrail.gateway.member_names import is_of_member, member_group, origin_of, taker_of
from mqtrail.gateway.pmq import Members, PmqBroker, PmqDesk, PmqInterface, QueueName, queues_of
from mqtrail.gateway.pmq.desk import Full
from mqtrail.gateway.pmq.members import GRACE_MS, GROUP_MEMBERS_MAX
from mqtrail.gateway.pmq.shapes import CommitBody, CommitItem, CountBody, PollBody, RegisterBody, RegisterGroupBody
from mqtrail.wire import (
    Host,
    NoPermission,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionGroupConfig,
    SubscriptionGroupNotExist,
    TopicNotExist,
)

from ...waiting import wait_until
from ..conftest import Door
from .test_interface import CONSUMER, META, arrange, ask, commit, enter, group_of, normal, ok, shape

RECORDED = """{"time":1329893381,"serverIp":"192.0.2.2",
"broadcastConsumerGroupName":{"wg5b":"wg5b_192.0.2.2-15"},"consumerGroupNameNew":{"wg5b":"wg5b_192.0.2.2-15"},"suc":true}"""
"""The answer of pmq's broker of commit 86e2d93 to the registration of a client with its broadcast group wg5b."""
BROADCAST = {"+mqtrail.pmq.mode": "broadcast"}


def broadcasting(door: Door, group: str, topic: str, queues: int = 1) -> None:
    """Create a topic and a broadcast group."""
    arrange(door, group, topic, queues)
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name=group, attributes=BROADCAST))


def register(door: Door, name: str, group: str, topic: str) -> tuple[int, Any]:
    """Register a consumer with a group; return its id and the answer."""
    number = ok(door, f"{CONSUMER}register", name=name)["id"]
    names = {group: [topic]}
    found = ok(door, f"{CONSUMER}registerConsumerGroup", consumerId=number, consumerName=name, consumerGroupNames=names)
    return number, found


def groups(door: Door) -> set[str]:
    with SyncAdmin(door.running.namesrv_address) as admin:
        return set(admin.groups(door.running.broker_addresses[0]).subscription_group_table)


def pulled(door: Door, queue: Any) -> list[str]:
    """Return the bodies of a queue from its offset on."""
    start = queue["offset"]
    names = {"consumerGroupName": queue["consumerGroupName"], "queueId": queue["queueId"]}
    found = ok(door, f"{CONSUMER}pullData", **names, offsetStart=start, offsetEnd=start + 50)["msgs"]
    return [one["body"] for one in found]


def test_names() -> None:
    """They tell the group, differ by the whole name of a member, and a group that somebody named is not one of them."""
    first, second = (member_group("a_b", f"10.0.0.1|{pid}|1") for pid in (1, 2))
    assert first == member_group("a_b", "10.0.0.1|1|1") != second
    assert first.startswith("a_b_10-0-0-1-member-")
    assert [origin_of(one) for one in (first, "a_b", "a_b-member-x")] == ["a_b", "a_b", "a_b-member-x"]
    assert is_of_member(member_group("g", "中文"))
    assert not is_of_member("g_x-member-0123456789AB")
    for name, taker in ((f"%RETRY%{first}_orders", first), (f"%RETRY%{first}+o", first), ("%RETRY%a_b_o", "a_b")):
        assert taker_of("a_b", name) == taker
    assert taker_of("a", f"%RETRY%{first}_orders") == "a"


def test_each_client_of_pmq_gets_each_message(door: Door) -> None:
    """The answer has the recorded shape; each client has all queues of its own group, from the end of the topic on."""
    broadcasting(door, "bg", "bt", 2)
    ok(door, f"{CONSUMER}publish", topicName="bt", msgs=[{"body": "before"}])
    found = [register(door, f"10.0.0.{number}|1|1", "bg", "bt") for number in (1, 2)]
    assert shape(found[0][1]) == shape(json.loads(RECORDED.replace("wg5b", "bg")))
    names = [answer["consumerGroupNameNew"]["bg"] for _, answer in found]
    assert names[0] != names[1]
    assert all(
        answer["broadcastConsumerGroupName"] == {"bg": name} for (_, answer), name in zip(found, names, strict=True)
    )
    ok(door, f"{CONSUMER}publish", topicName="bt", msgs=[{"body": "x"}])
    for (number, _), name in zip(found, names, strict=True):
        group = group_of(door, number, name)
        assert sorted(one["topicType"] for one in group["queues"].values()) == [1, 1, 2, 2]
        queues = normal(group)
        assert [body for queue in queues for body in pulled(door, queue)] == ["x"]
        for queue in queues:
            commit(door, queue, queue["lastId"])
        assert ok(door, f"{CONSUMER}getMessageCount", consumerGroupName=name)["count"] == 0


def test_a_client_that_comes_back_continues(door: Door) -> None:
    """Its name is that of its group: what was published meanwhile arrives. When it leaves, its group ends."""
    broadcasting(door, "cg", "ct")
    number, answer = register(door, "10.0.0.1|2|2", "cg", "ct")
    name = answer["consumerGroupNameNew"]["cg"]
    ok(door, f"{CONSUMER}publish", topicName="ct", msgs=[{"body": "meanwhile"}])
    assert register(door, "10.0.0.1|2|2", "cg", "ct") == (number, {**answer, "time": pytest.approx(0, abs=1 << 60)})
    (queue,) = normal(group_of(door, number, name))
    assert pulled(door, queue) == ["meanwhile"]
    failure = f"{name}_ct_fail"
    ok(door, f"{CONSUMER}publish", topicName=failure, msgs=[{"body": "failed"}])
    ok(door, f"{CONSUMER}deRegister", id=number)
    wait_until(lambda: name not in groups(door))
    assert door.http.get(f"/v1/topics/{failure}").status_code == 404
    assert door.http.get("/v1/topics/ct").status_code == 200
    assert not ask(door, f"{CONSUMER}getMessageCount", consumerGroupName=name)["suc"]
    assert "cg" in groups(door)


def test_queues_that_a_topic_gets_later_are_consumed(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the members that are online, from the first message on, also if they are published before the group knows."""
    monkeypatch.setattr("mqtrail.gateway.pmq.interface.LOOK_S", 0.0)
    arrange(door, "xg", "xt", 1)
    consumer = enter(door, "10.0.0.7|1|1", "xg", "xt")
    assert len(normal(group_of(door, consumer, "xg"))) == 1
    assert door.http.put("/v1/topics/xt", json={"queues": 2}).status_code == 200
    number = ok(door, f"{META}getTopicQueueIds", topicNames=["xt"])["topicQueues"]["xt"][1]
    message = {"body": "x", "partitionInfo": {"queueId": number}}
    ok(door, f"{CONSUMER}publish", topicName="xt", msgs=[message])
    for queue in normal(group_of(door, consumer, "xg")):
        commit(door, queue, queue["lastId"], flag=1)
    wait_until(lambda: len(normal(group_of(door, consumer, "xg"))) == 2)
    assert pulled(door, normal(group_of(door, consumer, "xg"))[1]) == ["x"]
    assert enter(door, "10.0.0.7|1|1", "xg", "xt") == consumer
    assert pulled(door, normal(group_of(door, consumer, "xg"))[1]) == ["x"]


def test_members_of_the_plain_interface(door: Door) -> None:
    """Each gets each message from its join on. A group whose member left is refused, and not made again."""
    assert door.http.put("/v1/topics/pt", json={"queues": 2}).status_code == 200
    door.publish("pt", {"body": "before"})
    paths = {one: f"/v1/groups/pg/members/{one}" for one in ("north", "south")}
    names = {}
    for one, path in paths.items():
        answer = door.http.put(path, json={"topics": ["pt"]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["lease_s"] == 60
        names[one] = answer.json()["group"]
    door.publish("pt", [{"body": "1"}, {"body": "2"}])
    for name in names.values():
        got = door.receive(name, "pt", wait_s=10)
        assert [one["body"] for one in got] == ["1", "2"]
        door.settle(name, "ack", [one["receipt"] for one in got])
        assert door.receive(name, "pt") == []
    again = door.http.put(paths["north"], json={"topics": ["pt"]}).json()["group"]
    assert again == names["north"]
    assert door.receive(again, "pt") == []
    for _ in range(2):  # the second one finds no member
        assert door.http.delete(paths["north"]).json() == {"group": again, "lease_s": 0}
    assert door.refused("POST", f"/v1/groups/{again}/receive", json={"topic": "pt"})[0] == 404
    assert door.refused("DELETE", f"/v1/groups/{again}/members/north")[0] == 422
    wait_until(lambda: again not in groups(door))
    status, detail = door.refused("POST", f"/v1/groups/{again}/receive", json={"topic": "pt"})
    assert (status, "join again with PUT /v1/groups/pg/members/NAME" in detail) == (404, True)
    assert again not in groups(door)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("g/members/m", {"topics": ["missing-topic"]}, 404, "create it"),
        ("g/members/m", {"topics": []}, 422, "topics"),
        ("g/members/m", {"topics": ["there"], "lease_s": 1}, 422, "lease_s"),
        (f"{member_group('g', 'm')}/members/m", {"topics": ["there"]}, 422, "expected one without"),
        (f"{'g' * 110}/members/m", {"topics": ["there"]}, 422, "expected at most 120"),
    ],
)
def test_joins_that_are_refused(door: Door, path: str, body: Any, status: int, words: str) -> None:
    """Found, expected, remedy."""
    found = door.refused("PUT", f"/v1/groups/{path}", json=body)
    assert (found[0], words in found[1]) == (status, True), found


class Broker:
    """A broker with one topic `t` of two queues; answers what members ask. `broken`: it answers nothing."""

    away = None

    def __init__(self) -> None:
        self.groups: dict[str, SubscriptionGroupConfig] = {}
        self.offsets: dict[str, dict[int, int]] = {}
        self.deleted: list[str] = []
        self.broken = False
        self.end = 5
        self.asked: list[RemotingCommand] = []
        self.on_ask: Callable[[RemotingCommand], None] = lambda command: None

    async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        if self.broken:
            raise TimeoutError
        self.asked.append(command)
        self.on_ask(command)
        code, remark, body, ext = ResponseCode.SUCCESS, "", b"", {}
        asked = command.ext
        match command.code:
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
                config = self.groups.get(asked["group"])
                code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST if config is None else code
                body = b"" if config is None else config.encode()
            case RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
                config = SubscriptionGroupConfig.decode(command.body)
                self.groups[config.group_name] = config
            case RequestCode.GET_TOPIC_CONFIG:
                code = code if asked["topic"] == "t" else ResponseCode.TOPIC_NOT_EXIST
                body = b'{"topicName":"t","readQueueNums":2,"writeQueueNums":2,"perm":6}'
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = self.offsets.get(asked["consumerGroup"], {}).get(int(asked["queueId"]))
                code = ResponseCode.QUERY_NOT_FOUND if offset is None else code
                ext = {"offset": str(offset)}
            case RequestCode.GET_MAX_OFFSET:
                ext = {"offset": str(self.end)}
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.offsets.setdefault(asked["consumerGroup"], {})[int(asked["queueId"])] = int(asked["commitOffset"])
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                table = ",".join(f'"{name}":{one.encode().decode()}' for name, one in self.groups.items())
                body = f'{{"subscriptionGroupTable":{{{table}}},"dataVersion":{{}}}}'.encode()
            case RequestCode.QUERY_TOPICS_BY_CONSUMER:
                body = f'{{"topicList":["t","{asked["group"]}_t_fail"]}}'.encode()
            case RequestCode.DELETE_TOPIC_IN_BROKER:
                self.deleted.append(asked["topic"])
            case RequestCode.DELETE_SUBSCRIPTIONGROUP:
                del self.groups[asked["groupName"]]
                self.offsets.pop(asked["groupName"], None)
        return RemotingCommand(code, ext, body, remark=remark)

    async def ask_held(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        return await self.ask(command, host, timeout_ms)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class Stage:
    """Members with a broker and a clock of the test."""

    def __init__(self, *, creates_groups: bool = True) -> None:
        self.broker, self.clock = Broker(), Clock()
        self.reported: list[str] = []
        self.config = DoorConfig(
            hosts=None, creates_groups=creates_groups, report=lambda event, fields: self.reported.append(event)
        )
        self.members = Members(self.broker, self.config, self.clock)
        self.ended: list[str] = []
        self.members.on_end = self.ended.append

    async def join(self, member: str = "m", *, from_first: bool = False, lease_ms: int = 60_000) -> str:
        asks = asks_of(self.broker)
        topics = {"t": await queues_of("t", asks)}
        return await self.members.join("g", member, topics, asks, lease_ms, from_first=from_first)

    async def entered(self) -> tuple[PmqInterface, PmqDesk, int]:
        """Return an interface with a consumer `c` that is not yet of a group, and the desk of it."""
        nothing: Any = SimpleNamespace()
        stopping = asyncio.Event()
        made = PmqInterface(self.broker, nothing, nothing, "b", stopping, Gate(), self.config, self.members)
        nothing.record = lambda entry: None
        answer = await made.register(RegisterBody(name="c"), asks_of(self.broker))
        return made, made._desk, answer["id"]


def asks_of(broker: Broker) -> PmqBroker:
    return PmqBroker(broker, Host("10.0.0.9", 1))


async def test_a_member_begins_at_the_end_once() -> None:
    """Not again when it renews, and a queue that the topic got meanwhile begins at its first message."""
    stage = Stage()
    name = await stage.join()
    assert stage.broker.offsets[name] == {0: 5, 1: 5}
    stage.broker.end = 9
    await stage.join()
    assert stage.broker.offsets[name] == {0: 5, 1: 5}
    del stage.broker.offsets[name][1]
    stage.members = Members(stage.broker, stage.config, stage.clock)  # the door was started again
    await stage.join()
    assert stage.broker.offsets[name] == {0: 5, 1: 0}
    assert await stage.join("other", from_first=True) not in stage.broker.offsets


async def test_a_member_that_says_nothing_ends() -> None:
    """After its lease, with its own topics; a renewal in time keeps it; what cannot be deleted is tried again."""
    stage = Stage()
    name = await stage.join()
    stage.clock.ms += 59_000
    assert stage.members.renew(name, 1_000)
    stage.clock.ms += 60_000
    await stage.members.tick()
    assert name in stage.broker.groups
    stage.clock.ms += 1_000
    stage.broker.broken = True
    await stage.members.tick()
    assert (stage.members.renew(name), stage.reported) == (False, ["member.cannot_delete"])
    stage.broker.broken = False
    stage.clock.ms += 10_000
    await stage.members.tick()
    assert stage.ended == [name]
    assert list(stage.broker.groups) == ["g"]
    expected = {f"%RETRY%{name}", f"%DLQ%{name}", f"%RETRY%{name}_t", f"%RETRY%{name}+t", f"{name}_t_fail"}
    assert set(stage.broker.deleted) == expected
    assert stage.members.of("g") == {}


async def test_members_of_the_last_run_may_come_back() -> None:
    """Those that do not, end after a while."""
    stage = Stage()
    back, gone = await stage.join("back"), await stage.join("gone")
    stage.members = Members(stage.broker, stage.config, stage.clock)
    stage.clock.ms += GRACE_MS - 1
    await stage.members.tick()
    assert {back, gone} < set(stage.broker.groups)
    await stage.join("back", lease_ms=10_000)
    stage.clock.ms += 1
    await stage.members.tick()
    assert set(stage.broker.groups) == {"g", back}


async def test_settings_of_the_group_hold_for_its_members() -> None:
    """Those of the join, and later changes of an operator."""
    stage = Stage()
    stage.broker.groups["g"] = SubscriptionGroupConfig("g", retry_max_times=3, attributes={"mqtrail.pmq.mode": "x"})
    name = await stage.join()
    assert (stage.broker.groups[name].retry_max_times, stage.broker.groups[name].attributes) == (3, {})
    paused = SubscriptionGroupConfig("g", consume_enable=False)
    await stage.members.settings_changed(paused, PmqBroker(stage.broker, Host("10.0.0.9", 1)))
    assert not stage.broker.groups[name].consume_enable


async def test_joins_that_cannot_be() -> None:
    """No such group or topic, a group that must not broadcast, too many members."""
    stage = Stage(creates_groups=False)
    with pytest.raises(SubscriptionGroupNotExist, match="create it"):
        await stage.join()
    stage.broker.groups["g"] = SubscriptionGroupConfig("g", consume_broadcast_enable=False)
    with pytest.raises(NoPermission, match="consumeBroadcastEnable"):
        await stage.join()
    stage.broker.groups["g"] = SubscriptionGroupConfig("g")
    with pytest.raises(TopicNotExist):
        await queues_of("u", PmqBroker(stage.broker, Host("h", 1)))
    assert stage.members.of("g") == {}
    for number in range(GROUP_MEMBERS_MAX):
        await stage.join(str(number), from_first=True)
    with pytest.raises(Full, match="members of the group 'g'"):
        await stage.join()
    assert await stage.join("0")


async def test_what_ends_while_the_broker_answers() -> None:
    """A consumer, a group or its queues may go at each wait: the answer is one, never an exception."""
    stage = Stage()
    asks = asks_of(stage.broker)
    interface, desk, consumer = await stage.entered()
    stage.broker.groups["g"] = SubscriptionGroupConfig("g", attributes={"mqtrail.pmq.mode": "broadcast"})
    stage.broker.groups["h"] = SubscriptionGroupConfig("h")
    stage.broker.on_ask = lambda command: desk.deregister(consumer, 1)
    body = RegisterGroupBody(consumer_id=consumer, consumer_group_names={"g": ["t"]})
    assert not (await interface.register_group(body, asks))["suc"]
    assert desk.groups == {}

    stage.broker.on_ask = lambda command: None
    consumer = (await interface.register(RegisterBody(name="c"), asks))["id"]
    body = RegisterGroupBody(consumer_id=consumer, consumer_group_names={"h": ["t"]})
    assert (await interface.register_group(body, asks))["suc"]
    stage.broker.on_ask = lambda command: desk.fit("t", len(stage.broker.asked), 1) and None
    assert (await interface.count(CountBody(consumer_group_name="h"), asks))["suc"]

    stage.broker.on_ask = lambda command: None
    versions = dict.fromkeys(["h"], 0)
    queues = await interface.poll(PollBody(consumer_id=consumer, consumer_group_version=versions), asks)
    queue = next(iter(queues["consumerGroups"]["h"]["queues"].values()))
    stage.broker.on_ask = lambda command: desk.drop("h")
    item = CommitItem(queue_offset_id=queue["queueOffsetId"], offset=3, offset_version=queue["offsetVersion"])
    assert (await interface.commit(CommitBody(queue_offsets=[item], flag=1), asks))["suc"]


async def test_a_broadcast_member_begins_once() -> None:
    """Its registration asks the broker for the offset of each queue once."""
    stage = Stage()
    interface, _, consumer = await stage.entered()
    stage.broker.groups["g"] = SubscriptionGroupConfig("g", attributes={"mqtrail.pmq.mode": "broadcast"})
    body = RegisterGroupBody(consumer_id=consumer, consumer_group_names={"g": ["t"]})
    answer = await interface.register_group(body, asks_of(stage.broker))
    name = answer["broadcastConsumerGroupName"]["g"]
    assert stage.broker.offsets[name] == {0: 5, 1: 5}
    asked = Counter(
        (one.ext["topic"], one.ext["queueId"])
        for one in stage.broker.asked
        if one.code == RequestCode.QUERY_CONSUMER_OFFSET
    )
    assert set(asked.values()) == {1}, asked


def test_a_dropped_group_leaves_nothing() -> None:
    """Its queues, its failure queues' ids, its place with its members; those of others stay."""
    desk = PmqDesk(1_000)
    member = desk.register("c", 1_000)
    normal_queue, failure = QueueName("t", 0), QueueName("g_t_fail", 0)
    desk.join("g", member, {"t": [(normal_queue, False), (failure, True)]}, 1_000)
    desk.join("h", member, {"t": [(normal_queue, False)]}, 1_000)
    number = desk.number_of(failure)
    (offset_id,) = (one.offset_id for one in desk.groups["g"].queues.values() if one.is_failure)
    desk.drop("g")
    desk.drop("g")
    assert (desk.groups_of(member), list(desk.groups)) == (["h"], ["h"])
    assert desk.queue_of(number) is None
    assert desk.group_queue(offset_id) is None
    assert desk.queue_of(desk.number_of(normal_queue)) == normal_queue
    desk.tick(1_000)
    assert [one.queue for one in desk.queues_of(desk.groups["h"], member)] == [normal_queue]
    desk.deregister(member, 1_000)
