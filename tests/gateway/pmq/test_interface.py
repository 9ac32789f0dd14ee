"""pmq's interface against a real broker: the shape of each recorded answer, and what pmq's client relies on."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqtrail.client import MessageQueue, SyncAdmin
from mqtrail.gateway.caller import problem_of_error
from mqtrail.gateway.pmq import PmqInterface
from mqtrail.gateway.pmq.broker import PmqBroker, pulled
from mqtrail.gateway.problems import Problem
from mqtrail.gateway.publishing import ANY_QUEUE
from mqtrail.wire import (
    Host,
    Message,
    MessageExt,
    MQError,
    Perm,
    ServiceNotAvailable,
    SubscriptionGroupConfig,
    SystemError_,
    TopicConfig,
)

from ..conftest import Door
from ..test_bounds import FakeBroker

RECORDED = [json.loads(line) for line in (Path(__file__).parents[2] / "golden" / "pmq.jsonl").read_text().splitlines()]
CONSUMER, META = "/api/client/consumer/", "/api/server/meta/"
UNKNOWN = (999999, 99999)


def ask(door: Door, path: str, **body: Any) -> Any:
    answer = door.http.post(path, json=body)
    assert answer.headers["content-type"] == "application/json;charset=UTF-8"
    assert answer.status_code == 200
    return answer.json()


def ok(door: Door, path: str, **body: Any) -> Any:
    answer = ask(door, path, **body)
    assert answer["suc"] is True, answer
    return answer


def arrange(door: Door, group: str, topic: str, queues: int) -> None:
    """Create a group and a topic."""
    assert door.http.put(f"/v1/topics/{topic}", json={"queues": queues}).status_code == 200
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name=group))


def enter(door: Door, name: str, group: str, topic: str) -> int:
    """Register a consumer and its group; return its id."""
    number: int = ok(door, f"{CONSUMER}register", name=name)["id"]
    names = {group: [topic]}
    ok(door, f"{CONSUMER}registerConsumerGroup", consumerId=number, consumerName=name, consumerGroupNames=names)
    return number


def group_of(door: Door, consumer: int, group: str, version: int = 0) -> Any:
    """Poll once; return the group's part."""
    answer = ok(door, f"{CONSUMER}getConsumerGroupPolling", consumerId=consumer, consumerGroupVersion={group: version})
    return answer["consumerGroups"][group]


def normal(group: Any) -> list[Any]:
    """Return the queues of the normal topic, by id."""
    return sorted((one for one in group["queues"].values() if one["topicType"] == 1), key=lambda one: one["queueId"])


def commit(door: Door, queue: Any, offset: int, *, flag: int = 0, version: int | None = None) -> None:
    item = {"queueOffsetId": queue["queueOffsetId"], "offset": offset}
    item["offsetVersion"] = queue["offsetVersion"] if version is None else version
    ok(door, f"{CONSUMER}commitOffset", queueOffsets=[item], flag=flag)


def shape(value: Any) -> Any:
    """Return names and types, in order; ids that are names are alike, and a map of lists has no order."""
    if isinstance(value, dict) and all(isinstance(one, list) for one in value.values()):
        return sorted((name, shape(one)) for name, one in value.items())
    if isinstance(value, dict):
        return list(dict.fromkeys(("#" if name.isdigit() else name, repr(shape(one))) for name, one in value.items()))
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


class World:
    """Topics, groups and ids that stand for those of the recording."""

    def __init__(self, door: Door) -> None:
        self.door = door
        for number in range(1, 7):
            arrange(door, f"wg{number}", f"w{number}", 2)
        self.queues = ok(door, f"{META}getTopicQueueIds", topicNames=["w4"])["topicQueues"]["w4"]
        for queue, further in zip(self.queues, ({"head": {"k": "v", "zh": "中文"}}, {}), strict=True):
            message = {"bizId": "b", "tag": "t", "body": "x", "partitionInfo": {"queueId": queue}, **further}
            ok(door, f"{CONSUMER}publish", topicName="w4", msgs=[message])
        self.consumer = enter(door, "of the test", "wg6", "w4")
        enter(door, "of the test", "wg3", "w3")

    def ours(self, path: str, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Return a recorded request with our ids."""
        if request.get("consumerId") not in (None, *UNKNOWN):
            request["consumerId"] = self.consumer
        if path.endswith("deRegister") and request.get("id"):
            request["id"] = ok(self.door, f"{CONSUMER}register", name="leaves")["id"]
        if path.endswith("pullData") and request["queueId"] not in UNKNOWN and answer["suc"]:
            has_head = bool(answer["msgs"]) and "head" in answer["msgs"][0]
            request |= {"queueId": self.queues[0 if has_head else 1]}
            request |= {"offsetStart": 0 if answer["msgs"] else 1, "offsetEnd": 50}
        if path.endswith("getConsumerGroupPolling") and answer["consumerDeleted"] == 0:
            groups = answer.get("consumerGroups")
            is_newer = groups is not None
            group = f"polled{is_newer}{bool(groups and next(iter(groups.values()))['queues'])}"
            arrange(self.door, group, group, 2)
            owner = enter(self.door, "owner", group, group)
            waits = enter(self.door, "waits", group, group)
            request["consumerId"] = owner if group.endswith("True") else waits
            request["consumerGroupVersion"] = {group: 0 if is_newer else 1 << 60}
        return request


@pytest.fixture(scope="module")
def world(door: Door) -> World:
    return World(door)


@pytest.mark.parametrize("row", RECORDED, ids=[f"{row['path'].split('/')[-1]}{n}" for n, row in enumerate(RECORDED)])
def test_answers_have_the_recorded_shape(world: World, row: dict[str, str]) -> None:
    """Names of fields, their order and types are pmq's."""
    answer = json.loads(row["answer"] or "{}")
    request = world.ours(row["path"], json.loads(row["request"]), answer)
    if row["path"].endswith(("getTopic", "getMessageCount", "getGroupTopic")):
        enter(world.door, "asks", "wg1", "w1")
    found = world.door.http.post(row["path"], json=request)
    assert found.status_code == 200
    if not row["answer"]:
        assert found.content == b""
        return
    for name in (
        "suc",
        "deleted",
        "heatbeatTime",
        "bakUrl",
        "consumerDeleted",
        "brokerMetaMode",
        "groupFlag",
        "metricUrl",
    ):
        assert found.json().get(name) == answer.get(name), (name, found.text)
    if answer.get("consumerGroups"):
        for one in (answer, got := found.json()):
            (group,) = one["consumerGroups"].values()
            one["consumerGroups"] = {"g": {**group, "queues": dict(list(group["queues"].items())[:1])}}
        assert shape(got) == shape(answer)
    else:
        assert shape(found.json()) == shape(answer)


def test_a_consumer_reads_commits_and_goes_on(door: Door) -> None:
    """Ids begin at 1, offsetStart is exclusive, and a commit is the broker's consumer offset."""
    arrange(door, "life", "lives", 1)
    consumer = enter(door, "c", "life", "lives")
    (queue,) = normal(group_of(door, consumer, "life"))
    assert (queue["offset"], queue["lastId"]) == (0, 0)
    ok(door, f"{CONSUMER}publish", topicName="lives", msgs=[{"bizId": str(n), "body": f"b{n}"} for n in range(3)])
    pull = {"queueId": queue["queueId"], "offsetStart": 0, "offsetEnd": 50}
    got = ok(door, f"{CONSUMER}pullData", **pull)["msgs"]
    assert [(one["id"], one["bizId"], one["body"], one["tag"]) for one in got] == [
        (1, "0", "b0", "null"),
        (2, "1", "b1", "null"),
        (3, "2", "b2", "null"),
    ]
    assert [one["id"] for one in ok(door, f"{CONSUMER}pullData", **pull | {"offsetStart": 2})["msgs"]] == [3]
    assert ok(door, f"{CONSUMER}getMessageCount", consumerGroupName="life")["count"] == 3
    commit(door, queue, 2)
    assert ok(door, f"{CONSUMER}getMessageCount", consumerGroupName="life")["count"] == 1
    with SyncAdmin(door.running.namesrv_address) as admin:
        assert admin.consumer_offset("life", MessageQueue("lives", "broker-a", 0)) == 2
    (again,) = normal(group_of(door, consumer, "life"))
    assert (again["offset"], again["lastId"]) == (2, 3)


def test_commits_are_fenced(door: Door) -> None:
    """Smaller offsets, those past the end, and other versions are void; an operator's change wins."""
    arrange(door, "fenced", "fences", 1)
    consumer = enter(door, "c", "fenced", "fences")
    (queue,) = normal(group_of(door, consumer, "fenced"))
    ok(door, f"{CONSUMER}publish", topicName="fences", msgs=[{"body": str(n)} for n in range(9)])

    def offset() -> int:
        found: int = normal(group_of(door, consumer, "fenced"))[0]["offset"]
        return found

    commit(door, queue, 5)
    for late, version in ((3, None), (10, None), (8, queue["offsetVersion"] + 1), (8, queue["offsetVersion"] - 1)):
        commit(door, queue, late, version=version)
        assert offset() == 5
    commit(door, queue, 6)
    assert offset() == 6
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.set_offset("fenced", MessageQueue("fences", "broker-a", 0), 1)
    commit(door, queue, 8)
    (after,) = normal(group_of(door, consumer, "fenced"))
    assert (after["offset"], after["offsetVersion"]) == (1, queue["offsetVersion"] + 1)
    commit(door, queue, 9)
    assert offset() == 1
    commit(door, after, 9)
    assert offset() == 9


def test_a_change_before_the_first_commit_wins_too(door: Door) -> None:
    """The offset that a member got by its poll is what an operator's change is compared with."""
    arrange(door, "early", "earlies", 1)
    consumer = enter(door, "c", "early", "earlies")
    ok(door, f"{CONSUMER}publish", topicName="earlies", msgs=[{"body": str(n)} for n in range(9)])
    (queue,) = normal(group_of(door, consumer, "early"))
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.set_offset("early", MessageQueue("earlies", "broker-a", 0), 4)
    commit(door, queue, 9)
    assert normal(group_of(door, consumer, "early"))[0]["offset"] == 4


def test_an_operators_change_reaches_a_client_that_commits_nothing(door: Door) -> None:
    """Its poll ends with the new offset and version; a client without messages has nothing to commit."""
    arrange(door, "idle", "idles", 1)
    ok(door, f"{CONSUMER}publish", topicName="idles", msgs=[{"body": str(n)} for n in range(9)])
    consumer = enter(door, "c", "idle", "idles")
    polled = group_of(door, consumer, "idle")
    (queue,) = normal(polled)
    assert queue["offset"] == 9
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.set_offset("idle", MessageQueue("idles", "broker-a", 0), 4)
    (after,) = normal(group_of(door, consumer, "idle", polled["meta"]["version"]))
    assert (after["offset"], after["offsetVersion"]) == (4, queue["offsetVersion"] + 1)


def test_a_second_member_gets_queues_after_the_first_has_handed_over(door: Door) -> None:
    """First the version rises with the old queues; after the commit with flag 1 both have their halves."""
    arrange(door, "pair", "pairs", 4)
    one = enter(door, "one", "pair", "pairs")
    alone = group_of(door, one, "pair")
    assert len(normal(alone)) == 4
    ok(
        door,
        f"{CONSUMER}publish",
        topicName="pairs",
        msgs=[{"body": "x", "partitionInfo": {"queueId": normal(alone)[3]["queueId"]}}],
    )
    two = enter(door, "two", "pair", "pairs")
    asked = group_of(door, one, "pair", alone["meta"]["version"])
    assert asked["meta"]["rbVersion"] == alone["meta"]["rbVersion"] + 1
    assert len(normal(asked)) == 4
    assert group_of(door, two, "pair")["queues"] == {}
    commit(door, normal(alone)[3], 1, flag=1)
    first = group_of(door, one, "pair", asked["meta"]["version"])
    second = group_of(door, two, "pair")
    assert first["meta"] == second["meta"]
    owned = [{queue["queueId"] for queue in normal(part)} for part in (first, second)]
    assert [len(part) for part in owned] == [2, 2]
    assert owned[0] | owned[1] == {queue["queueId"] for queue in normal(alone)}
    ok(door, f"{CONSUMER}deRegister", id=one)
    commit(door, normal(second)[0], 0, flag=1)
    left = group_of(door, two, "pair", second["meta"]["version"])
    assert len(normal(left)) == 4


def test_failures_go_to_the_failure_topic(door: Door) -> None:
    """A message that failed is published there with its count; the client finds it in its failure queues."""
    arrange(door, "fails", "failing", 1)
    consumer = enter(door, "c", "fails", "failing")
    group = group_of(door, consumer, "fails")
    failures = [one for one in group["queues"].values() if one["topicType"] == 2]
    assert [(one["topicName"], one["originTopicName"], one["offset"]) for one in failures] == [
        ("fails_failing_fail", "failing", 0)
    ] * 2
    message = {"id": 1, "tag": "", "bizId": "f", "body": "x", "traceId": "t", "retryCount": 1}
    failed = {"topicName": "fails_failing_fail", "msgs": [message], "synFlag": 1}
    ok(door, f"{CONSUMER}publishAndUpdateResultFailMsg", queueId=normal(group)[0]["queueId"], failMsg=failed)
    found = []
    for queue in failures:
        found += ok(door, f"{CONSUMER}pullData", queueId=queue["queueId"], offsetStart=0, offsetEnd=50)["msgs"]
    (got,) = found
    assert (got["bizId"], got["traceId"], got["retryCount"], got["tag"]) == ("f", "t", 1, "")


def test_an_unknown_consumer_is_told_so(door: Door) -> None:
    """After a restart of the server clients register again."""
    assert ok(door, f"{CONSUMER}heartbeat", consumerId=5, asyn=0)["deleted"] == 1
    assert ok(door, f"{CONSUMER}heartbeat", consumerId=5, asyn=1)["deleted"] == 0
    polled = ok(door, f"{CONSUMER}getConsumerGroupPolling", consumerId=5, consumerGroupVersion={"g": 0})
    assert polled["consumerDeleted"] == 1


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        ("register", b"{bad"),
        ("register", b""),
        ("register", b'{"name": 5.5, "clientIp": []}'),
        ("publish", b'{"topicName": "w4", "msgs": [{"body": "x", "retryCount": "abc"}]}'),
        ("getConsumerGroupPolling", b'{"consumerId": 1}'),
        ("commitOffset", b'{"queueOffsets": [{"offset": "many"}]}'),
    ],
)
def test_unreadable_requests_have_code_0(door: Door, path: str, request_body: bytes) -> None:
    """Status 200, `suc` false, a message."""
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = door.http.post(CONSUMER + path, content=request_body, headers=headers)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["code"], found["suc"], found["time"], bool(found["msg"])) == ("0", False, 0, True)


def test_what_cannot_be_stored_is_refused(door: Door) -> None:
    """pmq would answer success and drop a message for a queue that is not writable; and no body is no message."""
    arrange(door, "strict", "stricts", 1)
    for message in ({"body": "x", "partitionInfo": {"queueId": 1, "strictMode": 1}}, {}, {"body": "x" * 100_001}):
        answer = ask(door, f"{CONSUMER}publish", topicName="stricts", msgs=[message])
        assert (answer["suc"], "code" in answer, bool(answer["msg"])) == (False, False, True)


def test_a_request_with_a_wrong_part_stores_nothing(door: Door) -> None:
    """Messages for several queues are checked together: pmq's client repeats the whole request."""
    arrange(door, "parts", "several", 2)
    (first, second) = ok(door, f"{META}getTopicQueueIds", topicNames=["several"])["topicQueues"]["several"]

    def to(queue: int, **message: str) -> dict[str, Any]:
        return {"body": "x", "partitionInfo": {"queueId": queue}, **message}

    for wrong in (to(1), to(second, body=""), to(second, tag="a\u0002b")):
        assert ask(door, f"{CONSUMER}publish", topicName="several", msgs=[to(first), wrong])["suc"] is False
        for queue in (first, second):
            pull = {"queueId": queue, "offsetStart": 0, "offsetEnd": 50}
            assert ok(door, f"{CONSUMER}pullData", **pull)["msgs"] == []


def test_the_time_of_a_message_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """pmq's client reads exactly this format, in its own zone; the column had seconds, so ms are 000."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        host = Host("127.0.0.1", 1)
        kept = MessageExt("t", b"x", 0, {}, 0, 0, 0, 0, 0, host, 1_795_342_797_987, host, 0, 0, 0, 1, "broker-a")
        assert pulled(kept)["sendTime"] == "2026-11-22 18:19:57:000"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_address_that_a_publisher_names_is_kept(door: Door) -> None:
    """pmq shows it as sendIp, also behind a proxy; without it, that of the connection."""
    arrange(door, "named", "names", 1)
    for more in ({"clientIp": "192.0.2.2"}, {}, {"clientIp": "127.0.0.1"}):
        ok(door, f"{CONSUMER}publish", topicName="names", msgs=[{"body": "x"}], **more)
    (queue,) = ok(door, f"{META}getTopicQueueIds", topicNames=["names"])["topicQueues"]["names"]
    got = ok(door, f"{CONSUMER}pullData", queueId=queue, offsetStart=0, offsetEnd=9)["msgs"]
    assert [one["sendIp"] for one in got] == ["192.0.2.2", "127.0.0.1", "127.0.0.1"]


class ClosedQueue:
    """A sender to a broker whose queue 0 is closed."""

    def __init__(self, error: MQError) -> None:
        self.stored: list[int] = []
        self._error = error

    async def publish(self, messages: list[Message], repeatable: None, host: Host, queue_id: int = ANY_QUEUE) -> None:
        if queue_id == 0:
            raise problem_of_error(self._error) from self._error
        self.stored.append(queue_id)


@pytest.mark.parametrize(
    ("is_strict", "error", "stored"),
    [
        (False, ServiceNotAvailable("found it closed"), [ANY_QUEUE]),
        (True, ServiceNotAvailable("found it closed"), []),
        (False, SystemError_("found no answer: perhaps stored"), []),
    ],
)
async def test_a_queue_that_takes_nothing_is_replaced_unless_the_client_insists(
    is_strict: bool, error: MQError, stored: list[int]
) -> None:
    """As in pmq; not if the message may be stored."""
    sender = ClosedQueue(error)
    door: Any = SimpleNamespace(_publisher=sender)
    broker = PmqBroker(FakeBroker(), Host("127.0.0.1", 1))
    with nullcontext() if stored else pytest.raises(Problem):
        await PmqInterface._store(door, [Message("t", b"x")], 0, broker, is_strict=is_strict)
    assert sender.stored == stored


def test_a_topic_that_takes_nothing_has_no_writable_queue(door: Door) -> None:
    """pmq's partition selectors choose among them."""
    arrange(door, "reading", "reads", 2)
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.create_topic(TopicConfig("reads", 2, 2, int(Perm.READ)))
    assert ok(door, f"{META}getTopicQueueIds", topicNames=["reads"])["topicQueues"] == {"reads": []}


def test_a_load_balancer_of_pmq_finds_the_door(door: Door) -> None:
    """It asks /hs."""
    answer = door.http.get("/hs")
    assert (answer.status_code, answer.text) == (200, "OK")
