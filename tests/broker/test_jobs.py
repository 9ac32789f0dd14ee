"""Long requests run in slices: other requests are served in between, and the reply is the same."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mqtrail.broker import Lane, jobs
from mqtrail.broker.access.policies import Acl, Entry, Resource, User
from mqtrail.broker.clients import offset_requests as client_offsets
from mqtrail.broker.messages.send import BATCH_COUNT_MAX, BATCH_SLICE
from mqtrail.broker.operator import group_admin, offset_admin, stats, surveys
from mqtrail.broker.telemetry import BrokerTrace
from mqtrail.broker.timing import delays
from mqtrail.store import Appended
from mqtrail.wire import (
    JOBS_MAX,
    BatchItem,
    ConsumerData,
    ConsumerOffsetTable,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    Message,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SendMessageHeader,
    SerializeType,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfigTable,
    decode_record,
    encode_batch,
    encode_command,
)

from .helpers import OTHER, PEER, Bench, at_once


def begin_batch(bench: Bench, count: int) -> list[Send]:
    """Send a batch; return the immediate replies."""
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=bench.now_ms, batch=True)
    body = encode_batch(Message("orders", b"%d" % number) for number in range(count))
    return bench.tell(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), body)


def finish(bench: Bench) -> tuple[RemotingCommand, int]:
    """Tick until a job is answered; return the reply and the number of ticks."""
    for ticks in range(1, 1_000):
        assert bench.broker.next_tick_ms() == 0
        for send in bench.broker.tick(bench.now_ms):
            assert send.peer == PEER.id
            return send.command, ticks
    raise AssertionError("no answer")


def test_a_large_batch_is_stored_at_once() -> None:
    """Messages of other clients are stored before or after the batch, not inside it."""
    bench = Bench()
    bench.send()
    count = 5 * BATCH_SLICE + 1
    assert begin_batch(bench, count) == []
    for other in range(3):
        bench.broker.tick(bench.now_ms)
        assert bench.store.max_offset("orders", 0) == 1 + other
        assert bench.send(body=b"other").code == ResponseCode.SUCCESS
    sends: list[Send] = []
    while len(bench.broker.jobs):
        before = bench.store.max_offset("orders", 0)
        sends += bench.broker.tick(bench.now_ms)
        assert bench.store.max_offset("orders", 0) - before in (0, count)
    assert [send.command.code for send in sends] == [ResponseCode.SUCCESS]
    assert sends[0].command.ext["queueOffset"] == "4"
    assert bench.send(body=b"other").code == ResponseCode.SUCCESS
    bodies: list[bytes] = []
    while (found := bench.store.read("orders", 0, len(bodies), 1_000, 1 << 24)).records:
        bodies += [decode_record(bytes(record))[0].body for record in found.records]
    assert bodies[1:] == [b"other"] * 3 + [b"%d" % number for number in range(count)] + [b"other"]


def test_a_large_batch_ends_pulls_that_wait_for_it() -> None:
    """Held pulls are checked once for the batch."""
    bench = Bench()
    bench.send()
    bench.heartbeat(topics={"orders": "*"})
    assert bench.tell(RequestCode.PULL_MESSAGE, bench.pull_ext("orders", 1, hold_ms=15_000)) == []
    begin_batch(bench, 2 * BATCH_SLICE)
    sends: list[Send] = []
    while len(bench.broker.jobs):
        sends += bench.broker.tick(bench.now_ms)
    pulled, stored = sends
    if stored.command.body:
        pulled, stored = stored, pulled
    assert (pulled.command.code, stored.command.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert pulled.command.ext["maxOffset"] == str(1 + 2 * BATCH_SLICE)


def test_each_message_of_a_large_batch_is_counted_and_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted and traced like those of a small batch."""
    traced: list[tuple[bytes, Appended]] = []
    monkeypatch.setattr(
        BrokerTrace,
        "stored",
        lambda self, record, place, kind, now_ms: traced.append((bytes(record.body), place)),
    )
    counted = []
    for count in (BATCH_SLICE, 2 * BATCH_SLICE):
        traced.clear()
        bench = Bench(broker_trace=True)
        begin_batch(bench, count)
        while len(bench.broker.jobs):
            bench.broker.tick(bench.now_ms)
        assert bench.broker.stats is not None
        counter = bench.broker.stats.put_counter("orders", 0)
        assert [body for body, _ in traced] == [b"%d" % number for number in range(count)]
        assert [place.queue_offset for _, place in traced] == list(range(count))
        assert counter.size == sum(place.size for _, place in traced)
        counted.append((counter.count, counter.times))
    assert counted == [(BATCH_SLICE, BATCH_SLICE), (2 * BATCH_SLICE, 2 * BATCH_SLICE)]


def test_a_topic_that_is_deleted_during_a_batch() -> None:
    """The batch is refused: its messages would be in a queue that cannot be read."""
    bench = Bench()
    bench.send()
    begin_batch(bench, 3 * BATCH_SLICE)
    bench.broker.tick(bench.now_ms)
    bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    reply, _ = finish(bench)
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert bench.store.max_offset("orders", 0) == 0


@pytest.mark.slow
def test_a_batch_of_too_many_is_refused_whole() -> None:
    """A batch with more messages than official clients can send is refused and not stored."""
    bench = Bench()
    bench.send()
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=bench.now_ms, batch=True)
    body = encode_batch([BatchItem(b"x")] * (BATCH_COUNT_MAX + 1))
    assert bench.tell(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), body) == []
    reply, _ = finish(bench)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "MSG_REGION" in reply.ext
    assert bench.store.max_offset("orders", 0) == 1


def test_a_store_that_fills_up_during_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message of the batch is stored."""
    bench = Bench()
    bench.send()
    begin_batch(bench, 3 * BATCH_SLICE)
    bench.broker.tick(bench.now_ms)
    monkeypatch.setattr(bench.store, "_full", True)
    reply, _ = finish(bench)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bench.store.max_offset("orders", 0) == 1


def test_many_at_once_wait_for_their_turn() -> None:
    """Each is served, even if the broker is busy."""
    bench = Bench()
    bench.send()
    for _ in range(2 * JOBS_MAX):
        assert begin_batch(bench, BATCH_SLICE + 1) == []
    for _ in range(2 * JOBS_MAX):
        reply, _ = finish(bench)
        assert reply.code == ResponseCode.SUCCESS


def test_large_tables_are_answered_in_slices() -> None:
    """The reply equals one that is built in one turn."""
    bench = Bench()
    for number in range(600):
        bench.broker.topics.create_own(f"topic-{number:04}", 2, 6, bench.now_ms)
        bench.broker.groups.update(SubscriptionGroupConfig(f"group-{number:04}"), bench.now_ms)
        bench.broker.offsets.commit(f"group-{number:04}", f"topic-{number:04}", 1, number)
    topics, groups, offsets = bench.broker.topics, bench.broker.groups, bench.broker.offsets
    for code, expected in (
        (RequestCode.GET_ALL_TOPIC_CONFIG, dict(topics.all())),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, dict(groups.all())),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, offsets.table().offset_table),
    ):
        assert bench.tell(code) == []
        assert bench.ask(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}, peer=OTHER).code == 0
        reply, _ = finish(bench)
        body = reply.body
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            assert TopicConfigTable.decode(body).topic_config_table == expected
        elif code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            assert SubscriptionGroupTable.decode(body).subscription_group_table == expected
            assert body == groups.table().encode()
        else:
            assert ConsumerOffsetTable.decode(body).offset_table == expected
            assert body == offsets.table().encode(strict=False)


def test_queues_are_cleaned_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """306 cleans some queues per slice; it skips a topic that is deleted meanwhile."""
    monkeypatch.setattr("mqtrail.store.commitlog.queues.QUEUES_A_SLICE", 2)
    bench = Bench()
    for number in range(9):
        bench.send(f"t{number}")
    assert bench.tell(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE) == []
    bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t8"})
    reply, ticks = finish(bench)
    assert (reply.code, ticks) == (ResponseCode.SUCCESS, 4)


QUEUES = 5 * jobs.QUEUES_A_SLICE
TOPIC = {"topic": "wide"}
GROUP = {"group": "g", **TOPIC}
RESET = {"timestamp": "-1", "isForce": "true", **GROUP}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, TOPIC),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, GROUP),
        (RequestCode.QUERY_CORRECTION_OFFSET, {"compareGroup": "g", "filterGroups": "", **TOPIC}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h", "offline": "true", **TOPIC}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"clients": "asked", **RESET}),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
    ],
)
def test_topics_with_many_queues_are_gone_through_in_slices(
    monkeypatch: pytest.MonkeyPatch, code: RequestCode, ext: dict[str, str]
) -> None:
    """A slice visits a limited number of queues, however few the topics are; the reply equals one built in one turn."""

    def wide() -> Bench:
        bench = Bench(server_side_reset="clients" not in ext)
        bench.broker.topics.create_own("wide", QUEUES, 6, bench.now_ms)
        for group in "gh":
            bench.broker.groups.update(SubscriptionGroupConfig(group), bench.now_ms)
        for queue_id in range(QUEUES):
            bench.broker.offsets.commit("g", "wide", queue_id, queue_id % 3)
        for queue_id in range(0, QUEUES, 50):
            bench.send("wide", queue_id=queue_id)
        if "clients" in ext:
            bench.heartbeat(group="g", topics={"wide": "*"}, peer=OTHER)
        return bench

    with monkeypatch.context() as context:
        for module in (jobs, stats, offset_admin, group_admin, surveys):
            context.setattr(module, "QUEUES_A_SLICE", 1 << 30)
        for module in (offset_admin, client_offsets):
            context.setattr(module, "ENTRIES_A_SLICE", 1 << 30)
        at_once = wide()
        whole = at_once.ask(code, ext)
    bench = wide()
    looked: list[int] = []
    for name in ("max_offset", "store_time"):
        monkeypatch.setattr(bench.store, name, counted(looked, getattr(bench.store, name)))
    assert bench.tell(code, ext) == []
    reply, slices = None, 0
    while reply is None:
        assert len(looked) <= 4 * jobs.QUEUES_A_SLICE
        assert bench.broker.next_tick_ms() == 0
        looked.clear()
        slices += 1
        reply = next((send.command for send in bench.broker.tick(bench.now_ms) if send.peer == PEER.id), None)
    assert slices >= (1 if code == RequestCode.GET_ALL_CONSUMER_OFFSET else 4), "its entries are by topic and group"
    assert (reply.code, reply.body) == (whole.code, whole.body)
    assert bench.broker.offsets.queues("h", "wide") == at_once.broker.offsets.queues("h", "wide")
    assert bench.broker.offsets.queues("g", "wide") == at_once.broker.offsets.queues("g", "wide")


def counted(calls: list[int], act: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return act(*arguments)

    return counting


def test_many_delayed_messages_are_delivered_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick delivers some of the due messages, alternating between levels; the order is kept."""
    monkeypatch.setattr(delays, "BATCHES_A_TURN", 2)
    monkeypatch.setattr(delays, "BATCH_COUNT", 5)
    bench = Bench()
    for number in range(30):
        bench.send(body=b"%d" % number, DELAY="1" if number % 2 else "2")
    bench.now_ms += 5_000
    delivered = [0]
    while bench.broker.next_tick_ms() <= bench.now_ms:
        bench.broker.tick(bench.now_ms)
        delivered.append(bench.store.max_offset("orders", 0))
        assert delivered[-1] - delivered[-2] <= 10
    found = [int(message.body) for message in bench.messages("orders")]
    assert len(found) == 30
    for level in range(2):
        assert [number for number in found if number % 2 == level] == list(range(level, 30, 2))


@pytest.mark.parametrize(
    ("code", "name", "field"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", "topicName"),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", "groupName"),
    ],
)
def test_many_topics_and_groups_are_made_in_slices(code: RequestCode, name: str, field: str) -> None:
    """Other requests are served between slices; the reply is sent after the last slice, once all is saved."""
    bench = Bench()
    count = 4 * jobs.CHANGES_A_SLICE + 1
    body = json.dumps({name: [{field: f"made{number}"} for number in range(count)]}).encode()
    assert bench.tell(code, body=body) == []
    table = bench.broker.topics if field == "topicName" else bench.broker.groups
    assert bench.broker.tick(bench.now_ms) == []
    assert sum(one.startswith("made") for one in table.all()) == jobs.CHANGES_A_SLICE
    assert bench.send().code == ResponseCode.SUCCESS
    reply, ticks = finish(bench)
    assert (reply.code, ticks) == (ResponseCode.SUCCESS, 4)
    assert sum(one.startswith("made") for one in table.all()) == count


def test_many_locks_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice takes some locks; the reply lists all of them; they are released in slices too."""
    bench = Bench()
    queues = tuple(MessageQueue("orders", "broker-a", number) for number in range(4 * jobs.LOCKS_A_SLICE))
    body = LockBatchBody("g", "c", queues).encode()
    taken: list[int] = []
    lock = bench.broker.locks.lock
    monkeypatch.setattr(bench.broker.locks, "lock", lambda *args: taken.append(len(args[2])) or lock(*args))
    assert bench.tell(RequestCode.LOCK_BATCH_MQ, body=body) == []
    reply, ticks = finish(bench)
    assert (taken, ticks > 4) == ([jobs.LOCKS_A_SLICE] * 4, True)
    assert LockedQueues.decode(reply.body).locked == queues
    assert bench.ask(RequestCode.UNLOCK_BATCH_MQ, body=body).code == 0
    assert not bench.broker.locks.is_any_held("g", bench.now_ms)


def test_a_large_heartbeat_is_served_in_slices() -> None:
    """Its groups are registered in slices, and the client gets one reply."""
    bench = Bench()
    groups = tuple(ConsumerData(f"g{number}") for number in range(2 * jobs.CHANGES_A_SLICE + 1))
    body = HeartbeatData("c", consumer_data_set=groups).encode()
    assert bench.tell(RequestCode.HEART_BEAT, body=body) == []
    counts = []
    reply = None
    while reply is None:
        counts.append(sum(bench.broker.clients.consumer_group(group.group_name) is not None for group in groups))
        sends = bench.broker.tick(bench.now_ms)
        reply = next((send.command for send in sends if send.command.is_response), None)
    assert reply.code == ResponseCode.SUCCESS
    assert counts[-1] == 2 * jobs.CHANGES_A_SLICE
    assert counts[0] == 0, "to decode it is work enough"
    made = jobs.CHANGES_A_SLICE // 2  # each makes a group and its retry topic
    assert max(later - earlier for earlier, later in pairwise(counts)) <= made


def test_many_users_and_policies_are_listed_in_slices() -> None:
    """The list is built in slices like other large tables, and equals one built in one turn."""
    bench = Bench()
    auth = bench.broker.access.auth
    count = 2 * jobs.ENTRIES_A_SLICE
    for number in range(count):
        auth.users[f"user-{number:05}"] = User(f"user-{number:05}", "secret")
        auth.acls[f"User:user-{number:05}"] = Acl((Entry(Resource("Topic", "t"), ("Pub",), (), True, ()),))
    for code, field in ((RequestCode.AUTH_LIST_USER, "username"), (RequestCode.AUTH_LIST_ACL, "subject")):
        assert bench.tell(code) == []
        reply, ticks = finish(bench)
        assert ticks >= 2
        prefix = "User:" if field == "subject" else ""
        assert [one[field] for one in json.loads(reply.body)] == [f"{prefix}user-{n:05}" for n in range(count)]
        assert bench.ask(code, {"filter": "zzz", "subjectFilter": "zzz"}).body == b""


def test_a_topic_of_many_groups_is_deleted_in_slices() -> None:
    """The groups of the topic are listed in slices too."""
    bench = Bench()
    bench.send()
    count = 3 * jobs.CHANGES_A_SLICE
    for number in range(count):
        bench.broker.offsets.commit(f"g{number}", "orders", 0, 1)
        bench.broker.topics.create_own(f"%RETRY%g{number}_orders", 1, 6, bench.now_ms)
    assert bench.tell(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}) == []
    assert "orders" not in bench.broker.topics
    assert sum(topic.startswith("%RETRY%") for topic in bench.broker.topics.all()) == 2 * jobs.CHANGES_A_SLICE
    reply, ticks = finish(bench)
    assert (reply.code, ticks) == (ResponseCode.SUCCESS, 3)
    assert not any(topic.startswith("%RETRY%") for topic in bench.broker.topics.all())
    assert at_once(bench.broker.offsets.groups_of("orders")) == []


@pytest.mark.parametrize("binary", [False, True])
def test_the_lane_leaves_a_large_batch_to_its_slices(binary: bool) -> None:
    """A batch with one message more than a slice leaves the lane, which would store all at once."""
    bench = Bench()
    bench.send()
    items = encode_batch([BatchItem(b"x", b"UNIQ_KEY\x01id\x02")] * (BATCH_SLICE + 1))
    header = SendMessageHeader("pg", "orders", queue_id=0, batch=True, born_timestamp=1, properties="UNIQ_KEY\x01b\x02")
    kind = SerializeType.ROCKETMQ if binary else SerializeType.JSON
    request = bench.request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), items, serialize=kind)
    frame = encode_command(request)
    served = Lane(bench.broker).process(PEER, frame, 0, len(frame), bench.now_ms)
    assert (served.position, served.replies, served.sends) == (len(frame), b"", [])
    assert bench.store.max_offset("orders", 0) == 1
    reply, _ = finish(bench)
    assert reply.code == ResponseCode.SUCCESS
    assert bench.store.max_offset("orders", 0) == BATCH_SLICE + 2
