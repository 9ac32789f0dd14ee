"""The broker as a whole, where a scenario file would hide the point: administration, forwarding, trace loss, bad
input."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtrail.broker.clients import forward
from mqtrail.store import Appended, GetStatus, ReadResult, StoreFull
from mqtrail.wire import (
    BatchItem,
    BrokerConsumeStats,
    ConsumeMessageDirectlyHeader,
    ConsumerConnections,
    ConsumerRunningInfoHeader,
    ConsumeStats,
    ConsumeStatsHeader,
    DirectConsumeResult,
    GroupList,
    Host,
    KvTable,
    MessageQueue,
    Peer,
    PeerId,
    QueryMessageHeader,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SendMessageHeader,
    SerializeType,
    Stored,
    TopicList,
    TopicStatsTable,
    TraceLoss,
    ViewMessageHeader,
    decode_records,
    decode_trace,
    encode_batch,
    encode_properties,
    encode_trace,
    parse_offset_msg_id,
    validate_topic,
)

from .helpers import OTHER, PEER, Bench

QUEUE = MessageQueue("orders", "broker-a", 0)


def test_topic_statistics() -> None:
    """202 returns each queue's range and last write."""
    bench = Bench()
    bench.send(queue_id=0)
    found = TopicStatsTable.decode(bench.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body)
    assert len(found.offset_table) == 4
    assert (found.offset_table[QUEUE].max_offset, found.offset_table[QUEUE].last_update_timestamp) == (1, bench.now_ms)
    assert bench.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "absent"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_group_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """208 and 317 return the group's committed and pulled offsets."""
    bench = Bench()
    for _ in range(3):
        bench.send()
    bench.heartbeat(topics={"orders": "*"})
    bench.pull(count=2)
    bench.broker.offsets.commit("g", "orders", 0, 1)
    found = ConsumeStats.decode(bench.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("g").to_ext()).body)
    offset = found.offset_table[QUEUE]
    assert (offset.broker_offset, offset.consumer_offset, offset.pull_offset) == (3, 1, 2)
    assert offset.last_timestamp == bench.now_ms
    listed = ConsumeStatsHeader("g", topic_list=";".join(["orders"] * 1_000)).to_ext()
    asked: list[str] = []
    max_offset = bench.store.max_offset

    def counted(topic: str, queue_id: int) -> int:
        asked.append(topic)
        return max_offset(topic, queue_id)

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "max_offset", counted)
        assert ConsumeStats.decode(bench.ask(RequestCode.GET_CONSUME_STATS, listed).body) == found
    assert len(asked) == len(found.offset_table), "a topic that a list repeats is looked at once"
    every = BrokerConsumeStats.decode(bench.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body)
    assert (every.total_diff, every.total_inflight_diff) == (2, 1)
    who = bench.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
    assert GroupList.decode(who.body).group_list == ("g",)
    what = bench.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})
    assert TopicList.decode(what.body).topic_list == ("orders",)


def test_connections() -> None:
    """203 shows clients with address and language; an offline group differs from an empty one."""
    bench = Bench()
    bench.heartbeat("c1", topics={"orders": "A"})
    found = ConsumerConnections.decode(bench.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body)
    assert [(each.client_id, each.client_addr, each.language) for each in found.connection_set] == [
        ("c1", "10.0.0.1:40001", "PYTHON")
    ]
    assert found.subscription_table["orders"].tags_set == ("A",)
    refused = bench.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "h"})
    assert refused.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_runtime_information() -> None:
    """28 has the keys that mqadmin and dashboards parse."""
    bench = Bench()
    bench.send()
    bench.send(DELAY="1")
    bench.pull()
    bench.advance(2_000)
    table = KvTable.decode(bench.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("3", "1")
    assert table["scheduleMessageOffset_1"] == "1,1"
    for name in ("putTps", "getTransferredTps", "getTotalTps"):
        assert len([float(part) for part in table[name].split()]) == 3


def test_queries() -> None:
    """Key, unique id and offset id find a message; an unknown id is refused."""
    bench = Bench()
    reply = bench.send(KEYS="k1 k2", UNIQ_KEY="ID1")
    bench.store.dispatch_index(10)
    for key, unique in (("k2", False), ("ID1", True)):
        header = QueryMessageHeader("orders", key, 10, 0, 1 << 62, unique)
        found = bench.ask(RequestCode.QUERY_MESSAGE, header.to_ext())
        assert [message.msg_id for message in decode_records(found.body)] == ["ID1"]
    absent = bench.ask(RequestCode.QUERY_MESSAGE, QueryMessageHeader("orders", "k3", 10, 0, 1 << 62).to_ext())
    assert absent.code == ResponseCode.QUERY_NOT_FOUND
    _, physical_offset = parse_offset_msg_id(reply.ext["msgId"])
    viewed = bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(physical_offset).to_ext())
    assert decode_records(viewed.body)[0].msg_id == "ID1"
    nothing = bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(physical_offset + 1).to_ext())
    assert nothing.code == ResponseCode.SYSTEM_ERROR


def test_a_query_that_was_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remark says so if messages were found; without any it is an error, not "not found"."""
    bench = Bench()
    for _ in range(3):
        bench.send(KEYS="k")
        bench.now_ms += 10_000
    bench.store.dispatch_index(10)
    monkeypatch.setattr("mqtrail.store.commitlog.lookup.ENTRIES_MAX", 2)
    newest = bench.ask(RequestCode.QUERY_MESSAGE, QueryMessageHeader("orders", "k", 10, 0, 1 << 62).to_ext())
    assert len(decode_records(newest.body)) == 2
    assert "older entries were not searched" in str(newest.remark)
    old_ms = bench.now_ms - 25_000
    old = bench.ask(RequestCode.QUERY_MESSAGE, QueryMessageHeader("orders", "k", 10, 0, old_ms).to_ext())
    assert old.code == ResponseCode.SYSTEM_ERROR
    assert "give a narrower time range" in str(old.remark)


def test_batch_items_keep_their_own_ids() -> None:
    """5.3.3 shows one id for all messages of a batch; with their own ids a trace can match sent and consumed
    messages."""
    bench = Bench()
    items = [BatchItem(b"a", b"UNIQ_KEY\x01ID1\x02TAGS\x01A\x02"), BatchItem(b"b", b"UNIQ_KEY\x01ID2\x02", 7)]
    header = SendMessageHeader("pg", "orders", queue_id=1, batch=True, properties=encode_properties({"UNIQ_KEY": "B"}))
    reply = bench.ask(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), encode_batch(items))
    assert reply.ext["transactionId"] == "B"
    stored = bench.messages("orders", 1)
    assert [(message.msg_id, message.flag, message.properties["CLUSTER"]) for message in stored] == [
        ("ID1", 0, "DefaultCluster"),
        ("ID2", 7, "DefaultCluster"),
    ]
    assert reply.ext["msgId"].split(",") == [message.offset_msg_id for message in stored]


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    """A batch with one delayed item is refused and not stored."""
    bench = Bench()
    items = [BatchItem(b"a"), BatchItem(b"b", b"DELAY\x011\x02")]
    header = SendMessageHeader("pg", "orders", queue_id=1, batch=True)
    reply = bench.ask(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), encode_batch(items))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.messages("orders", 1) == []


def test_registration_is_whole_and_checked() -> None:
    """103 has every topic and the body's CRC, and is sent again after a change."""
    bench = Bench()
    changed = [bench.broker.topics_changed]
    first = bench.broker.registration()
    changed.append(bench.broker.topics_changed)
    bench.send()
    changed.append(bench.broker.topics_changed)
    second = bench.broker.registration()
    assert changed == [True, False, True]
    header = RegisterBrokerHeader.from_ext(second.ext)
    body = RegisterBrokerBody.decode(second.body)
    assert (header.broker_addr, header.broker_id) == ("127.0.0.1:10911", 0)
    assert "orders" in body.topic_config_serialize_wrapper.topic_config_table
    assert first.ext["bodyCrc32"] != second.ext["bodyCrc32"]


def test_a_read_only_broker_registers_so() -> None:
    """The registered permissions of topics lack the bits that the broker lacks."""
    bench = Bench(permission=4)
    table = RegisterBrokerBody.decode(bench.broker.registration().body).topic_config_serialize_wrapper
    assert table.topic_config_table["TBW102"].perm == 5


def test_forwarding_and_its_ends() -> None:
    """307 and 309 reach the client and return its reply; a silent, disconnected or unknown client is an error."""
    bench = Bench()
    reply = bench.send()
    bench.heartbeat("c1", peer=PEER)
    info = ConsumerRunningInfoHeader("g", "c1").to_ext()
    (asked,) = bench.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, info, peer=OTHER)
    assert (asked.peer, asked.command.code) == (PEER.id, 307)
    answer = RemotingCommand.reply_to(asked.command, 0, body=b"{}")
    assert bench.broker.handle(OTHER, answer, bench.now_ms) == [], "it was not asked"
    (back,) = bench.broker.handle(PEER, answer, bench.now_ms)
    assert (back.peer, back.command.body) == (OTHER.id, b"{}")
    assert bench.broker.handle(PEER, answer, bench.now_ms) == []

    direct = ConsumeMessageDirectlyHeader("g", "c1", reply.ext["msgId"]).to_ext()
    (asked,) = bench.tell(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct, peer=OTHER)
    assert decode_records(asked.command.body)[0].body == b"hi"
    (late,) = bench.advance(10_000)
    assert (late.peer, late.command.code) == (OTHER.id, ResponseCode.CONSUME_MSG_TIMEOUT)
    result = DirectConsumeResult("CR_SUCCESS").encode()
    assert bench.broker.handle(PEER, RemotingCommand.reply_to(asked.command, 0, body=result), bench.now_ms) == []

    bench.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, info, peer=OTHER)
    (gone,) = bench.broker.disconnected(PEER.id)
    assert (gone.peer, gone.command.code) == (OTHER.id, ResponseCode.CONSUME_MSG_TIMEOUT)
    assert bench.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, info, peer=OTHER).code == ResponseCode.SYSTEM_ERROR


def test_questions_to_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with many queries, and a client that never replies, leave room for others; each reply frees a
    place."""
    monkeypatch.setattr(forward, "FORWARDS_PEER_MAX", 2)
    monkeypatch.setattr(forward, "FORWARDS_MAX", 4)
    bench = Bench()
    peers = [Peer(PeerId(number), Host("10.0.0.9", number)) for number in range(10, 18)]
    for number, peer in enumerate(peers):
        bench.heartbeat(f"c{number}", peer=peer)

    def question(asker: int, client: int) -> Send:
        info = ConsumerRunningInfoHeader("g", f"c{client}").to_ext()
        (send,) = bench.tell(RequestCode.GET_CONSUMER_RUNNING_INFO, info, peer=peers[asker])
        return send

    def is_refused(send: Send) -> bool:
        return send.command.code == ResponseCode.SYSTEM_BUSY

    first = question(0, 1)
    assert not is_refused(question(0, 2))
    assert is_refused(question(0, 3)), "of one that asks"
    assert not is_refused(question(4, 1))
    assert is_refused(question(5, 1)), "to one that is asked"
    assert not is_refused(question(5, 6))
    assert is_refused(question(6, 7)), "of all"
    assert len(bench.broker.handle(peers[1], RemotingCommand.reply_to(first.command, 0), bench.now_ms)) == 1
    assert not is_refused(question(0, 1))
    bench.broker.disconnected(peers[0].id)
    assert not is_refused(question(6, 7))
    bench.advance(bench.config.forward_timeout_ms)
    assert not is_refused(question(4, 1))


def test_a_group_that_is_larger_is_asked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of all members of a large group may exceed the connection's limit, if no other query of it is pending."""
    monkeypatch.setattr(forward, "FORWARDS_PEER_MAX", 2)
    monkeypatch.setattr(forward, "FORWARDS_MAX", 5)
    bench = Bench()
    bench.send()
    for number in range(3):
        bench.heartbeat(f"c{number}", peer=Peer(PeerId(10 + number), Host("10.0.0.9", number)))
    ext = {"topic": "orders", "group": "g"}
    assert len(bench.tell(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)) == 3
    for peer in (PEER, OTHER):
        (refused,) = bench.tell(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext, peer=peer)
        assert refused.command.code == ResponseCode.SYSTEM_BUSY
    bench.advance(bench.config.forward_timeout_ms)
    assert len(bench.tell(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext, peer=OTHER)) == 3


def test_trace_loss_is_recorded_in_the_trace() -> None:
    """Records beyond the buffer are counted, and the next trace message has the count."""
    bench = Bench(broker_trace=True, broker_trace_records_max=2)
    for _ in range(5):
        bench.send()
    bench.advance(500)
    bench.send()
    bench.advance(500)
    records = [record for message in bench.messages("RMQ_SYS_TRACE_TOPIC") for record in decode_trace(message.body)[0]]
    losses = [record for record in records if isinstance(record, TraceLoss)]
    assert [loss.count for loss in losses] == [3]
    assert len(records) - len(losses) == 3


def test_stored_records_are_what_the_codec_writes() -> None:
    """The text that the send path assembles decodes to all its fields, and equals what the codec writes."""
    bench = Bench(broker_trace=True)
    bench.send(UNIQ_KEY="ID1", KEYS="a b\u00e9", TAGS="t")
    bench.send()
    bench.advance(500)
    (message,) = bench.messages("RMQ_SYS_TRACE_TOPIC")
    records, rejects = decode_trace(message.body)
    assert not rejects
    assert encode_trace(records) == message.body.decode()
    stored = [record for record in records if isinstance(record, Stored)]
    kept = bench.messages("orders")
    assert [(record.msg_id, record.keys, record.physical_offset, record.size, record.kind) for record in stored] == [
        ("ID1", "a b\u00e9", kept[0].physical_offset, kept[0].store_size, "NORMAL"),
        (kept[1].properties["UNIQ_KEY"], None, kept[1].physical_offset, kept[1].store_size, "NORMAL"),
    ]
    assert {(record.topic, record.queue_id, record.born_host) for record in stored} == {
        ("orders", 0, str(PEER.address))
    }


def test_separators_in_properties_shift_no_trace_record() -> None:
    """KEYS and UNIQ_KEY may contain U+0001: the Stored record has them without it."""
    bench = Bench(broker_trace=True)
    bench.send(UNIQ_KEY="ID\x01x", KEYS="a\x01b\x01false")
    bench.advance(500)
    (message,) = bench.messages("RMQ_SYS_TRACE_TOPIC")
    records, rejects = decode_trace(message.body)
    assert not rejects
    [stored] = [record for record in records if isinstance(record, Stored)]
    assert (stored.msg_id, stored.keys, stored.kind) == ("IDx", "abfalse", "NORMAL")


def test_trace_is_written_before_the_broker_stops() -> None:
    """Waiting records are not lost when the broker stops."""
    bench = Bench(broker_trace=True)
    bench.send()
    bench.broker.stop(bench.now_ms)
    assert len(bench.messages("RMQ_SYS_TRACE_TOPIC")) == 1


def test_replies_in_kind() -> None:
    """If so configured, a binary request gets a binary reply; by default replies are JSON, as in 5.3.3."""
    for in_kind, expected in ((False, SerializeType.JSON), (True, SerializeType.ROCKETMQ)):
        bench = Bench(reply_in_kind=in_kind)
        reply = bench.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, serialize=SerializeType.ROCKETMQ)
        assert reply.serialize == expected


def test_ipv6_hosts() -> None:
    """Brokers and clients with IPv6 addresses have 56-character offset ids, and records keep both hosts."""
    bench = Bench(address=Host("fd00::2", 10911))
    peer = Peer(PeerId(9), Host("fd00::9", 51234))
    header = SendMessageHeader("pg", "orders", queue_id=0)
    reply = bench.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"hi", peer=peer)
    assert reply.ext["msgId"] == "FD00000000000000000000000000000200002A9F0000000000000000"
    assert bench.messages("orders")[0].born_host == Host("fd00::9", 51234)


def test_old_long_names_are_read() -> None:
    """Code 10 as the C++ client writes it: long names, "0" for false."""
    bench = Bench()
    header = SendMessageHeader("pg", "orders", queue_id=0).to_ext_v1() | {"unitMode": "0", "batch": "0"}
    assert bench.ask(RequestCode.SEND_MESSAGE, header, b"hi").code == ResponseCode.SUCCESS


def test_a_long_retry_topic() -> None:
    """A group of 120 characters has a retry topic of 127, which is stored and read."""
    bench = Bench()
    group = "g" * 120
    bench.heartbeat(group=group)
    validate_topic("%RETRY%" + group)
    assert "%RETRY%" + group in bench.broker.topics


def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full store refuses sends with 14 and accepts them later; messages due meanwhile are then delivered."""
    bench = Bench(broker_trace=True)
    bench.send(DELAY="1", UNIQ_KEY="ID1")

    def full(*_: object) -> list[Appended]:
        raise StoreFull("found a disk that is 91 % full, expected at most 90 %: make room")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "append", full)
        reply = bench.send()
        assert (reply.code, reply.ext["TRACE_ON"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "true")
        assert reply.remark is not None
        assert "make room" in reply.remark
        bench.advance(3_500)
        assert bench.messages("orders") == []
    assert bench.send().code == ResponseCode.SUCCESS
    bench.advance(1_000)
    assert [message.msg_id for message in bench.messages("orders")][1:] == ["ID1"]
    texts = [message.body for message in bench.messages("RMQ_SYS_TRACE_TOPIC")]
    assert any(isinstance(record, TraceLoss) for text in texts for record in decode_trace(text)[0])


def test_expired_delays_are_passed_over() -> None:
    """A level whose first messages expired continues with the first kept one."""
    bench = Bench()
    bench.send(DELAY="1", UNIQ_KEY="ID1")
    first = ReadResult(GetStatus.MESSAGE_WAS_REMOVING, (), 1, 0, 2)
    read = bench.store.read
    bench.send(DELAY="1", UNIQ_KEY="ID2")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            bench.store,
            "read",
            lambda topic, queue_id, offset, *rest: first if offset == 0 else read(topic, queue_id, offset, *rest),
        )
        bench.advance(1_000)
    assert [message.msg_id for message in bench.messages("orders")] == ["ID2"]


CODES = st.sampled_from([int(code) for code in RequestCode]) | st.integers(0, 32_767)
NAMES = (
    *("a", "b", "c", "d", "e", "f", "g", "h", "i", "topic", "queueId", "consumerGroup", "queueOffset", "sysFlag"),
    *("maxMsgNums", "suspendTimeoutMillis", "commitOffset", "group", "offset", "delayLevel", "producerGroup"),
    *("timestamp", "key", "maxNum", "beginTimestamp", "endTimestamp", "clientID", "readQueueNums", "perm"),
)
TEXTS = ["", "0", "1", "-1", "T", "orders", "99999999999", "x y", "\x01", "true", "%RETRY%g", "TBW102"]
EXT = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS) | st.text(max_size=10))
BODIES = st.binary(max_size=60) | st.sampled_from(
    [b"{}", b"[]", b'{"clientID":1}', b'{"clientID":"c"}', b'{"mqSet":[1]}', b'{"groupName":5}', b'{"groupName":"g"}']
)
FUZZED = Bench(topics_max=60, held_pulls_max=50)


@settings(max_examples=150)
@given(st.lists(st.tuples(CODES, EXT, BODIES, st.integers(0, 3)), max_size=8))
def test_garbage_is_answered(requests: list[tuple[int, dict[str, str], bytes, int]]) -> None:
    """Each request gets one reply, or waits as a pull or a job; the broker never fails."""
    for code, ext, body, flag in requests:
        command = FUZZED.request(code, ext, body, flag=flag)
        jobs = len(FUZZED.broker.jobs)
        sends = FUZZED.broker.handle(PEER, command, FUZZED.now_ms)
        answers = [send for send in sends if send.command.is_response and send.command.opaque == command.opaque]
        if flag:
            assert not answers
        else:
            is_waiting = code in (11, 361) or len(FUZZED.broker.jobs) > jobs
            assert len(answers) == 1 or (not answers and is_waiting)
    FUZZED.advance(1_000)
