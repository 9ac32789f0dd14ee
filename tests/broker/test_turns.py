"""No request blocks the loop for long, however large the tables are.

The cost of a turn is counted in function calls, which do not depend on the machine. Every request code is sent once,
with tables so large that a scan in a single turn exceeds the limit.
"""

from collections.abc import Callable
from cProfile import Profile

import pytest

from mqtrail.broker.access.policies import Acl, Entry, Resource, User
from mqtrail.broker.bounds import BATCH_ACKS_MAX, CONFIG_LIST_MAX, LOCK_QUEUES_MAX
from mqtrail.broker.messages.send import BATCH_COUNT_MAX
from mqtrail.broker.requests import REQUESTS
from mqtrail.store import ConfigFileStore
from mqtrail.wire import (
    BatchAck,
    BatchAckBody,
    BatchItem,
    ConsumerData,
    ConsumerOffsetTable,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    ProducerData,
    QueryAssignmentBody,
    RequestCode,
    SendMessageHeader,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    encode_batch,
    pop_retry_topic,
)

from .helpers import NOW_MS, OTHER, PEER, Bench, at_once

CALLS_MAX = 160_000  # of a turn: some 50 ms
COUNT = 4_000  # topics, groups, users, queues of one topic
GROUPS = 1_000  # of one client


class World(Bench):
    """A broker with large tables whose changes are saved as in a node."""

    def __init__(self) -> None:
        super().__init__()
        self.files = ConfigFileStore(self.disk, gathers=True)
        self.broker = self._new_broker()
        broker, now_ms = self.broker, self.now_ms
        entry = Entry(Resource("Topic", "t"), ("Pub",), (), True, ())
        for number in range(COUNT):
            broker.topics.create_own(f"topic-{number}", 2, 6, now_ms)
            broker.groups.update(SubscriptionGroupConfig(f"group-{number}"), now_ms)
            broker.offsets.commit(f"group-{number}", "busy", 0, 0)
            broker.offsets.commit("g", f"topic-{number}", 0, 0)
            broker.access.auth.users[f"user-{number}"] = User(f"user-{number}", "secret")
            broker.access.auth.acls[f"User:user-{number}"] = Acl((entry,))
        broker.topics.create_own("busy", 2, 6, now_ms)
        broker.topics.create_own("wide", COUNT, 6, now_ms)
        for group in ("g", "h"):
            broker.groups.update(SubscriptionGroupConfig(group), now_ms)
        for queue_id in range(COUNT):
            broker.offsets.commit("g", "wide", queue_id, 0)
        for queue_id in range(0, COUNT, 100):
            self.send("wide", queue_id=queue_id)
        self.settle()

    def settle(self) -> None:
        while self.broker.next_tick_ms() <= self.now_ms:
            self.broker.tick(self.now_ms)
        self.files.finish()


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def calls_of(act: Callable[[], object]) -> int:
    """Return the number of functions that a call runs, including those written in C."""
    profile = Profile()
    profile.runcall(act)
    return sum(entry.callcount for entry in profile.getstats())


EXT = {
    "topic": "wide", "consumerGroup": "g", "group": "g", "groupName": "unknown", "srcGroup": "g", "destGroup": "h",
    "compareGroup": "g", "filterGroups": "", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000",
    "pollTime": "0", "initMode": "0", "order": "false", "exp": "", "expType": "TAG", "timestamp": "-1", "offset": "0",
    "isForce": "true", "isOrder": "false", "producerGroup": "pg", "statsName": "TOPIC_PUT_NUMS", "statsKey": "wide",
    "offline": "true", "clientID": "c", "index": "0", "count": "1", "username": "user-1", "subject": "User:user-1",
}  # fmt: skip
QUEUES = tuple(MessageQueue("wide", "broker-a", number) for number in range(LOCK_QUEUES_MAX))
BODIES: dict[int, bytes] = {
    RequestCode.LOCK_BATCH_MQ: LockBatchBody("g", "c", QUEUES).encode(),
    RequestCode.UNLOCK_BATCH_MQ: LockBatchBody("g", "c", QUEUES).encode(),
    RequestCode.HEART_BEAT: HeartbeatData(
        "c",
        tuple(ProducerData(f"pg-{number}") for number in range(GROUPS)),
        tuple(
            ConsumerData(f"group-{number}", subscription_data_set=(SubscriptionData.build(f"topic-{number}", "a"),))
            for number in range(GROUPS)
        ),
    ).encode(),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: TopicConfigList(
        tuple(TopicConfig(f"made-{number}") for number in range(CONFIG_LIST_MAX))
    ).encode(),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList(
        tuple(SubscriptionGroupConfig(f"made-{number}") for number in range(CONFIG_LIST_MAX))
    ).encode(),
    RequestCode.BATCH_ACK_MESSAGE: BatchAckBody("broker-a", (BatchAck("g", "wide"),) * BATCH_ACKS_MAX).encode(),
}
LAST = (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP)


@pytest.mark.parametrize("code", sorted(REQUESTS, key=lambda code: (code in LAST, code)))
def test_no_turn_is_long(world: World, code: int) -> None:
    """Neither the request's first turn nor any later one is long."""
    ext = EXT | {"bornTime": str(world.now_ms)}
    if code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
        ext["topic"] = "busy"
    request = world.request(code, ext, BODIES.get(code, b""))
    peer = OTHER if code == RequestCode.HEART_BEAT else PEER
    turns = [calls_of(lambda: world.broker.handle(peer, request, world.now_ms))]
    while len(world.broker.jobs):
        turns.append(calls_of(lambda: world.broker.tick(world.now_ms)))
    world.settle()
    assert max(turns) <= CALLS_MAX, f"turns of {sorted(turns)[-3:]} calls"


class Wide(Bench):
    """A broker with one topic of very many queues, and one group and one topic with offsets of very many others."""

    count = 60_000

    def __init__(self) -> None:
        super().__init__()
        self.files = ConfigFileStore(self.disk, gathers=True)
        self.broker = broker = self._new_broker()
        broker.topics.create_own("wide", self.count, 6, self.now_ms)
        broker.topics.create_own("busy", 2, 6, self.now_ms)
        broker.groups.update(SubscriptionGroupConfig("g"), self.now_ms)
        for number in range(self.count):
            broker.offsets.commit(f"group-{number}", "busy", 0, 0)
            broker.offsets.commit("g", f"topic-{number}", 0, 0)
            broker.offsets.commit("h", "wide", number, number)
        self.heartbeat(topics={"wide": "*"})
        self.files.finish()

    def turns(self, code: int, ext: dict[str, str], body: bytes = b"") -> list[int]:
        """Return the number of functions called by each turn that works on a request."""
        request = self.request(code, ext, body)
        turns = [calls_of(lambda: self.broker.handle(PEER, request, self.now_ms))]
        while len(self.broker.jobs):
            turns.append(calls_of(lambda: self.broker.tick(self.now_ms)))
        return turns


@pytest.fixture(scope="module")
def wide() -> Wide:
    return Wide()


@pytest.mark.slow
def test_many_changed_offsets_are_copied_in_turns(wide: Wide) -> None:
    """The first save after a start may contain all offsets: it copies them in turns and misses none."""
    offsets = wide.broker.offsets
    wide.now_ms = wide.broker.next_tick_ms()
    turns = []
    while wide.broker.next_tick_ms() <= wide.now_ms:
        turns.append(calls_of(lambda: wide.broker.tick(wide.now_ms)))
    assert max(turns) <= CALLS_MAX
    assert len(turns) > 2 * wide.count // 5_000
    wide.files.finish()
    saved = ConsumerOffsetTable.decode(wide.disk.small["config/consumerOffset.json"]).offset_table
    assert saved == offsets.table().offset_table
    assert len(saved) == 2 * wide.count + 1


ASSIGNMENT = QueryAssignmentBody("wide", "g", "c1", "AVG").encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "ext", "body", "count_min"),
    [
        (RequestCode.QUERY_ASSIGNMENT, {}, ASSIGNMENT, 50),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, {}, b"", 100),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "busy"}, b"", 20),
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}, b"", 20),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"}, b"", 10),
    ],
)
def test_no_turn_on_a_wide_topic_is_long(
    wide: Wide, code: int, ext: dict[str, str], body: bytes, count_min: int
) -> None:
    """Turns stay short with any number of queues per topic, groups per topic, and topics per group."""
    turns = wide.turns(code, ext, body)
    assert max(turns) <= CALLS_MAX, f"turns of {sorted(turns)[-3:]} calls"
    assert len(turns) >= count_min


@pytest.mark.slow
def test_the_largest_batch_is_stored_in_short_turns() -> None:
    """Turns stay short also while a pull waits for the batch; the index reads the batch back in parts."""
    bench = Bench()
    bench.send()
    bench.heartbeat(topics={"orders": "*"})
    assert bench.tell(RequestCode.PULL_MESSAGE, bench.pull_ext("orders", 1, hold_ms=15_000)) == []
    body = encode_batch([BatchItem(b"x", b"KEYS\x01k\x02")] * BATCH_COUNT_MAX)
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=bench.now_ms, batch=True)
    request = bench.request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), body)
    turns = [calls_of(lambda: bench.broker.handle(PEER, request, bench.now_ms))]
    while len(bench.broker.jobs):
        turns.append(calls_of(lambda: bench.broker.tick(bench.now_ms)))
    assert bench.store.max_offset("orders", 0) == 1 + BATCH_COUNT_MAX
    turns += [calls_of(bench.send)]
    turns += [calls_of(lambda: bench.store.dispatch_index(1_000)) for _ in range(3)]
    assert max(turns) <= CALLS_MAX, f"turns of {sorted(turns)[-3:]} calls"


@pytest.mark.slow
def test_topics_of_many_groups_and_queues_are_deleted_in_turns() -> None:
    """Queues, counters and offsets disappear once the deletion is durable; memory is freed in turns."""
    bench = Wide()
    broker = bench.broker
    assert broker.stats is not None
    for number in range(bench.count):
        bench.store.queue("wide", number)
        broker.stats.put_counter("wide", number).add()
        broker.stats.get_counter("wide", number, "g").add()
    for topic in ("busy", "wide"):
        turns = bench.turns(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        save = bench.files.begin_save()
        assert save is not None
        save()
        turns.append(calls_of(bench.files.end_save))
        assert at_once(broker.offsets.groups_of(topic)) == []
        assert broker.offsets.get("group-7", "busy", 0) is broker.offsets.get("h", topic, 7) is None
        while broker.offsets.is_forgetting:
            turns.append(calls_of(lambda: broker.tick(bench.now_ms)))
        assert max(turns) <= CALLS_MAX, f"turns of {sorted(turns)[-3:]} calls"
    assert bench.store.queue_ids("wide") == []
    assert broker.stats.puts_by_topic() == {}
    assert broker.stats.gets_by_topic_group() == {}
    assert len(list(broker.offsets)) == bench.count


@pytest.mark.slow
def test_retry_topics_of_many_groups_are_forgotten_in_turns() -> None:
    """The deletion of a topic deletes both retry topics of every group that popped it. It is settled once all is
    done, so that its answer waits for that."""
    bench = Bench()
    bench.files = ConfigFileStore(bench.disk, gathers=True)
    bench.broker = broker = bench._new_broker()
    names = []
    for number in range(10_000):
        group = f"group-{number}"
        broker.offsets.commit(group, "busy", 0, 0)
        names += [pop_retry_topic("busy", group), pop_retry_topic("busy", group, v2=True)]
    for name in ("busy", *names):
        broker.topics.create_own(name, 1, 6, bench.now_ms)
        bench.store.queue(name, 0)
    bench.files.finish()
    broker.handle(PEER, bench.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "busy"}), bench.now_ms)
    while len(broker.jobs):
        broker.tick(bench.now_ms)
    save = bench.files.begin_save()
    assert save is not None
    save()
    settled, ending = bench.files.settled, bench.files.end_save_in_slices()
    turns = [calls_of(lambda: next(ending, None))]
    assert 0 < len(bench.store.topics()) <= len(names)
    while bench.files.settled == settled:
        turns.append(calls_of(lambda: next(ending, None)))
    assert max(turns) <= CALLS_MAX // 4, f"turns of {sorted(turns)[-3:]} calls"
    assert bench.store.topics() == []


def test_many_that_waited_for_a_route_are_answered_in_turns() -> None:
    """Each is answered once, and in time."""
    bench = Bench()
    bench.broker.topics.create_own("orders", 8, 6, bench.now_ms)
    bench.broker.pop.assignments.routes.follows = True
    body = QueryAssignmentBody("orders", "g", "c", "AVG").encode()
    for _ in range(1_000):
        assert bench.tell(RequestCode.QUERY_ASSIGNMENT, body=body) == []
    answers = [len(bench.broker.pop.assignments.learn_route("orders", None, bench.now_ms))]
    while bench.broker.pop.assignments.next_due_ms() == 0:
        answers.append(len(bench.broker.tick(bench.now_ms)))
    assert (max(answers), sum(answers)) == (100, 1_000)


@pytest.mark.slow
def test_many_messages_are_revived_in_short_turns() -> None:
    """Popped by many groups, several times each: the check points of all queues of the revive log are due at once."""
    bench = Bench()
    bench.files = ConfigFileStore(bench.disk, gathers=True)
    bench.broker = bench._new_broker()
    for _ in range(4):
        bench.send()
    bench.files.finish()
    groups, pops = 900, 3_000
    for number in range(pops):
        names = {"topic": "orders", "consumerGroup": f"g{number % groups}", "queueId": "0", "maxMsgNums": "1"}
        assert bench.ask(RequestCode.POP_MESSAGE, EXT | names | {"bornTime": str(bench.now_ms)}).code == 0
    turns = []
    while bench.broker.next_tick_ms() <= NOW_MS + 71_000:
        bench.now_ms = max(bench.now_ms, bench.broker.next_tick_ms())
        turns.append(calls_of(lambda: bench.broker.tick(bench.now_ms)))
    assert max(turns) <= CALLS_MAX // 2, f"turns of {sorted(turns)[-3:]} calls"
    assert sum(bench.store.max_offset(f"%RETRY%g{number}_orders", 0) for number in range(groups)) == pops
