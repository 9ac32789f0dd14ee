"""No request holds the loop for long, however large the tables are.

What a turn costs is counted in calls of functions, which do not depend on the machine. Every request code is asked
once, on tables so large that going through one of them in a single turn is noticed.
"""

from collections.abc import Callable
from cProfile import Profile

import pytest

from mqtrail.broker.access.policies import Acl, Entry, Resource, User
from mqtrail.broker.bounds import BATCH_ACKS_MAX, CONFIG_LIST_MAX, LOCK_QUEUES_MAX
from mqtrail.broker.requests import REQUESTS
from mqtrail.store import ConfigFileStore
from mqtrail.wire import (
    BatchAck,
    BatchAckBody,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    ProducerData,
    RequestCode,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
)

from .helpers import OTHER, PEER, Bench

CALLS_MAX = 160_000  # of a turn: some 50 ms
COUNT = 4_000  # topics, groups, users, queues of one topic
GROUPS = 1_000  # of one client


class World(Bench):
    """A broker with large tables, whose changes are gathered as in a node."""

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
    """Return how many functions a call calls, those written in C included."""
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
    """Neither that of the request nor one in which it is worked on."""
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
