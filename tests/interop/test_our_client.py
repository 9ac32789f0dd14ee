"""Our client on Apache's servers: sends, deliveries, retries, dead letters, queries and trace equal those of its own
client."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from interop.driver import JavaClient
from interop.mqadmin import MqAdmin
from interop.probe import wait_until
from tests.loops import run

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Producer,
    ProducerConfig,
    QueueReader,
    RetryLater,
    RouteNotFound,
    SendResult,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TraceConfig,
)
from mqtrail.wire import (
    Message,
    Pub,
    SendStatus,
    SubAfter,
    SubBefore,
    TopicConfig,
    decode_records,
    decode_trace,
    dlq_topic,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

TOPIC, GROUP, TAG_GROUP, PRODUCER = "OurTopic", "OurGroup", "OurTagGroup", "OurProducer"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
ATTEMPTS_MAX = 2
DELAY_LEVEL, DELAY_MS = 2, 2000
LARGE = bytes(range(256)) * 80


@dataclass
class Life:
    """The actions and observations of our client on one server."""

    namesrv: str
    sent: dict[str, SendResult] = field(default_factory=dict)
    oneway_id: str = ""
    attempts: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    tagged: list[str] = field(default_factory=list)


@pytest.fixture(scope="module", params=["apache-5.3.3", "apache-4.9.7"])
def life(
    request: pytest.FixtureRequest,
    server: Callable[[str], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Life:
    """Our client's actions on one of Apache's servers, run once."""
    life = Life(server(request.param).namesrv_address)
    run(_live(life, TraceConfig(spool_dir=tmp_path_factory.mktemp("spool"))))
    return life


async def _live(life: Life, trace: TraceConfig) -> None:
    async with Producer(
        PRODUCER, life.namesrv, trace=True, config=ProducerConfig(send_timeout_ms=8000, trace=trace)
    ) as producer:
        # first, so that the topic exists when the consumers ask for its route
        life.sent["sync"] = await producer.send(
            Message(TOPIC, "päyload".encode(), tags="TagA", keys=["our-1", "our-2"], flag=5)
        )
        config = ConsumerConfig(
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            attempts_max=ATTEMPTS_MAX,
            rebalance_ms=1000,
            offset_persist_ms=500,
            trace=trace,
        )
        async with (
            Consumer(GROUP, life.namesrv, {TOPIC: "*"}, trace=True, config=config) as consumer,
            Consumer(TAG_GROUP, life.namesrv, {TOPIC: "TagA || TagB"}, config=config) as tag_consumer,
        ):
            handled = asyncio.Event()
            running = [
                asyncio.create_task(consumer.run(lambda delivery: _handle(life, handled, delivery))),
                asyncio.create_task(tag_consumer.run(lambda delivery: life.tagged.append(_label(delivery)))),
            ]
            await _send_the_rest(life, producer)
            async with asyncio.timeout(120):
                while not (_all_attempts_made(life) and len(life.tagged) >= 3):
                    handled.clear()
                    await asyncio.wait([asyncio.create_task(handled.wait())], timeout=0.2)
        await asyncio.wait_for(asyncio.gather(*running), 120)


async def _send_the_rest(life: Life, producer: Producer) -> None:
    for label, message in {
        "delayed": Message(TOPIC, b"later", delay_level=DELAY_LEVEL),
        "large": Message(TOPIC, LARGE, tags="TagB"),
        "fails-once": Message(TOPIC, b"fails-once", keys="our-fails"),
        "throws-once": Message(TOPIC, b"throws-once"),
        "poison": Message(TOPIC, b"poison", keys="our-poison"),
        "dead-at-once": Message(TOPIC, b"dead-at-once", keys="our-dead"),
    }.items():
        life.sent[label] = await producer.send(message)
    batch = [Message(TOPIC, f"item {i}".encode(), keys=f"item-{i}") for i in range(3)]
    life.sent["batch"] = await producer.send(batch)
    for i in range(2):
        life.sent[f"ordered-{i}"] = await producer.send(
            Message(TOPIC, f"ordered {i}".encode(), tags="TagA" if i == 0 else ""), order_key="customer-17"
        )
    life.oneway_id = await producer.send_oneway(Message(TOPIC, b"one way"))


def _label(delivery: Delivery) -> str:
    return delivery.body.decode() if len(delivery.body) < 100 else "large"


def _handle(life: Life, handled: asyncio.Event, delivery: Delivery) -> None:
    """Runs in a thread of the consumer's pool; the attempts of one message never overlap."""
    label = _label(delivery)
    attempts = life.attempts[label]
    attempts.append(delivery)
    delivery_no = delivery.message.reconsume_times
    if label == "poison" or (label == "fails-once" and delivery_no == 0):
        raise RetryLater
    if label == "throws-once" and delivery_no == 0:
        raise RuntimeError("asked to throw")
    if label == "dead-at-once":
        raise RetryLater(-1)


EXPECTED_ATTEMPTS = {
    **dict.fromkeys(
        ["päyload", "later", "large", "item 0", "item 1", "item 2", "ordered 0", "ordered 1", "one way"], 1
    ),
    "fails-once": 2,
    "throws-once": 2,
    "poison": ATTEMPTS_MAX + 1,
    "dead-at-once": 1,
}


def _all_attempts_made(life: Life) -> bool:
    return all(len(life.attempts[label]) >= count for label, count in EXPECTED_ATTEMPTS.items())


def test_sends(life: Life) -> None:
    """Every send is stored; a batch has an id and an offset id for each item; one key's sends share a queue."""
    assert {result.status for result in life.sent.values()} == {SendStatus.SEND_OK}
    assert life.sent["batch"].msg_id.count(",") == life.sent["batch"].offset_msg_id.count(",") == 2
    first, second = life.sent["ordered-0"], life.sent["ordered-1"]
    assert first.queue == second.queue
    assert second.queue_offset > first.queue_offset


def test_deliveries(life: Life) -> None:
    """Each message is delivered as often as its handler requested, with fields and body as sent."""
    assert {label: len(attempts) for label, attempts in life.attempts.items()} == EXPECTED_ATTEMPTS
    [first] = life.attempts["päyload"]
    assert (first.message.flag, first.tags, first.keys) == (5, "TagA", ("our-1", "our-2"))
    assert first.msg_id == life.sent["sync"].msg_id
    assert [delivery.body for delivery in life.attempts["large"]] == [LARGE]


def test_retries_count_up(life: Life) -> None:
    """An attempt has its number and its original topic, though it came from the retry topic."""
    for label, attempts in life.attempts.items():
        assert [delivery.message.reconsume_times for delivery in attempts] == list(range(len(attempts))), label
        assert {delivery.topic for delivery in attempts} == {TOPIC}


def test_tag_filter(life: Life) -> None:
    """The group with a tag expression gets just those."""
    assert sorted(life.tagged) == ["large", "ordered 0", "päyload"]


def test_delay(life: Life) -> None:
    """The delayed message is stored for its consumers when it is due."""
    [delivery] = life.attempts["later"]
    waited_ms = delivery.message.store_timestamp_ms - delivery.message.born_timestamp_ms
    assert DELAY_MS - 100 <= waited_ms < DELAY_MS + 2000


def _has_dead_letter(admin: SyncAdmin, key: str) -> bool:
    return bool(_query(admin, dlq_topic(GROUP), key))


def _has_queues(admin: SyncAdmin, count: int) -> bool:
    return len(admin.queues("OurMade")) == count


def test_dead_letters(life: Life) -> None:
    """Messages without attempts left, or that their handler gave up, are found among the dead letters by key."""
    with SyncAdmin(life.namesrv) as admin:
        for label, key in {"poison": "our-poison", "dead-at-once": "our-dead"}.items():
            wait_until(partial(_has_dead_letter, admin, key), f"the dead letter {label}", 120, 0.2)
            [dead] = _query(admin, dlq_topic(GROUP), key)
            assert dead == (life.sent[label].msg_id, label.encode())


def test_look_ups(life: Life) -> None:
    """Key, unique id and offset id find the same message."""
    sent = life.sent["sync"]
    with SyncAdmin(life.namesrv) as admin:
        wanted = [(sent.msg_id, "päyload".encode())]
        wait_until(lambda: _query(admin, TOPIC, "our-2") == wanted, "the index", 120, 0.1)
        assert [m.msg_id for m in admin.message_by_id(TOPIC, sent.msg_id).messages] == [sent.msg_id]
        assert admin.message_at(sent.offset_msg_id).msg_id == sent.msg_id


def test_nothing_is_left(life: Life) -> None:
    """After the consumers closed, the committed offset of every queue is its end."""
    with SyncAdmin(life.namesrv) as admin:
        for queue in admin.queues(TOPIC):
            assert admin.consumer_offset(GROUP, queue) in (admin.max_offset(queue), None)
            assert admin.min_offset(queue) == 0
        ends = [admin.max_offset(queue) for queue in admin.queues(TOPIC)]
        # the delayed message was redelivered once; retries have a topic of their own
        assert sum(ends) == len(EXPECTED_ATTEMPTS)


def test_official_viewer_reads_our_trace(life: Life, tmp_path: Path) -> None:
    """mqadmin shows our producer's and consumer's records: layouts and index keys are Apache's."""
    with MqAdmin("5.3.3", tmp_path, life.namesrv) as mqadmin:

        def shown() -> bool:
            output = mqadmin.run("queryMsgTraceById", "-i", life.sent["fails-once"].msg_id)
            sends = re.findall(rf"Pub\s+{PRODUCER}\s.*success", output)
            consumptions = re.findall(rf"Sub\s+{GROUP}\s.*(success|failed)", output)
            return len(sends) == 1 and sorted(consumptions) == ["failed", "success"]

        wait_until(shown, "the official viewer's table", 120, 0.5)


def test_reader_reads_our_trace_back(life: Life) -> None:
    """Every record of the trace decodes; sends and deliveries are all there, each with its end."""
    records = _trace_records(life.namesrv)
    pubs = {record.msg_id for record in records if isinstance(record, Pub)}
    assert pubs == {result.msg_id for result in life.sent.values()}
    deliveries = sum(EXPECTED_ATTEMPTS.values())
    befores = [record for record in records if isinstance(record, SubBefore) and record.group_name == GROUP]
    afters = [record for record in records if isinstance(record, SubAfter) and record.group_name == GROUP]
    assert len(befores) == len(afters) == deliveries
    assert {record.request_id for record in befores} == {record.request_id for record in afters}


def test_reader_leaves_no_mark(life: Life) -> None:
    """Reading queues creates no topic and no group, and moves no offset."""
    with SyncAdmin(life.namesrv) as admin:
        address = next(iter(admin.masters().values()))

        def state() -> tuple[object, ...]:
            groups = admin.groups(address).subscription_group_table
            return admin.topics(), sorted(groups), admin.committed_offsets(address).offset_table

        before = state()
        _trace_records(life.namesrv)
        with QueueReader(life.namesrv) as reader:
            for queue in reader.queues(TOPIC):
                first, end = reader.range(queue)
                read = [record for result in reader.read_range(queue, first, end) for record in result.records]
                assert len(read) == end - first
        assert state() == before


def test_admin_makes_topics(life: Life) -> None:
    """A topic is made, changed and deleted on Apache's broker; a missing one is an error."""
    with SyncAdmin(life.namesrv) as admin:
        for count in (3, 5):
            admin.create_topic(TopicConfig("OurMade", count, count))
            wait_until(partial(_has_queues, admin, count), "the route", 120)
        admin.delete_topic("OurMade")
        with pytest.raises(RouteNotFound):
            admin.topic_stats("OurMade")


def test_both_clients_in_one_topic(life: Life, tmp_path: Path) -> None:
    """Our client and the official one read each other's compressed bodies."""
    topic, text = "MixedTopic", "both ways " * 1000
    with JavaClient("5.3.3", tmp_path, life.namesrv) as java:
        java.producer("theirs", group="MixedProducer")
        java.send("theirs", [{"topic": topic, "body": text, "keys": "from-java"}])
        with SyncProducer("MixedOurs", life.namesrv) as producer:
            producer.send(Message(topic, text.encode(), keys="from-python"))
        java.consumer("theirs", group="MixedJava", topics={topic: "*"})
        java.wait(lambda events: sum(event["event"] == "ended" for event in events) == 2, "both at the Java client")
        theirs = {event["keys"]: event["body"] for event in java.events("ended")}
    config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    ours: dict[str, str] = {}
    with SyncConsumer("MixedPython", life.namesrv, {topic: "*"}, config=config) as consumer:
        while len(ours) < 2:
            delivery = consumer.receive(timeout_ms=30_000)
            assert delivery is not None, "no message within 30 s"
            with delivery.process():
                ours[delivery.keys[0]] = delivery.body.decode()
    assert theirs == ours == {"from-java": text, "from-python": text}


def _query(admin: SyncAdmin, topic: str, key: str) -> list[tuple[str, bytes]]:
    try:
        return [(message.msg_id, message.body) for message in admin.query(topic, key).messages]
    except RouteNotFound:
        return []


def _trace_records(namesrv: str) -> list[object]:
    """Every trace record on the server that came from our client; none may be unreadable."""
    found: list[object] = []
    with QueueReader(namesrv) as reader:
        for queue in reader.queues(TRACE_TOPIC):
            for result in reader.read_range(queue, *reader.range(queue)):
                for raw in result.records:
                    [message] = decode_records(raw)
                    records, rejects = decode_trace(message.body)
                    assert rejects == []
                    found += records
    return found
