"""Request modes, and the queues that the broker assigns to clients."""

import json

import pytest

from mqtrail.wire import (
    Host,
    Peer,
    PeerId,
    QueryAssignmentBody,
    QueueAssignments,
    QueueData,
    RequestCode,
    RequestMode,
    ResponseCode,
    SubscriptionGroupConfig,
    TopicRouteData,
)

from ..helpers import NOW_MS, OTHER, Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.broker.topics.create_own("orders", 8, 6, NOW_MS)
    bench.heartbeat("c1", topics={"orders": "*"})
    bench.heartbeat("c2", peer=OTHER, topics={"orders": "*"})
    return bench


def assigned(bench: Bench, client_id: str, strategy: str = "AVG", **fields: str) -> list[tuple[int, str]] | None:
    body = QueryAssignmentBody(fields.pop("topic", "orders"), "g", client_id, strategy, **fields)
    reply = bench.ask(RequestCode.QUERY_ASSIGNMENT, body=body.encode())
    assert reply.code == ResponseCode.SUCCESS
    found = QueueAssignments.decode(reply.body).assignments
    return None if found is None else [(one.queue.queue_id, one.mode) for one in found]


def set_mode(bench: Bench, topic: str = "orders", group: str = "g", mode: str = "POP", share: int = 0) -> int:
    body = RequestMode(topic, group, mode, share).encode()
    return bench.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body).code


def test_pull_is_shared_by_strategy(bench: Bench) -> None:
    """The result equals that of a client's own rebalance; an unknown strategy gets no assignment."""
    assert assigned(bench, "c1") == [(number, "PULL") for number in range(4)]
    assert assigned(bench, "c2", "AVG_BY_CIRCLE") == [(number, "PULL") for number in (1, 3, 5, 7)]
    assert assigned(bench, "c1", "CONSISTENT_HASH") is None
    assert assigned(bench, "stranger") == []
    assert assigned(bench, "c1", topic="nothing") is None
    assert assigned(bench, "c1", message_model="BROADCASTING") == [(number, "PULL") for number in range(8)]


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [("AVG", [[0, 1, 2], [3, 4, 5], [6, 7]]), ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4, 7], [2, 5]])],
)
def test_strategies_as_apache(bench: Bench, strategy: str, shares: list[list[int]]) -> None:
    """Eight queues for three clients, as 5.3.3's classes share them."""
    bench.heartbeat("c3", peer=_peer(3))
    for number, share in enumerate(shares):
        assert [queue_id for queue_id, _ in assigned(bench, f"c{number + 1}", strategy) or ()] == share


def _peer(number: int) -> Peer:

    return Peer(PeerId(number), Host("10.0.0.3", 40_003))


def test_pop_gives_everybody_everything(bench: Bench) -> None:
    """With a share of 0 every client pops from every queue; a retry topic keeps PULL mode."""
    assert set_mode(bench) == ResponseCode.SUCCESS
    assert assigned(bench, "c1") == assigned(bench, "c2") == [(-1, "POP")]
    bench.broker.topics.create_own("%RETRY%g", 1, 6, NOW_MS)
    assert assigned(bench, "c1", topic="%RETRY%g") == [(0, "PULL")]


def test_pop_shares(bench: Bench) -> None:
    """With a share of n a client pops its own queues and those of the n clients after it."""
    for number in range(3, 6):
        bench.heartbeat(f"c{number}", peer=_peer(number))
    set_mode(bench, share=1)
    assert [queue_id for queue_id, _ in assigned(bench, "c1") or ()] == [0, 1, 2, 3]
    assert [queue_id for queue_id, _ in assigned(bench, "c5") or ()] == [7, 0, 1]
    bench.broker.topics.create_own("narrow", 2, 6, NOW_MS)
    set_mode(bench, topic="narrow", share=1)
    assert [assigned(bench, f"c{number}", topic="narrow") for number in (1, 2, 3)] == [
        [(0, "POP")],
        [(1, "POP")],
        [(0, "POP")],
    ]


def test_default_mode(bench: Bench) -> None:
    bench = Bench(default_request_mode="POP")
    bench.broker.topics.create_own("orders", 4, 6, NOW_MS)
    bench.heartbeat("c1")
    assert assigned(bench, "c1") == [(-1, "POP")]


def test_modes_are_kept(bench: Bench) -> None:
    """The file and the reply to 402 have Apache's format; a broker reads the file at its start."""
    set_mode(bench)
    expected = {
        "messageRequestModeMap": {
            "orders": {"g": {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "orders"}}
        }
    }
    assert json.loads(bench.disk.small["config/messageRequestMode.json"]) == expected
    bench.restart()
    assert json.loads(bench.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body) == expected


def test_refused_modes(bench: Bench) -> None:
    """The codes are those of 5.3.3: 16 for a retry topic, 17, 26, and 1 for an invalid mode."""
    assert set_mode(bench, topic="%RETRY%g") == ResponseCode.NO_PERMISSION
    assert set_mode(bench, topic="nothing") == ResponseCode.TOPIC_NOT_EXIST
    assert set_mode(bench, mode="PUSH") == ResponseCode.SYSTEM_ERROR
    bench = Bench(auto_create_group=False)
    bench.broker.topics.create_own("orders", 8, 6, NOW_MS)
    assert set_mode(bench) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_routes_of_other_brokers(bench: Bench) -> None:
    """A query waits for the topic's route from the name server, and then covers all its queues."""
    routes = bench.broker.pop.assignments.routes
    routes.follows = True
    body = QueryAssignmentBody("orders", "g", "c2", "AVG").encode()
    assert bench.tell(RequestCode.QUERY_ASSIGNMENT, body=body) == []
    assert routes.wanted(bench.now_ms) == ["orders"]
    assert routes.wanted(bench.now_ms) == []
    data = (QueueData("broker-a", 8, 8, 6), QueueData("broker-b", 4, 4, 6), QueueData("broker-c", 4, 4, 2))
    route = TopicRouteData.decode(TopicRouteData(data).encode())
    [reply] = bench.broker.pop.assignments.learn_route("orders", route, bench.now_ms)
    found = QueueAssignments.decode(reply.command.body).assignments
    assert found is not None
    assert [(one.queue.broker_name, one.queue.queue_id) for one in found] == [
        ("broker-a", 6),
        ("broker-a", 7),
        *(("broker-b", number) for number in range(4)),
    ]
    set_mode(bench)
    assert assigned(bench, "c1") == [(-1, "POP"), (-1, "POP")]
    bench.advance(30_000)
    assert routes.wanted(bench.now_ms) == ["orders"]
    bench.broker.pop.assignments.learn_route("orders", None, bench.now_ms)
    assert assigned(bench, "c1") == [(-1, "POP"), (-1, "POP")]


def test_name_server_that_says_nothing(bench: Bench) -> None:
    """After three seconds the reply covers this broker's queues only; a client that disconnected gets no reply."""
    bench.broker.pop.assignments.routes.follows = True
    body = QueryAssignmentBody("orders", "g", "c1", "AVG").encode()
    bench.tell(RequestCode.QUERY_ASSIGNMENT, body=body)
    bench.tell(RequestCode.QUERY_ASSIGNMENT, body=body, peer=_peer(9))
    bench.broker.disconnected(_peer(9).id)
    [reply] = bench.advance(3_000)
    assert len(QueueAssignments.decode(reply.command.body).assignments or ()) == 4


def test_modes_go_with_their_topic_and_group() -> None:
    """Deleting a topic or a group deletes its modes: a new one of the same name starts without them."""
    bench = Bench()
    for topic in ("orders", "points"):
        bench.send(topic)
        for group in ("g", "h"):
            bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig(group).encode())
            assert set_mode(bench, topic, group) == 0
    bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    bench.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "h"})
    for _ in range(2):
        mode = bench.broker.pop.assignments.mode
        found = {(topic, group): mode(topic, group).mode for topic in ("orders", "points") for group in ("g", "h")}
        assert found == dict.fromkeys(found, "PULL") | {("points", "g"): "POP"}
        bench.restart()
