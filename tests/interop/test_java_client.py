"""The official Java client plays one story on our broker, and observes the same as on Apache's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interop.driver import JavaClient, Json
from interop.story import BATCH_COUNT, BEHAVIOURS, DELAY_MS, LARGE_SIZE, Story

from interop import story as reported
from mqtrail.wire import ConsumeReturnType, MessageType, Pub, SubAfter, SubBefore, TraceRecord, decode_trace

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

# Versions of the client and the headers it writes; 4.9.8 and 5.3.3 differ in codes, ids and traces.
CLIENTS = {"5.3.3-json": ("5.3.3", False), "5.3.3-binary": ("5.3.3", True), "4.9.8-json": ("4.9.8", False)}
FAILED, DONE = "RECONSUME_LATER", "CONSUME_SUCCESS"
ZLIB_FLAG = 0x300


@pytest.fixture(scope="module")
def run_story(
    server: Callable[[str], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], Story]:
    """Return the story of a client on a kind of server, played once a module."""
    stories: dict[tuple[str, str], Story] = {}

    def run_story(kind: str, client: str) -> Story:
        if (kind, client) not in stories:
            version, binary = CLIENTS[client]
            namesrv, folder = server(kind).namesrv_address, tmp_path_factory.mktemp(client)
            with JavaClient(version, folder, namesrv, binary_headers=binary) as java:
                story = reported.live(java, client.replace(".", "_"))
                reported.read_traces(java, story)
            stories[kind, client] = story
        return stories[kind, client]

    return run_story


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """The client's version and headers."""
    return str(request.param)


@pytest.fixture(scope="module")
def ours(run_story: Callable[[str, str], Story], client: str) -> Story:
    """The client's story on our broker."""
    return run_story("mqtrail", client)


def test_route(ours: Story) -> None:
    """A topic made by its first send has the client's four queues, readable and writable."""
    [queue] = ours.route["queueDatas"]
    [broker] = ours.route["brokerDatas"]
    assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (4, 4, 6)
    assert (broker["brokerName"], broker["cluster"]) == ("broker-a", "DefaultCluster")


def test_every_send_is_acknowledged(ours: Story) -> None:
    """Sync, async, ordered, delayed and compressed sends are answered SEND_OK; one-way sends get no answer."""
    for label, result in ours.sent.items():
        assert result.get("status") == (None if label.startswith("oneway") else "SEND_OK"), result


def test_ordered_sends_share_a_queue(ours: Story) -> None:
    """Messages with one order key go to one queue, with rising offsets."""
    results = [ours.sent[f"ordered-{i}"] for i in range(3)]
    assert len({result["queue"]["queueId"] for result in results}) == 1
    offsets = [result["queueOffset"] for result in results]
    assert offsets == sorted(set(offsets))


def test_batch_ids(ours: Story) -> None:
    """The answer to a batch has an offset id for each item, and the first item's queue offset."""
    assert ours.batch["status"] == "SEND_OK"
    offset_ids = ours.batch["offsetMsgId"].split(",")
    assert len(set(offset_ids)) == BATCH_COUNT
    stored = {attempt["queueOffset"] for attempt in _attempts(ours, "batch-")}
    assert min(stored) == ours.batch["queueOffset"]
    assert len(stored) == BATCH_COUNT


def test_batch_items_keep_their_ids(ours: Story) -> None:
    """On our broker an item has the id of its producer; Apache's shows the batch's id for all."""
    delivered = [attempt["msgId"] for attempt in _attempts(ours, "batch-")]
    assert sorted(delivered) == sorted(ours.batch["msgId"].split(","))


def test_bodies_and_fields_arrive_as_sent(ours: Story) -> None:
    """The handler gets text, flag, keys and tags of the first message as sent."""
    [attempt] = ours.attempts[ours.group]["sync"]
    assert attempt["body"] == "päyload €"
    assert (attempt["flag"], attempt["keys"], attempt["tags"]) == (7, "key-1 key-2", "TagA")
    assert attempt["msgId"] == ours.sent["sync"]["msgId"]
    assert attempt["queueOffset"] == ours.sent["sync"]["queueOffset"]


def test_compressed_body(ours: Story) -> None:
    """The client compresses a large body, the broker stores it compressed, and the handler gets it decompressed."""
    [attempt] = ours.attempts[ours.group]["large"]
    assert len(attempt["body"]) == LARGE_SIZE
    # kind 3, zlib; the lowest bit, "compressed", is cleared by 5.3.3 when it decompresses and kept by 4.9.8
    assert attempt["sysFlag"] & ZLIB_FLAG == ZLIB_FLAG
    assert attempt["storeSize"] < LARGE_SIZE


def test_tag_filter(ours: Story) -> None:
    """The group with a tag expression gets only those tags."""
    assert sorted(ours.attempts[ours.tag_group]) == ["async-0", "async-1", "async-2", "async-3", "large", "sync"]


def test_delay(ours: Story) -> None:
    """A delayed message is delivered when it is due: not earlier, and soon after."""
    [attempt] = ours.attempts[ours.group]["delayed"]
    waited_ms = attempt["storeTimestampMs"] - attempt["bornTimestampMs"]
    assert DELAY_MS - 100 <= waited_ms < DELAY_MS + 2000


@pytest.mark.parametrize("label", BEHAVIOURS)
def test_retries(ours: Story, label: str) -> None:
    """A handler that fails, throws or returns null gets the message again until it succeeds or its attempts are used
    up."""
    attempts = ours.attempts[ours.group][label]
    assert [attempt["reconsumeTimes"] for attempt in attempts] == list(range(BEHAVIOURS[label][1]))
    assert {attempt["topic"] for attempt in attempts} == {ours.topic}
    expected = {
        "fails-once": [FAILED, DONE],
        "throws-once": ["EXCEPTION", DONE],
        "null-once": ["null", DONE],
        "poison": [FAILED] * 3,
        "dead-at-once": [FAILED],
        "slow": [DONE],
    }
    assert ours.outcomes[label] == expected[label]
    for retry in attempts[1:]:
        assert retry["properties"]["ORIGIN_MESSAGE_ID"] == ours.sent[label]["offsetMsgId"]


def test_dead_letters(ours: Story) -> None:
    """A message goes to %DLQ% after its last attempt or by its handler's decision, with keys and body."""
    for label, dead in ours.dead.items():
        assert dead["topic"] == f"%DLQ%{ours.group}"
        assert dead["body"] == label
        assert dead["msgId"] == ours.sent[label]["msgId"]


def test_offsets(ours: Story) -> None:
    """Minimum, maximum, earliest time and the offset of a time before everything, queue by queue."""
    delivered = {(a["queueId"], a["queueOffset"]) for a in _attempts(ours, "") if a["reconsumeTimes"] == 0}
    for queue in ours.queues:
        assert (queue["minOffset"], queue["searchOffset"]) == (0, 0)
        assert {offset for queue_id, offset in delivered if queue_id == queue["queueId"]} == set(
            range(queue["maxOffset"])
        )
        assert queue["earliestMs"] >= ours.began_ms


def test_queries(ours: Story) -> None:
    """Key, unique key and offset id find the same message; a missing one has its code."""
    wanted = ours.sent["sync"]["msgId"]
    assert [message["msgId"] for message in ours.by_key] == [wanted]
    assert ours.by_unique_key["msgId"] == wanted
    assert ours.by_offset_id["properties"]["UNIQ_KEY"] == wanted


def test_trace_of_sends(ours: Story) -> None:
    """The client's Pub records decode, one for each answered send, with the values of the send result."""
    pubs = {record.msg_id: record for record in _trace(ours) if isinstance(record, Pub)}
    assert set(pubs) == {result["msgId"] for result in (*ours.sent.values(), ours.batch) if "status" in result}
    for label, result in ours.sent.items():
        if "status" not in result:
            continue
        pub = pubs[result["msgId"]]
        assert (pub.topic, pub.offset_msg_id, pub.is_success) == (ours.topic, result["offsetMsgId"], True)
        assert pub.msg_type == (MessageType.DELAY if label == "delayed" else MessageType.NORMAL)
        assert result["beginMs"] - 1 <= pub.time_stamp <= pub.time_stamp + pub.cost_time <= result["endMs"] + 1
    assert pubs[ours.sent["sync"]["msgId"]].keys == "key-1 key-2"
    assert pubs[ours.sent["large"]["msgId"]].body_length < LARGE_SIZE


def test_trace_of_deliveries(ours: Story) -> None:
    """Every handler call of every attempt has its SubBefore and SubAfter, with the handler's result."""
    codes = {
        "fails-once": [ConsumeReturnType.FAILED, ConsumeReturnType.SUCCESS],
        "throws-once": [ConsumeReturnType.EXCEPTION, ConsumeReturnType.SUCCESS],
        "null-once": [ConsumeReturnType.RETURNNULL, ConsumeReturnType.SUCCESS],
        "poison": [ConsumeReturnType.FAILED] * 3,
        "dead-at-once": [ConsumeReturnType.FAILED],
        "slow": [ConsumeReturnType.SUCCESS],
    }
    befores = [record for record in _trace(ours) if isinstance(record, SubBefore) and record.group_name == ours.group]
    afters = {record.request_id: record for record in _trace(ours) if isinstance(record, SubAfter)}
    for label, expected in codes.items():
        msg_id = ours.sent[label]["msgId"]
        attempts = sorted((before for before in befores if before.msg_id == msg_id), key=lambda one: one.retry_times)
        assert [before.retry_times for before in attempts] == list(range(len(expected)))
        assert [afters[before.request_id].context_code for before in attempts] == expected, label
    [slow] = [after for after in afters.values() if after.msg_id == ours.sent["slow"]["msgId"]]
    assert slow.cost_time >= 1200


def test_same_as_apache(run_story: Callable[[str, str], Story], client: str, ours: Story) -> None:
    """The client observes the same values as on Apache's 5.3.3, including property names and stored sizes."""
    apache = run_story("apache-5.3.3", client)
    assert ours.comparable() == apache.comparable()


def _attempts(story: Story, prefix: str) -> list[Json]:
    """The main group's attempts of labels that start with prefix."""
    labels = story.attempts[story.group]
    return [attempt for label, attempts in labels.items() if label.startswith(prefix) for attempt in attempts]


def _trace(story: Story) -> list[TraceRecord]:
    """The records of the trace messages found under the story's messages, each message once, none unreadable."""
    bodies = {body for found in story.trace_bodies.values() for body in found}
    records: list[TraceRecord] = []
    for body in sorted(bodies):
        found, rejects = decode_trace(body)
        assert rejects == []
        records += found
    return records
