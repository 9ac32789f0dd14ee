"""The fast lane against `Broker.handle`: equal replies, stores and state for any frames.

Two brokers get the same bytes at the same times, one as pieces through the lane, one command by command. They must not
differ in anything that a client, an administrator or the disk can see.
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mqtrail.broker import BrokerConfig
from mqtrail.broker.lane import Lane
from mqtrail.broker.properties import PropertyRules
from mqtrail.store import MemoryDisk, StoreError
from mqtrail.wire import (
    HEADER_SIZE_MAX,
    BatchItem,
    ConsumerData,
    Frame,
    HeartbeatData,
    Peer,
    Perm,
    PullHeader,
    RemotingCommand,
    RemotingError,
    RequestCode,
    SendMessageHeader,
    SerializeType,
    SubscriptionData,
    TopicConfig,
    cut_frame,
    decode_command,
    encode_batch,
    encode_command,
    encode_frame,
    frame_end,
)
from mqtrail.wire.command import _encode_binary, _encode_json

from ..helpers import OTHER, PEER, Bench

FRAMES = Path(__file__).parents[2] / "golden" / "frames.jsonl"
SERVED = (10, 310, 320, 11)
TOPICS = ("orders", "CapTopic", "multi")


class Twins:
    """The two brokers, and the output of each: (peer, frame, flush offset), in the order of writing."""

    def __init__(self, **config: Any) -> None:
        self.fast, self.general = Bench(**config), Bench(**config)
        for bench in (self.fast, self.general):
            for name in TOPICS:
                kind = "MULTI_TAG" if name == "multi" else "SINGLE_TAG"
                bench.broker.topics.update(TopicConfig(name, 4, 4, topic_filter_type=kind), bench.now_ms)
            bench.heartbeat("c1", "g", topics={"orders": "TagA || TagB", "multi": "*"})
        self.lane = Lane(self.fast.broker)
        self.written: tuple[list[Any], list[Any]] = ([], [])
        self.handled = 0
        self.refused = [False, False]

    def feed(self, piece: bytes, peer: Peer = PEER) -> None:
        """Give both brokers the piece, up to the first invalid frame."""
        self._feed_fast(piece, peer)
        self._feed_general(piece, peer)

    def _feed_fast(self, piece: bytes, peer: Peer) -> None:
        out, position = self.written[0], 0
        try:
            while frame_end(piece, position, len(piece)):
                served = self.lane.process(peer, piece, position, len(piece), self.fast.now_ms)
                assert served.position > position, "no progress"
                position = served.position
                self.handled += served.handled
                out += [(peer.id, frame, served.after_offset) for frame in frames_of(served.replies)]
                out += [(send.peer, encode_command(send.command), send.after_offset) for send in served.sends]
        except RemotingError:
            self.refused[0] = True
            served_late = self.lane.process(peer, b"", 0, 0, self.fast.now_ms)
            assert not served_late.replies

    def _feed_general(self, piece: bytes, peer: Peer) -> None:
        out, position = self.written[1], 0
        try:
            while stop := frame_end(piece, position, len(piece)):
                command = decode_command(cut_frame(piece, position, stop))
                for send in self.general.broker.handle(peer, command, self.general.now_ms):
                    out.append((send.peer, encode_command(send.command), send.after_offset))
                position = stop
        except RemotingError:
            self.refused[1] = True

    def check(self) -> None:
        """Compare replies, logs and states."""
        assert self.refused[0] == self.refused[1]
        fast, general = (sorted((peer, frame) for peer, frame, _ in written) for written in self.written)
        assert fast == general
        assert log_of(self.fast) == log_of(self.general)
        assert state_of(self.fast) == state_of(self.general)


def frames_of(data: bytes) -> list[bytes]:
    frames, position = [], 0
    while position < len(data):
        stop = frame_end(data, position, len(data))
        frames.append(data[position:stop])
        position = stop
    return frames


def log_of(bench: Bench) -> bytes:
    """Return the CommitLog's bytes."""
    disk = cast(MemoryDisk, bench.store._disk)
    segments = {path: file for path, file in disk.files.items() if path.startswith("commitlog/")}
    return b"".join(segments[path].read_at(0, len(segments[path].data)) for path in sorted(segments))[
        : bench.store.end_offset
    ]


def state_of(bench: Bench) -> dict[str, Any]:
    """Return the broker's state outside the log."""
    broker, store = bench.broker, bench.store
    assert broker.stats is not None
    queues = {
        (topic, queue_id): store.read(topic, queue_id, 0, 1000, 1 << 24)[2:]
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
    }
    counters = [
        {(topic, key): (counter.count, counter.size, counter.times) for topic, key, counter in cast(Any, table)}
        for table in (broker.stats._puts, broker.stats._gets)
    ]
    # A counter that was only looked up is no difference.
    counters = [{key: value for key, value in table.items() if any(value)} for table in counters]
    return {
        "queues": queues,
        "counters": counters,
        "pulls": (broker.stats.pull_hits, broker.stats.pull_misses),
        "offsets": {key: broker.offsets.queues(*key) for key in broker.offsets},
        "held": len(broker.held),
        "topics": dict(broker.topics.all()),
        "groups": dict(broker.groups.all()),
        "trace": None if broker.trace is None else broker.trace._texts,
    }


# -- frames ------------------------------------------------------------------------------------------------------------

# Values a field may have: mostly good ones, and every near miss that one road might read otherwise than the other.
NUMBERS = st.sampled_from(["0", "1", "3", "-1", "99", "+1", " 1", "1.0", "1e0", "007", "", "x", "٣", "4294967296"])
GOOD_IDS = ["7F0000014A3218B4AAC22F1C00000001", "FD0000000000000000000000000000024A3218B4AAC22F1C00000002", "a1"]
PROPERTIES = st.one_of(
    st.sampled_from(
        [
            "UNIQ_KEY\x01{id}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
            "KEYS\x01order-1 b\x02UNIQ_KEY\x01{id}\x02WAIT\x01true\x02TAGS\x01TagB\x02",
            "TAGS\x01订单\x02UNIQ_KEY\x01{id}",
            "UNIQ_KEY\x01{id}\x02WAIT\x01false\x02",
            "UNIQ_KEY\x01{id}",
            "UNIQ_KEY\x01\x02TAGS\x01TagA",
            "XUNIQ_KEY\x01{id}\x02",
            "UNIQ_KEY\x01{id}\x02UNIQ_KEY\x01other\x02",
            "UNIQ_KEY\x01a b\x02",
            "UNIQ_KEY\x01a\x01b\x02",
            "UNIQ_KEY\x01é\x02",
            "UNIQ_KEY\x01{id}\x02DELAY\x013\x02",
            "UNIQ_KEY\x01{id}\x02DELAY\x01x\x02",
            "UNIQ_KEY\x01{id}\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02",
            "UNIQ_KEY\x01{id}\x02CLUSTER\x01other\x02",
            "UNIQ_KEY\x01{id}\x02POP_CK\x01x\x02",
            "UNIQ_KEY\x01{id}\x02TIMER_DELAY_SEC\x015\x02",
            "UNIQ_KEY\x01{id}\x02MSG_REGION\x01r\x02TRACE_ON\x01false\x02",
            'UNIQ_KEY\x01{id}\x02a\x01%\x02b\x01\\"\x02',
            "",
            "WAIT\x01true\x02",
        ]
    ).flatmap(lambda text: st.sampled_from(GOOD_IDS).map(lambda unique_id: text.replace("{id}", unique_id))),
    st.text(alphabet="UNIQ_KEY\x01\x02aé ", max_size=40),
)
TOPIC = st.sampled_from(
    [
        *TOPICS,
        "orders",
        "orders",
        "orders",
        "fresh",
        "%RETRY%g",
        "SCHEDULE_TOPIC_XXXX",
        "a b",
        "t" * 128,
        "",
        "RMQ_SYS_TRACE_TOPIC",
    ]
)
SEND_EXT = st.fixed_dictionaries(
    {
        "a": st.just("pg"),
        "b": TOPIC,
        "e": NUMBERS,
        "g": st.sampled_from(["1700000000000", "0", "-5", "1.5"]),
        "i": PROPERTIES,
    },
    optional={
        "c": st.sampled_from(["TBW102", "none", ""]),
        "d": st.sampled_from(["4", "0", "5", "x"]),
        "f": st.sampled_from(["0", "1", "769", "4", "48", "x"]),
        "h": st.sampled_from(["0", "7", "x"]),
        "j": st.sampled_from(["0", "2", "x"]),
        "k": st.sampled_from(["false", "true", "maybe"]),
        "l": st.sampled_from(["16", "x"]),
        "m": st.sampled_from(["false", "true", "TRUE", "0"]),
        "n": st.just("broker-a"),
        "AccessKey": st.just("key"),
        "topic": st.just("orders"),
        "queueId": st.just("2"),
    },
)
LONG_NAMES = dict(
    zip(
        "abcdefghijklmn",
        [
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
            "properties",
            "reconsumeTimes",
            "unitMode",
            "maxReconsumeTimes",
            "batch",
            "bname",
        ],
        strict=True,
    )
)
PULL_EXT = st.fixed_dictionaries(
    {
        "consumerGroup": st.sampled_from(["g", "g", "new", ""]),
        "topic": TOPIC,
        "queueId": NUMBERS,
        "queueOffset": NUMBERS,
        "maxMsgNums": st.sampled_from(["32", "1", "0", "x"]),
        "sysFlag": st.sampled_from(["4", "5", "0", "2", "6", "12", "x"]),
        "commitOffset": NUMBERS,
        "suspendTimeoutMillis": st.sampled_from(["0", "15000", "x"]),
    },
    optional={
        "subscription": st.sampled_from(["*", "TagA", "TagA || TagB", "||", "", "TAGS = 'TagA'"]),
        "subVersion": st.sampled_from(["0", "1800000000000", "x"]),
        "expressionType": st.sampled_from(["TAG", "SQL92", ""]),
        "maxMsgBytes": st.sampled_from(["262144", "10", "0", "x"]),
        "bname": st.just("broker-a"),
        "requestSource": st.just("-1"),
    },
)
BODY = st.sampled_from([b"hello", b"", b"x" * 700])
ITEM = st.builds(BatchItem, BODY, PROPERTIES.map(lambda text: text.encode("utf-8", "ignore")), st.sampled_from([0, 7]))
BATCH_BODY = st.one_of(
    st.lists(ITEM, min_size=1, max_size=3).map(encode_batch),
    st.lists(ITEM, min_size=1, max_size=3).map(lambda items: encode_batch(items)[:-3]),
    st.just(b""),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame: a request of the lane with either header, a variation of one, or another request."""
    code = draw(st.sampled_from([310, 310, 310, 10, 320, 11, 11, 15, 30, 9999]))
    body = b""
    if code in (310, 10, 320):
        ext = draw(SEND_EXT)
        body = draw(BATCH_BODY if code == 320 else BODY)
        if code == 10:
            ext = {LONG_NAMES.get(name, name): value for name, value in ext.items()}
    elif code == 11:
        ext = draw(PULL_EXT)
    else:
        ext = {"topic": "orders", "queueId": "0", "consumerGroup": "g", "commitOffset": "1"}
    command = RemotingCommand(
        code,
        ext,
        body,
        opaque=draw(st.integers(-(2**31), 2**31 - 1)),
        flag=draw(st.sampled_from([0, 0, 0, 0, 2, 1])),
        language=draw(st.sampled_from(["JAVA", "CPP", "PYTHON"])),
        version=draw(st.sampled_from([479, 399, 0])),
    )
    if draw(st.booleans()) and code < 32768:
        command.serialize = SerializeType.ROCKETMQ
        return encode_command(command)
    frame = encode_command(command)
    header = cut_frame(frame, 0, len(frame)).header
    header = draw(
        st.sampled_from(
            [
                header,
                header,
                header,
                header.replace(b'"e":"1"', b'"e":1'),
                header.replace(b'"queueId":"1"', b'"queueId":1'),
                header.replace(b'"flag":0', b'"flag":"0"'),
                header.replace(b'{"code"', b'{ "code"'),
                header.replace(b'"version"', b'"remark":null,"version"'),
                header.replace(b'"version"', b'"more":[1,{"a":2}],"version"'),
                header.replace(b'"opaque":', b'"opaque":1.0,"was":'),
                header.replace(b"}", b',"code":11}', 1),
                header[:-1],
                header + b"\n",
            ]
        )
    )
    return encode_frame(Frame(0, header, body))


@given(st.lists(st.tuples(st.lists(frames(), min_size=1, max_size=6), st.sampled_from([PEER, OTHER])), max_size=5))
def test_any_traffic_is_served_alike(pieces: list[tuple[list[bytes], Peer]]) -> None:
    """Pieces of valid, unusual and invalid requests leave both brokers in the same state, with the same replies."""
    twins = Twins()
    for piece, peer in pieces:
        twins.feed(b"".join(piece), peer)
        if twins.refused[1]:
            break
        if len(twins.general.broker.held) or len(twins.fast.broker.held):
            break  # what several messages of a piece wake is the subject of tests below
    twins.check()


@given(frames(), st.integers(8, 400), st.integers(0, 255))
def test_damaged_headers_are_read_alike(frame: bytes, place: int, value: int) -> None:
    """One wrong byte in a header: both paths refuse it, or both decode the same command."""
    damaged = bytearray(frame)
    head = int.from_bytes(frame[4:8]) & 0xFFFFFF
    damaged[8 + place % max(1, head)] = value
    twins = Twins()
    twins.feed(bytes(damaged))
    twins.check()


@pytest.mark.parametrize("serialize", SerializeType)
def test_a_header_above_its_bound_is_refused_alike(serialize: SerializeType) -> None:
    """A valid send is followed by one with a header one byte too long: the connection ends there. One byte less is
    served."""
    properties = "UNIQ_KEY\x01" + "0" * 32 + "\x02"
    ext = {"a": "PG", "b": "orders", "c": "T", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": properties}
    good = encode_command(RemotingCommand(310, ext, b"good", serialize=serialize))
    for excess in (0, 1):
        size = HEADER_SIZE_MAX + excess
        padded = ext | {"c": "T" * (1 + size - int.from_bytes(good[5:8]))}
        header = _header_of(RemotingCommand(310, padded, b"long", serialize=serialize))
        assert len(header) == size
        frame = (4 + size + 4).to_bytes(4) + bytes((serialize,)) + size.to_bytes(3) + header + b"long"
        twins = Twins()
        twins.feed(good + frame + good)
        assert twins.refused == [bool(excess)] * 2
        assert len(twins.written[0]) == 1 if excess else 3
        twins.check()


def _header_of(command: RemotingCommand) -> bytes:
    return _encode_json(command) if command.serialize == SerializeType.JSON else _encode_binary(command)


@pytest.mark.slow
@given(st.lists(frames(), min_size=1, max_size=6), st.lists(st.integers(1, 3000), max_size=6))
def test_any_split_is_served_alike(pieces: list[bytes], cuts: list[int]) -> None:
    """The ends of reads make no difference: the lane stops before an incomplete frame."""
    whole, split = Twins(), Twins()
    stream = b"".join(pieces)
    whole.feed(stream)
    rest = b""
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        rest += stream[start:end]
        stop = 0
        try:
            while end := frame_end(rest, stop, len(rest)):
                stop = end
        except RemotingError:
            stop = len(rest)
        split.feed(rest[:stop])
        rest = rest[stop:]
        assume(not split.refused[1] and not len(split.general.broker.held))
    split.check()


def test_recorded_frames_are_served_alike() -> None:
    """One piece has every send, batch and pull recorded from Apache's clients."""
    rows = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    twins = Twins()
    count = 0
    for row in rows:
        if row["direction"] == "client>broker" and row["code"] in SERVED:
            binary = row["serialize"] != "JSON"
            header = bytes.fromhex(row["header_hex"]) if binary else row["header"].encode()
            if b"suspendTimeoutMillis" in header:
                header = header.replace(b'"sysFlag":"2"', b'"sysFlag":"4"')  # not to be held: one message a wake there
            twins.feed(encode_frame(Frame(int(binary), header, bytes.fromhex(row["body_hex"]))))
            count += 1
    assert count > 20
    twins.check()


def sends(
    count: int, *, binary: bool = False, topic: str = "orders", body: bytes = b"hello", long: bool = False
) -> bytes:
    """Return a piece of ordinary sends with distinct ids."""
    piece = b""
    for number in range(count):
        properties = f"UNIQ_KEY\x017F0000014A3218B4AAC22F1C{number:08X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        header = SendMessageHeader(
            "pg", topic, queue_id=number % 4, born_timestamp=1_700_000_000_000 + number // 3, properties=properties
        )
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE if long else RequestCode.SEND_MESSAGE_V2,
            header.to_ext_v1() if long else header.to_ext_v2(),
            body,
            opaque=number,
        )
        command.serialize = SerializeType.ROCKETMQ if binary else SerializeType.JSON
        piece += encode_command(command)
    return piece


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_ordinary_sends_take_the_lane(binary: bool, long: bool) -> None:
    """The lane serves these requests without calling `handle`."""
    twins = Twins()
    twins.feed(sends(50, binary=binary, long=long))
    assert twins.handled == (1 if binary and long else 0)
    twins.check()


@pytest.mark.parametrize("binary", [False, True])
def test_a_new_group_starts_an_empty_queue_at_0(binary: bool) -> None:
    """QUERY_CONSUMER_OFFSET (14) before and after the first messages, in one piece with them: 0, 0, then the age of
    the queue decides. Its maximum (30) is then already above 0."""
    twins = Twins(young_queue_size=-1)
    piece = b""
    for number, count in enumerate((0, 8)):
        piece += sends(count, binary=binary)
        for queue_id in (0, 3, 4):
            ext = {"consumerGroup": "new", "topic": "orders", "queueId": str(queue_id)}
            for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET):
                command = RemotingCommand(code, ext, opaque=1_000 * (number + 1) + 10 * queue_id + (code == 30))
                command.serialize = SerializeType.ROCKETMQ if binary else SerializeType.JSON
                piece += encode_command(command)
    twins.feed(piece)
    twins.check()
    replies = {
        command.opaque: (command.code, command.ext.get("offset"))
        for _, frame, _ in twins.written[0]
        if (command := decode_command(cut_frame(frame, 0, len(frame)))).opaque >= 1_000
    }
    assert replies == {
        1_000: (0, "0"),
        1_001: (0, "0"),
        1_030: (0, "0"),
        1_031: (0, "0"),
        1_040: (22, None),
        1_041: (0, "0"),
        2_000: (22, None),
        2_001: (0, "2"),
        2_030: (22, None),
        2_031: (0, "2"),
        2_040: (22, None),
        2_041: (0, "0"),
    }


@given(PROPERTIES.map(lambda text: text.encode("utf-8", "ignore")))
def test_a_text_that_is_only_extended(sent: bytes) -> None:
    """The shorter way to its suffix finds the same, or leaves it to the rules."""
    rules = PropertyRules(BrokerConfig(), lambda: "new")
    found = rules.plain(sent)
    if b"UNIQ_KEY\x01" not in sent or found is None:
        return
    stored = rules.of_message(sent)
    if stored.unique_id != "new":  # else the text has none
        assert (sent + found[0], found[1], found[2]) == (stored.text, stored.tags_code, stored.waits)
        assert (stored.delay_level, stored.timed) == (0, False)


@pytest.mark.parametrize("properties", ["UNIQ_KEY\x01b\x02", "WAIT\x01true\x02", "WAIT\x01false", ""])
def test_ordinary_pulls_and_batches_take_the_lane(properties: str) -> None:
    """The lane also serves batches, and pulls that find messages. Batches of our client have no id of their own."""
    twins = Twins()
    items = [
        BatchItem(b"m%d" % number, b"UNIQ_KEY\x01id%d\x02TAGS\x01TagA\x02" % number, number) for number in range(5)
    ]
    header = SendMessageHeader("pg", "orders", queue_id=1, born_timestamp=1, properties=properties, batch=True)
    batch = RemotingCommand(320, header.to_ext_v2(), encode_batch(items), opaque=1)
    pulls = [
        RemotingCommand(
            11, twins.fast.pull_ext("orders", 0, queue_id=1, tags=tags), opaque=2 + number, serialize=serialize
        )
        for number, tags in enumerate(("*", "TagA", "TagA || TagB"))
        for serialize in SerializeType
    ]
    twins.feed(b"".join(map(encode_command, [batch, *pulls])))
    twins.feed(encode_command(batch))
    assert twins.handled == 0
    assert len(twins.written[0]) == 8
    twins.check()


@pytest.mark.parametrize("sync_flush", [True, False])
def test_replies_name_the_flush_that_covers_the_last_record(sync_flush: bool) -> None:
    """Both paths name it; WAIT=false names none. Under ASYNC_FLUSH the node ignores it."""
    twins = Twins(sync_flush=sync_flush)
    twins.feed(sends(3))
    assert {after for _, _, after in twins.written[0]} == {twins.fast.store.end_offset}
    twins.feed(sends(2).replace(b"WAIT\\u0001true\\u0002", b"WAIT\\u0001false"))
    twins.check()


def test_a_refused_append_answers_each_request() -> None:
    """One message that is too long, among valid ones, is refused alone."""
    twins = Twins(message_size_max=5 * 1024 * 1024)
    long = sends(1, body=bytes(4 * 1024 * 1024 + 65 * 1024))
    twins.feed(sends(2) + long + sends(2))
    twins.check()
    codes = [decode_command(cut_frame(frame, 0, len(frame))).code for _, frame, _ in twins.written[0]]
    assert sorted(codes) == [0, 0, 0, 0, 13]


def test_a_damaged_record_answers_its_pull_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 1 with the reason, as on the general path; the sends around it are stored and answered."""
    twins = Twins()
    twins.feed(sends(4))
    store = type(twins.fast.store)
    read = store.read

    def damaged(self: Any, topic: str, queue_id: int, *arguments: Any, **options: Any) -> Any:
        if queue_id == 1:
            raise StoreError("found damage in the CommitLog")
        return read(self, topic, queue_id, *arguments, **options)

    monkeypatch.setattr(store, "read", damaged)
    pulls = [
        encode_command(RemotingCommand(11, twins.fast.pull_ext("orders", 0, queue_id=queue_id), opaque=90 + queue_id))
        for queue_id in (0, 1, 2)
    ]
    twins.feed(sends(3) + b"".join(pulls) + sends(2))
    monkeypatch.undo()
    twins.check()
    replies = [decode_command(cut_frame(frame, 0, len(frame))) for _, frame, _ in twins.written[0]]
    assert len(replies) == 12
    assert [(one.opaque, one.code, one.remark) for one in replies if one.code] == [
        (91, 1, "found damage in the CommitLog")
    ]


def test_topics_that_change_are_looked_at_again() -> None:
    """A topic that shrinks or is deleted between two pieces, or inside one, invalidates cached routes."""
    twins = Twins()
    twins.feed(sends(4))
    change = encode_command(
        RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": "orders",
                "defaultTopic": "TBW102",
                "readQueueNums": "2",
                "writeQueueNums": "2",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
    )
    twins.feed(sends(4) + change + sends(4))
    delete = encode_command(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
    twins.feed(delete + sends(4))
    twins.check()
    assert twins.fast.broker.topics.get("orders") is not None, "made again by the sends"


@pytest.mark.parametrize("tag", ["TagA", "TagC"])
def test_held_pulls_wake(tag: str) -> None:
    """A send in the lane answers a held pull if its tags match, and no other."""
    twins = Twins()
    held = RemotingCommand(11, twins.fast.pull_ext("orders", 0, hold_ms=15000, tags=tag), opaque=77)
    twins.feed(encode_command(held), OTHER)
    assert len(twins.fast.broker.held) == 1
    twins.feed(sends(1))
    twins.check()
    woken = [peer for peer, _, _ in twins.written[0] if peer == OTHER.id]
    assert len(woken) == (1 if tag == "TagA" else 0)


@pytest.mark.parametrize("tag", ["TagA", "TagC"])
def test_held_pops_wake(tag: str) -> None:
    """A held pop gets the messages that the lane stores if its tags match, and leaves the same check point."""
    twins = Twins()
    ext = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "8",
        "invisibleTime": "60000",
        "pollTime": "15000",
        "bornTime": "0",
        "initMode": "0",
        "exp": tag,
    }
    twins.feed(encode_command(RemotingCommand(RequestCode.POP_MESSAGE, ext, opaque=77)), OTHER)
    assert len(twins.fast.broker.writer.watched) == 3
    twins.feed(sends(1))
    twins.check()
    woken = [peer for peer, _, _ in twins.written[0] if peer == OTHER.id]
    assert len(woken) == (1 if tag == "TagA" else 0)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("on", [False, True])
def test_expressions_are_served_alike(on: bool, binary: bool) -> None:
    """Pulls with SQL92 in the request, in the group, and with an invalid expression."""
    twins = Twins(property_filter=on)
    twins.feed(sends(6) + sends(2).replace(b"TagA", b"TagB"))
    serialize = SerializeType.ROCKETMQ if binary else SerializeType.JSON
    subscription = SubscriptionData.build("orders", "TAGS = 'TagB'", "SQL92", sub_version=5)
    data = HeartbeatData("c", (), (ConsumerData("g", subscription_data_set=(subscription,)),)).encode()
    pieces = [encode_command(RemotingCommand(34, {}, data, opaque=70))]
    for number, (flags, version, expression) in enumerate(
        ((4, 0, "TAGS = 'TagA'"), (4, 0, "TAGS ="), (4, 0, "TAGS = 'x'"), (0, 5, None), (0, 6, None))
    ):
        header = PullHeader("g", "orders", 0, 0, 32, flags, 0, 0, expression, version, "SQL92")
        command = RemotingCommand(11, header.to_ext(), opaque=80 + number, serialize=serialize)
        pieces += [encode_command(command)] * 2
    for piece in pieces:
        twins.feed(piece)
    twins.check()


def test_broker_trace_sees_the_lane() -> None:
    """Stored and delivered records are the same on both paths, including batches."""
    twins = Twins(broker_trace=True)
    items = [BatchItem(b"m", b"UNIQ_KEY\x01id%d\x02" % number) for number in range(2)]
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=1, properties="UNIQ_KEY\x01b\x02", batch=True)
    twins.feed(
        sends(3)
        + encode_command(RemotingCommand(320, header.to_ext_v2(), encode_batch(items), opaque=90))
        + encode_command(RemotingCommand(11, twins.fast.pull_ext("orders", 0), opaque=91))
    )
    twins.check()
    assert twins.handled > 0, "the timer must be checked"
    assert twins.fast.broker.trace is not None
    assert len(twins.fast.broker.trace._texts) == 6


def test_many_pulls_stop_for_the_socket() -> None:
    """A piece of pulls produces at most about a MiB of replies before the node can write them."""
    twins = Twins()
    twins.feed(sends(128, body=bytes(60_000)))
    pull = encode_command(RemotingCommand(11, twins.fast.pull_ext("orders", 0), opaque=5))
    served = twins.lane.process(PEER, pull * 50, 0, len(pull) * 50, twins.fast.now_ms)
    assert 0 < served.position < len(pull) * 50
    assert len(served.replies) < 2 * 1024 * 1024


def test_a_bad_frame_is_left_for_the_next_call() -> None:
    """The requests before it are answered first; then it is refused."""
    twins = Twins()
    piece = sends(2) + b"\x00\x00\x00\x08\x00\x00\x00\x04}}}}"
    served = twins.lane.process(PEER, piece, 0, len(piece), twins.fast.now_ms)
    assert len(frames_of(served.replies)) == 2
    assert served.position == len(sends(2))
    with pytest.raises(RemotingError):
        twins.lane.process(PEER, piece, served.position, len(piece), twins.fast.now_ms)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of properties, layouts, routes and times are bounded."""
    from mqtrail.broker.lane import caches, layouts, process

    monkeypatch.setattr(caches, "PROPERTIES_MAX", 3)
    monkeypatch.setattr(caches, "ROUTES_MAX", 3)
    monkeypatch.setattr(layouts, "LAYOUTS_MAX", 3)
    monkeypatch.setattr(layouts, "SAME_SIZE_MAX", 2)
    monkeypatch.setattr(process, "TIMES_KEPT_MAX", 3)
    twins = Twins()
    for number in range(12):
        for binary in (False, True):
            one = sends(1 + number % 4, binary=binary, topic=TOPICS[number % 3])
            tag = b"TagB" + b"b" * (number % 5)
            if binary and len(tag) != 4:
                continue
            twins.feed(one if len(tag) != 4 else one.replace(b"TagA", tag))
    twins.check()
    lane = twins.lane
    assert len(lane._properties._known) <= 3
    assert sum(map(len, lane._routes.topics.values())) <= 3
    assert len(lane._layouts._by_size) <= 3
    assert len(lane._times) <= 3


@given(st.binary(max_size=200))
@example(b"\x00\x00\x00\x10\x01\x00\x00\x0c" + b"\x01\x36" + bytes(10))
def test_garbage_gives_only_documented_errors(data: bytes) -> None:
    """For any input, the lane answers, waits for more, or raises RemotingError."""
    twins = Twins()
    twins.feed(data)
    twins.check()


def test_permissions_of_the_broker_count() -> None:
    """A broker without write or read permission serves all requests on the general path."""
    for permission in (Perm.READ, Perm.WRITE):
        twins = Twins(permission=permission)
        twins.feed(sends(2))
        twins.feed(encode_command(RemotingCommand(11, twins.fast.pull_ext("orders", 0), opaque=5)))
        twins.check()
