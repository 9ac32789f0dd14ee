"""Bodies: all recorded bodies of Apache's peers are read, and written again without loss."""

import json
import struct
import zlib
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail import wire
from mqtrail.wire import (
    BODY_SIZE_MAX,
    Body,
    BodyError,
    BrokerData,
    ClusterInfo,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerOffsetTable,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    InvalidParameter,
    LockBatchBody,
    MessageModel,
    MessageQueue,
    OffsetWrapper,
    ProducerData,
    QueueData,
    QueueOffsets,
    RegisterBrokerBody,
    RegisteredTopic,
    Registration,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionParseFailed,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
    body,
    encode_in_slices,
    json_runs,
    loads,
    read_registration,
    registration,
    tags_code,
)
from mqtrail.wire.body import REQUEST_DIALECT_NODES_MAX, REQUEST_NODES_MAX
from mqtrail.wire.json_bounds import DIALECT_NODES_MAX, NODES_MAX

from .conftest import RecordedFrame

REQUESTS: dict[int, type[Body]] = {
    18: wire.TopicConfigList,
    34: wire.HeartbeatData,
    41: wire.LockBatchBody,
    42: wire.LockBatchBody,
    103: wire.RegisterBrokerBody,
    200: wire.SubscriptionGroupConfig,
    220: wire.QueueOffsets,
    225: wire.SubscriptionGroupList,
}
REPLIES: dict[int, type[Body]] = {
    21: wire.TopicConfigTable,
    28: wire.KvTable,
    38: wire.ConsumerIdList,
    41: wire.LockedQueues,
    105: wire.TopicRouteData,
    106: wire.ClusterInfo,
    201: wire.SubscriptionGroupTable,
    202: wire.TopicStatsTable,
    203: wire.ConsumerConnections,
    204: wire.ProducerConnections,
    206: wire.TopicList,
    208: wire.ConsumeStats,
    222: wire.QueueOffsets,
    300: wire.GroupList,
    305: wire.TopicList,
    307: wire.ConsumerRunningInfo,
    309: wire.DirectConsumeResult,
    315: wire.BrokerStatsData,
    317: wire.BrokerConsumeStats,
    321: wire.ConsumeQueueEntries,
    328: wire.ProducerTable,
    351: wire.TopicConfig,
}


def assert_kept(written: Any, read: Any, where: str) -> None:
    """Assert that each member of written is in read with the same value; a 4.9 peer lacks members that we add."""
    if isinstance(written, dict):
        for name, value in written.items():
            assert name in read, f"{where}/{name} is lost"
            assert_kept(value, read[name], f"{where}/{name}")
    elif isinstance(written, list):
        assert len(written) == len(read), where
        for number, item in enumerate(written):
            assert_kept(item, read[number], f"{where}[{number}]")
    else:
        assert written == read, where


def test_recorded_bodies_are_read_without_loss(recorded: list[RecordedFrame]) -> None:
    """Our classes write every member that a peer wrote; 5.3.3's bodies have exactly the same members."""
    seen = set()
    for line in recorded:
        kind = (REPLIES if line.is_reply else REQUESTS).get(line.request_code)
        if kind is None or line.body[:1] != b"{":
            continue
        body = kind.decode(line.body)
        written = body.encode(strict=kind in (TopicRouteData,))
        assert_kept(loads(line.body), loads(written), kind.__name__)
        if line.facts["release"] == "5.3.3":
            assert sorted(written) == sorted(line.body), "the same characters, in whatever order of a Java map"
        assert kind.decode(body.encode(strict=True)) == kind.decode(body.encode(strict=False)) == body
        seen.add((line.is_reply, line.request_code))
    assert {code for is_reply, code in seen if not is_reply} == set(REQUESTS)
    assert {code for is_reply, code in seen if is_reply} == set(REPLIES)


HEARTBEAT = HeartbeatData(
    "192.168.1.9@1234",
    (ProducerData("PG"),),
    (
        ConsumerData(
            "CG",
            subscription_data_set=(SubscriptionData.build("TopicTest", "TagA || TagB", sub_version=1700000000000),),
        ),
    ),
)


def test_heartbeat_of_the_reference() -> None:
    """The bytes and the fingerprint equal those of a 5.x client."""
    assert HEARTBEAT.encode() == (
        b'{"clientID":"192.168.1.9@1234","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
        b'[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
        b'"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],"unitMode":false}],'
        b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}'
    )
    assert HeartbeatData.decode(HEARTBEAT.encode()) == HEARTBEAT
    assert HEARTBEAT.fingerprint() == 808946106


def test_a_heartbeat_of_4_9_lacks_members() -> None:
    heartbeat = HeartbeatData.decode('{"clientID":"c","consumerDataSet":null,"producerDataSet":[{"groupName":"g"}]}')
    assert heartbeat == HeartbeatData("c", (ProducerData("g"),))


def test_enums_by_their_place() -> None:
    """fastjson accepts an enum's ordinal in place of its name, and not every peer writes names."""
    (consumer,) = HeartbeatData.decode(
        '{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":0,"consumeFromWhere":4}]}'
    ).consumer_data_set
    assert consumer == ConsumerData(
        "g", message_model=MessageModel.BROADCASTING, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    with pytest.raises(BodyError):
        HeartbeatData.decode('{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":2}]}')
    with pytest.raises(BodyError):
        HeartbeatData.decode('{"clientID":"c","consumerDataSet":[7]}')


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", ()), ("", ()), (None, ()), ("A", ("A",)), (" A||B || A ", ("A", "B")), ("||A||", ("A",))],
)
def test_subscriptions(expression: str | None, tags: tuple[str, ...]) -> None:
    """Tags are split at ||, trimmed, and listed once; all other expressions subscribe to all tags."""
    subscription = SubscriptionData.build("T", expression)
    assert subscription.tags_set == tags
    assert subscription.code_set == tuple(map(tags_code, tags))
    assert subscription.is_all == (not tags)
    assert subscription.matches_tag("C") == subscription.matches_code(tags_code("C")) == (not tags)
    assert all(subscription.matches_tag(tag) and subscription.matches_code(tags_code(tag)) for tag in tags)


def test_subscriptions_by_sql_have_no_tags() -> None:
    subscription = SubscriptionData.build("T", "a > 1", "SQL92")
    assert (subscription.sub_string, subscription.expression_type, subscription.tags_set) == ("a > 1", "SQL92", ())
    with pytest.raises(SubscriptionParseFailed, match=r"\|\|"):
        SubscriptionData.build("T", " || ")


ROUTE = TopicRouteData(
    (QueueData("broker-a", 4, 4),),
    (BrokerData("broker-a", {0: "192.168.1.1:10911", 1: "192.168.1.2:10911"}, "DefaultCluster"),),
)


def test_routes_of_the_reference() -> None:
    """The two forms a name server writes, byte for byte; both read alike."""
    tail = (
        b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    strict = b'{"brokerDatas":[{"brokerAddrs":{"0":"192.168.1.1:10911","1":"192.168.1.2:10911"},' + tail
    fastjson = b'{"brokerDatas":[{"brokerAddrs":{0:"192.168.1.1:10911",1:"192.168.1.2:10911"},' + tail
    assert ROUTE.encode() == strict
    assert ROUTE.encode(strict=False) == fastjson
    assert TopicRouteData.decode(strict) == TopicRouteData.decode(fastjson) == ROUTE
    assert ROUTE.broker_datas[0].master == "192.168.1.1:10911"


def test_strict_routes_are_ascii() -> None:
    """Slashes and characters beyond ASCII are escaped, also surrogate pairs."""
    route = TopicRouteData(broker_datas=(BrokerData("é😀/", {1: "h:1"}),), order_topic_conf="b:4")
    data = route.encode()
    assert b'"\\u00E9\\uD83D\\uDE00\\/"' in data
    assert data.isascii()
    assert TopicRouteData.decode(data) == route
    assert route.broker_datas[0].master is None


def test_routes_of_other_peers() -> None:
    """Missing and unknown members, numbers as text."""
    route = TopicRouteData.decode('{"queueDatas":[{"brokerName":"b","perm":"4","topicSynFlag":1}],"x":{}}')
    assert route == TopicRouteData((QueueData("b", perm=4),))


def test_configs_have_javas_defaults() -> None:
    """Settings missing in a configuration file have Java's defaults."""
    assert TopicConfig.decode('{"topicName":"T"}') == TopicConfig("T", 8, 8, 6)
    config = SubscriptionGroupConfig.decode('{"groupName":"g","retryMaxTimes":3}')
    assert (config.group_name, config.retry_max_times, config.retry_queue_nums) == ("g", 3, 1)
    assert config.consume_enable
    assert config.which_broker_when_consume_slowly == 1


QUEUES = st.builds(MessageQueue, st.sampled_from(["T", "%RETRY%g"]), st.just("b"), st.integers(0, 9))


@given(st.dictionaries(QUEUES, st.integers(0, 2**40), max_size=4))
def test_maps_by_queue_survive_both_forms(table: dict[MessageQueue, int]) -> None:
    """Strict JSON has a queue's JSON as the member name, fastjson's the object itself, C++'s a list."""
    offsets = QueueOffsets(table)
    for data in (offsets.encode(), offsets.encode(strict=False), finished(offsets.encode_list(1))):
        assert QueueOffsets.decode(data) == offsets
    stats = ConsumeStats({queue: OffsetWrapper(offset, 1) for queue, offset in table.items()}, 0.5)
    assert ConsumeStats.decode(stats.encode()) == ConsumeStats.decode(stats.encode(strict=False)) == stats


def test_lock_bodies_of_4_9() -> None:
    body = LockBatchBody.decode(
        '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,"topic":"T"}]}'
    )
    assert body == LockBatchBody("g", "c", (MessageQueue("T", "b", 1),))
    assert LockBatchBody.decode("{}") == LockBatchBody("", "")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TopicConfig, "[]"),
        (TopicConfig, '{"perm":"x"}'),
        (TopicConfig, '{"perm":[]}'),
        (HeartbeatData, "{}"),
        (HeartbeatData, '{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"?"}]}'),
        (QueueOffsets, '{"offsetTable":{"T":1}}'),
        (QueueOffsets, '{"offsetTable":{1:1}}'),
        (QueueOffsets, '{"offsetTable":7}'),
        (LockBatchBody, '{"mqSet":{}}'),
        (LockBatchBody, '{"mqSet":[{"queueId":1}]}'),
        (ConsumeStats, '{"offsetTable":{{"topic":"T"}:[]}}'),
        (wire.BrokerConsumeStats, '{"consumeStatsList":[{"g":[7]}]}'),
    ],
)
def test_bodies_of_another_shape_are_refused(kind: type[Body], text: str) -> None:
    with pytest.raises(BodyError):
        kind.decode(text)


def finished(work: Generator[None, None, bytes]) -> bytes:
    """Return what a generator returns, however often it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return bytes(end.value)


def compressed_registration(*topics: str, servers: str = "[]") -> bytes:
    def text(value: str) -> bytes:
        return struct.pack(">i", len(value.encode())) + value.encode()

    version = '{"counter":5,"stateVersion":0,"timestamp":1700000000000}'
    parts = [text(version), struct.pack(">i", len(topics)), *map(text, topics), text(servers), struct.pack(">i", 0)]
    return zlib.compress(b"".join(parts))


def read(data: bytes, *, compressed: bool = True, topics_max: int = 100) -> tuple[dict[str, RegisteredTopic], Any, int]:
    """Return a registration's topics, the rest, and in how many slices it was read."""
    topics: dict[str, RegisteredTopic] = {}
    slices = read_registration(data, compressed=compressed, topics_max=topics_max)
    count = 0
    while True:
        try:
            topics |= next(slices)
        except StopIteration as end:
            return topics, end.value, count
        count += 1


def test_compressed_registrations() -> None:
    """The line form of 4.9 (five parts) and of 5.x (attributes behind)."""
    topics, rest, _ = read(
        compressed_registration("T 4 8 6 SINGLE_TAG", 'U 1 2 2 MULTI_TAG {"message.type":"FIFO"}', servers='["s:1"]')
    )
    assert topics == {"T": RegisteredTopic(4, 8, 6), "U": RegisteredTopic(1, 2, 2)}
    assert rest == Registration(DataVersion(1700000000000, 5), 1)


def test_a_compressed_registration_is_bounded() -> None:
    """Topics are counted before a line of them is read; a stream that expands to too much is not read to its end."""
    with pytest.raises(InvalidParameter, match="found 2 topics"):
        read(compressed_registration("T 4 8 6 SINGLE_TAG", "no topic"), topics_max=1)
    with pytest.raises(BodyError, match="decompresses to more than"):
        read(zlib.compress(bytes(BODY_SIZE_MAX + 1)))


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ('{"T":{"readQueueNums":4,"writeQueueNums":5,"perm":2,"topicSysFlag":1}}', {"T": (4, 5, 2, 1)}),
        ('{"T":{"readQueueNums":"4","perm":null,"attributes":null}}', {"T": (4, 8, 6, 0)}),
        ('{"T":{},"U":{"perm":4}}', {"T": (8, 8, 6, 0), "U": (8, 8, 4, 0)}),
        ("{'T':{readQueueNums:3}}", {"T": (3, 8, 6, 0)}),
        ('{"T":{"perm":4},"U":{"$ref":"$.topicConfigSerializeWrapper.topicConfigTable.T"}}', {"T": 4, "U": 4}),
        ("null", {}),
        ("{}", {}),
    ],
)
def test_registered_topics(text: str, topics: dict[str, Any]) -> None:
    """As leniently as any body: numbers as text, null, fastjson's dialect, references."""
    data = b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":3},"topicConfigTable":%b}}' % text.encode()
    found, rest, _ = read(data, compressed=False)
    assert {
        name: topic.perm
        if isinstance(topics[name], int)
        else (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        for name, topic in found.items()
    } == topics
    assert rest == Registration(DataVersion(0, 3), 0)
    whole = RegisterBrokerBody.decode(data).topic_config_serialize_wrapper.topic_config_table
    assert {name: topic.read_queue_nums for name, topic in whole.items()} == {
        name: topic.read_queue_nums for name, topic in found.items()
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_registration_is_read_in_slices(compressed: bool) -> None:
    """Each slice has a fixed number of topics, or of bytes if topics are large."""
    count = 3 * registration.TOPICS_A_SLICE + 1
    for topics, size in ((count, 1), (40, 32 * 1024)):
        attribute = "a" * size
        if compressed:
            data = compressed_registration(
                *(f'T{number} 1 1 6 SINGLE_TAG {{"a":"{attribute}"}}' for number in range(topics))
            )
        else:
            table = {f"T{number}": TopicConfig(f"T{number}", attributes={"a": attribute}) for number in range(topics)}
            data = RegisterBrokerBody(TopicConfigTable(table)).encode()
        found, _, slices = read(data, compressed=compressed, topics_max=topics)
        assert len(found) == topics
        assert slices >= 4


def test_lines_of_one_name_are_read_in_slices() -> None:
    """They become one topic, but each takes its time."""
    lines = 2 * registration.TOPICS_A_SLICE + 1
    found, _, slices = read(compressed_registration(*["T 1 1 6 SINGLE_TAG"] * lines), topics_max=lines)
    assert found == {"T": RegisteredTopic(1, 1, 6)}
    assert slices == 3


@given(
    st.dictionaries(
        st.text(st.sampled_from('ab},"\\:{ é'), max_size=6),
        st.dictionaries(st.text(st.sampled_from('a},"'), max_size=4), st.text(st.sampled_from('a},"{'), max_size=4)),
        max_size=12,
    ),
    st.integers(1, 200),
    st.sampled_from([None, 1]),
    st.sampled_from(['"},"', '"topicConfigTable":{"}', "s:1"]),
)
def test_a_table_is_read_alike_however_it_is_cut(
    topics: dict[str, dict[str, str]], run_size: int, indent: int | None, server: str
) -> None:
    """Names and attributes that look like the end of a topic do not matter, and neither do blanks."""
    table = {name: {"attributes": attributes, "perm": len(name)} for name, attributes in topics.items()}
    for version in ({"counter": 3}, {"counter": 3, "more": {"a": [{}, 1]}}):
        wrapper: dict[str, Any] = {
            "dataVersion": version,
            "topicConfigTable": table,
            "topicQueueMappingInfoMap": {"t": {}, "u": {}},
        }
        value = {"filterServerList": [server], "topicConfigSerializeWrapper": wrapper}
        data = json.dumps(value, ensure_ascii=False, indent=indent).encode()
        whole = read(data, compressed=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_runs, "RUN_SIZE", run_size)
            patch.setattr(json_runs, "REST_SIZE", 60)
            cut = read(data, compressed=False)
        assert cut[:2] == whole[:2]


def test_a_large_table_is_cut_into_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one run is read before other requests are served, and topics are counted meanwhile."""
    cut: list[int] = []
    decode = json_runs._cut

    def counting(text: bytes) -> Any:
        cut.append(len(text))
        return decode(text)

    monkeypatch.setattr(json_runs, "_cut", counting)
    count = 2 * json_runs.REST_SIZE // 150
    table = {f"T{number}": TopicConfig(f"T{number}", attributes={"a": "b"}) for number in range(count)}
    data = RegisterBrokerBody(TopicConfigTable(table, DataVersion(5)), ("s:1",)).encode()
    slices = read_registration(data, compressed=False, topics_max=count)
    topics, before = 0, 0
    for some in slices:
        assert sum(cut[before:]) <= 2 * json_runs.RUN_SIZE
        topics, before = topics + len(some), len(cut)
    assert (topics, before > 5) == (count, True)
    assert read(data, compressed=False, topics_max=count)[1] == Registration(DataVersion(5), 1)
    before = len(cut)
    with pytest.raises(InvalidParameter, match="expected at most 10"):
        read(data, compressed=False, topics_max=10)
    assert len(cut) <= before + 2


FILL = b",".join(b'"T%d":{"perm":6}' % number for number in range(200_000))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}' % FILL, "not JSON behind the first"),
        (b'{"x":{"topicConfigTable":{%b}}}' % FILL, "outside of topicConfigSerializeWrapper"),
        (b'{"x":{%b}}' % FILL, "could not be divided"),
        (
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":[%b1]}}}' % (b"1," * 2_000_000),
            "could not be divided",
        ),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b,"T":7}}}' % FILL, "expected the object"),
        (
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b},"topicConfigTable":{}}}' % FILL,
            "outside of topicConfigSerializeWrapper",
        ),
    ],
)
def test_large_registrations_of_another_shape_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BodyError, match=words):
        read(data, compressed=False, topics_max=1_000_000)


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b'{"topicConfigSerializeWrapper":[]}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":7}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":9223372036854775808}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"attributes":{"a":"%b"}}}}}' % bytes(b"a" * 70_000),
        b'{"topicConfigSerializeWrapper":{"dataVersion":7}}',
        b"{'x':[%b]}" % b",".join([b"1"] * (DIALECT_NODES_MAX + 1)),
        b'{"x":{%b}}' % b",".join([b'"":1'] * (NODES_MAX + 1)),
    ],
)
def test_registrations_of_another_shape_are_refused(data: bytes) -> None:
    with pytest.raises(BodyError):
        read(data, compressed=False)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (HeartbeatData, REQUEST_DIALECT_NODES_MAX),
        (ClusterInfo, DIALECT_NODES_MAX),
        pytest.param(ConsumeStats, NODES_MAX, marks=pytest.mark.slow),
    ],
)
def test_the_dialect_has_a_bound_for_each_body(kind: type[Body], count: int) -> None:
    """The lenient reader is slow: only tables by queue may be large; requests must be small, strict JSON need not."""
    with pytest.raises(BodyError, match=f"at most {count}"):
        kind.decode(b"{'x':[%b]}" % b",".join([b"1"] * (count + 1)))
    kind.decode(b'{"clientID":"c","x":[%b]}' % b",".join([b"1"] * (min(count, DIALECT_NODES_MAX) + 1)))


@pytest.mark.parametrize(
    "kind", [HeartbeatData, LockBatchBody, wire.BatchAckBody, wire.QueryAssignmentBody, wire.RequestMode, wire.AclInfo]
)
def test_what_clients_send_is_small(kind: type[Body]) -> None:
    """One frame of 16 MiB could keep a broker busy for a second: names and values of a request are counted."""
    huge = b'{"x":[%b]}' % b",".join([b"[]"] * NODES_MAX)
    with pytest.raises(BodyError, match=f"at most {REQUEST_DIALECT_NODES_MAX}"):
        kind.decode(huge)
    assert kind.nodes_max == REQUEST_NODES_MAX


@given(st.integers(0, 200))
def test_registrations_cut_short_are_refused(size: int) -> None:
    plain = zlib.decompress(compressed_registration("T 4 8 6 SINGLE_TAG"))
    if size < len(plain) - 4:
        with pytest.raises(BodyError):
            read(zlib.compress(plain[:size]))


@pytest.mark.parametrize(
    "data", [b"", b"no zlib", compressed_registration("T 4 8"), compressed_registration("T x 8 6 S")]
)
def test_registrations_that_are_none(data: bytes) -> None:
    with pytest.raises(BodyError):
        read(data)


def test_an_entry_of_many_queues_is_written_in_slices() -> None:
    """The result equals one without slices."""
    offsets = {"a@g": {0: 1}, "wide@g": {number: number for number in range(1_000)}, "z@g": {0: 2}}
    work = encode_in_slices(ConsumerOffsetTable({}), "offsetTable", offsets.items(), 100, strict=False)
    slices = 0
    body = b""
    while not body:
        try:
            next(work)
        except StopIteration as end:
            body = end.value
        slices += 1
    assert body == ConsumerOffsetTable(offsets).encode(strict=False)
    assert slices == 11


@pytest.mark.parametrize("item", [b"[]", b"{}", b"null", b'{"a":[]}'])
def test_empty_values_of_a_request_cost_no_call_each(item: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may have 25,000 of them, and other requests wait while it is read."""
    calls = 0
    plain = body._without_none

    def counted(value: object) -> object:
        nonlocal calls
        calls += 1
        return plain(value)

    monkeypatch.setattr(body, "_without_none", counted)
    decoded = HeartbeatData.decode(b'{"clientID":"c","x":[%b]}' % b",".join([item] * 1_000))
    assert decoded.client_id == "c"
    assert calls <= 2 + (1_000 if item == b'{"a":[]}' else 0)
