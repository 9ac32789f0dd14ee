"""Requests of operators' tools to a master: settings at run time, offsets, the store, replicas, online consumers."""

from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, Epoch, decode_epochs
from mqtrail.broker.ha import EpochSender
from mqtrail.broker.lane import Lane
from mqtrail.broker.operator.settings import CHANGEABLE
from mqtrail.broker.operator.stats import _size_text
from mqtrail.store import CommitLogConfig, Retention
from mqtrail.wire import (
    BrokerStatsData,
    ColdDataInfo,
    ConsumeQueueEntries,
    ConsumerStatus,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupForbidden,
    HaRuntimeInfo,
    InvalidParameter,
    KvTable,
    MessageQueue,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    SendMessageHeader,
    TopicConfig,
    encode_command,
    properties_of,
    settings_of,
    tags_code,
)

from ..helpers import NOW_MS, OTHER, PEER, Bench, at_once


def set_lines(bench: Bench, *lines: str, **fields: Any) -> RemotingCommand:
    return bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body="".join(f"{line}\n" for line in lines).encode(), **fields)


def shown(bench: Bench) -> dict[str, str]:
    return properties_of(bench.ask(RequestCode.GET_BROKER_CONFIG).body.decode())


# Settings.


def test_settings_change_at_once() -> None:
    """A change applies to the next request, is shown, and raises the version."""
    bench = Bench()
    bench.send()
    version = bench.ask(RequestCode.GET_BROKER_CONFIG).ext["version"]
    assert set_lines(bench, "maxMessageSize=5", "# a comment", "litePullMessageEnable: false").code == 0
    assert bench.send(body=b"123456").code == 13
    assert bench.ask(RequestCode.LITE_PULL_MESSAGE, bench.pull_ext()).code == 16
    assert (shown(bench)["maxMessageSize"], shown(bench)["litePullMessageEnable"]) == ("5", "false")
    assert bench.ask(RequestCode.GET_BROKER_CONFIG).ext["version"] != version
    assert '"counter":1' in bench.ask(RequestCode.GET_BROKER_CONFIG).ext["version"]


def test_the_lane_hears_of_changes() -> None:
    """The lane caches the largest body and the opening time, and reads both again after a change of settings."""
    bench = Bench()
    bench.send()
    lane = Lane(bench.broker)
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=NOW_MS, properties="UNIQ_KEY\x01A1\x02")
    frame = encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"123456", opaque=1))

    def code() -> int:
        served = lane.process(PEER, frame, 0, len(frame), bench.now_ms)
        return served.sends[0].command.code if served.sends else 0

    assert code() == 0
    set_lines(bench, "maxMessageSize=5")
    assert code() == 13
    set_lines(bench, "maxMessageSize=6", f"startAcceptSendRequestTimeStamp={NOW_MS + 1}")
    assert code() == 1


def test_a_permission_that_changes_registers_anew() -> None:
    """brokerPermission=4: the broker registers at once as read-only."""
    bench = Bench()
    bench.send()
    bench.broker.registration()
    assert not bench.broker.topics_changed
    set_lines(bench, "brokerPermission=4")
    assert bench.broker.topics_changed
    assert b'"perm":4' in bench.broker.registration().body
    set_lines(bench, "brokerPermission=6")
    assert b'"orders":{"attributes":{},"order":false,"perm":6' in bench.broker.registration().body


def test_auto_creation_that_changes() -> None:
    """The current setting decides whether sends create topics, also if the template was missing at the start."""
    bench = Bench()
    set_lines(bench, "autoCreateTopicEnable=false")
    assert bench.send("one").code == 17
    set_lines(bench, "autoCreateTopicEnable=true")
    assert bench.send("one").code == 0
    bench = Bench(auto_create_topic=False)
    set_lines(bench, "autoCreateTopicEnable=true")
    assert bench.send("one").code == 0


def test_retention_changes_too() -> None:
    """The store's settings are changed in RocketMQ's units."""
    bench = Bench()
    lines = ("fileReservedTime=48", "deleteWhen=03;04", "diskMaxUsedSpaceRatio=60", "diskSpaceWarningLevelRatio=95")
    assert set_lines(bench, *lines).code == 0
    assert bench.store.retention == Retention(
        retention_ms=48 * 3_600_000, delete_hours=(3, 4), expire_ratio=0.6, force_ratio=0.85, full_ratio=0.95
    )
    assert {f"{key}={value}" for key, value in shown(bench).items()} > set(lines)


def test_what_a_broker_starts_with_hinders_no_later_change() -> None:
    """Ratios in any order and a retention of 0 are accepted as on Apache's broker; other settings can be changed beside
    them."""
    bench = Bench()
    assert set_lines(bench, "diskMaxUsedSpaceRatio=95", "fileReservedTime=0").code == 0
    assert set_lines(bench, "diskSpaceCleanForciblyRatio=80").code == 0
    assert set_lines(bench, "fileReservedTime=24").code == 0
    retention = bench.store.retention
    assert (retention.expire_ratio, retention.force_ratio, retention.retention_ms) == (0.95, 0.8, 24 * 3_600_000)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("brokerConfigPath=/tmp/x", 16, "Can not update config in black list."),
        ("rocketmqHome=/", 16, "black list"),
        ("configBlackList=", 16, "black list"),
        ("listenPort=1", 29, "found listenPort, which has no effect here"),
        ("brokerName=other", 29, "needs a restart"),
        ("pullMessageThreadPoolNums=4", 29, "no effect here"),
        ("maxMessageSize=big", 29, "found maxMessageSize='big', expected a number"),
        ("diskMaxUsedSpaceRatio=" + "9" * 400, 29, "expected a number"),
        ("fileReservedTime=-" + "9" * 4_299, 29, "expected a number"),
        ("deleteWhen=" + "9" * 5_000, 29, "expected hours of the day such as 04"),
        ("transactionTimeOut=9223372036854775808", 29, "expected a number"),
        ("maxMessageSize=999999999", 29, "the value at the start of this broker"),
        ("maxMessageSize=0", 29, "found message_size_max 0"),
        ("deleteWhen=25", 29, "found delete_hours (25,) (deleteWhen), expected hours, 0 to 23"),
        ("deleteWhen=", 29, "found deleteWhen=''"),
        ("diskMaxUsedSpaceRatio=101", 29, "found expire_ratio 1.01 (diskMaxUsedSpaceRatio)"),
        ("diskSpaceWarningLevelRatio=0", 29, "found full_ratio 0 (diskSpaceWarningLevelRatio)"),
        ("fileReservedTime=-1", 29, "(fileReservedTime), expected 0 or more"),
    ],
)
def test_settings_that_cannot_be_changed(line: str, code: int, words: str) -> None:
    """The request is refused with a reason and has no effect; a 4.9 tool gets 1 instead of 29."""
    bench = Bench()
    before = shown(bench)
    for version in (479, 409):
        reply = set_lines(bench, "shortPollingTimeMills=7", line, version=version)
        assert reply.code == (1 if version == 409 and code == 29 else code)
        assert words in (reply.remark or "")
    assert shown(bench) == before


def test_the_black_list_is_a_setting() -> None:
    """A request cannot replace a key that the operator set."""
    bench = Bench(config_black_list="maxMessageSize;brokerConfigPath")
    assert set_lines(bench, "maxMessageSize=5").code == 16


# Offsets.


def filled() -> Bench:
    """Return a broker with three messages a second in queues 0 and 1, consumed up to 2 and not at all by g."""
    bench = Bench()
    for _ in range(3):
        for queue_id in (0, 1):
            bench.send(queue_id=queue_id, TAGS="A")
        bench.now_ms += 1_000
    bench.heartbeat(topics={"orders": "A"})
    bench.broker.offsets.commit("g", "orders", 0, 2)
    return bench


def test_time_spans() -> None:
    """303: when the queue's first, last and last consumed messages were stored, and how long the next one waits."""
    bench = filled()
    reply = bench.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": "g"})
    spans = {span.message_queue["queueId"]: span for span in ConsumeTimeSpans.decode(reply.body).consume_time_span_set}
    assert set(spans) == {0, 1, 2, 3}
    span = spans[0]
    assert (span.min_time_stamp, span.max_time_stamp) == (NOW_MS, NOW_MS + 2_000)
    assert (span.consume_time_stamp, span.delay_time) == (NOW_MS + 1_000, 1_000)
    assert (span.min_time_stamp_str or "").endswith(":000")
    assert spans[1].consume_time_stamp == NOW_MS
    assert spans[2].min_time_stamp == -1
    assert bench.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "absent", "group": "g"}).code == 17


def test_corrections() -> None:
    """308: the smallest offset of all groups except the given ones; the largest Long if no group is behind."""
    bench = filled()
    for group, offsets in {"a": (1, 3), "b": (3, 3), "slow": (0, 0)}.items():
        for queue_id, offset in enumerate(offsets):
            bench.broker.offsets.commit(group, "orders", queue_id, offset)
    ext = {"topic": "orders", "compareGroup": "b", "filterGroups": "slow,g"}
    found = CorrectionOffsets.decode(bench.ask(RequestCode.QUERY_CORRECTION_OFFSET, ext).body)
    assert found.correction_offsets == {0: 1, 1: 3}
    ext["compareGroup"] = "slow"
    found = CorrectionOffsets.decode(bench.ask(RequestCode.QUERY_CORRECTION_OFFSET, ext).body)
    assert found.correction_offsets == {0: (1 << 63) - 1, 1: (1 << 63) - 1}


def test_clones() -> None:
    """314 clones one topic's offsets or all; for an online group, topics that it does not subscribe only with offline
    set."""
    bench = filled()
    bench.broker.topics.update(TopicConfig("left", 4, 4), bench.now_ms)
    bench.broker.offsets.commit("g", "left", 0, 9)
    bench.broker.offsets.commit("g", "gone", 0, 9)
    ext = {"srcGroup": "g", "destGroup": "h", "offline": "false"}
    assert bench.ask(RequestCode.CLONE_GROUP_OFFSET, ext).code == 0
    assert at_once(bench.broker.offsets.topics_of("h")) == ["orders"]
    assert bench.broker.offsets.queues("h", "orders") == {0: 2}
    bench.ask(RequestCode.CLONE_GROUP_OFFSET, ext | {"offline": "true", "topic": "left"})
    assert at_once(bench.broker.offsets.topics_of("h")) == ["left", "orders"]


def test_a_group_that_may_not_read() -> None:
    """353 refuses a group's pulls until it is enabled again; this survives a restart."""
    bench = filled()
    ext = {"group": "g", "topic": "orders"}
    pull = {**bench.pull_ext(), "sysFlag": "0"}
    assert GroupForbidden.decode(bench.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext).body).readable
    reply = bench.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext | {"readable": "false"})
    assert GroupForbidden.decode(reply.body) == GroupForbidden("g", "orders", False)
    assert bench.ask(RequestCode.PULL_MESSAGE, pull).code == 16
    bench.restart()
    bench.heartbeat(topics={"orders": "A"})
    assert bench.ask(RequestCode.PULL_MESSAGE, pull).code == 16
    bench.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext | {"readable": "true"})
    assert bench.ask(RequestCode.PULL_MESSAGE, pull).code == 0
    assert bench.broker.groups.table().forbidden_table == {}


# Live consumers.


def test_where_consumers_stand() -> None:
    """223 sends a 221 to every online member and combines the replies; members that do not reply are omitted."""
    bench = filled()
    bench.heartbeat("c2", peer=OTHER, topics={"orders": "A"})
    request = bench.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "g"})
    asker = OTHER
    questions = bench.broker.handle(asker, request, bench.now_ms)
    assert {send.peer for send in questions} == {PEER.id, OTHER.id}
    assert {send.command.code for send in questions} == {RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT}
    queue = MessageQueue("orders", "broker-a", 0)
    (first,) = [send for send in questions if send.peer == PEER.id]
    reply = RemotingCommand.reply_to(first.command, 0, None, {}, ConsumerStatus({queue: 2}).encode(strict=False))
    assert bench.broker.handle(PEER, reply, bench.now_ms) == []
    (send,) = [send for send in bench.advance(bench.config.forward_timeout_ms) if send.command.is_response]
    assert (send.peer, send.command.opaque) == (asker.id, request.opaque)
    assert ConsumerStatus.decode(send.command.body).consumer_table == {"c1": {queue: 2}}


def test_the_progress_of_one_consumer() -> None:
    """clientAddr selects one; the refusal for a group without members has Java's text."""
    bench = filled()
    ext = {"topic": "orders", "group": "g", "clientAddr": "c1"}
    (question,) = bench.tell(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
    assert question.command.ext == {"topic": "orders", "group": "g"}
    reply = bench.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext | {"clientAddr": "absent"})
    assert ConsumerStatus.decode(reply.body).consumer_table == {}
    reply = bench.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext | {"group": "absent"})
    assert (reply.code, reply.remark) == (1, "No Any Consumer online in the consumer group: [absent]")


@pytest.mark.parametrize(("language", "force"), [("JAVA", "true"), ("CPP", "true"), ("JAVA", "false")])
def test_resets_through_the_clients(language: str, force: str) -> None:
    """222 with useServerSideResetOffset=false sends members a 220 in the format of the requester's language."""
    bench = filled()
    set_lines(bench, "useServerSideResetOffset=false")
    bench.broker.topics.update(TopicConfig("orders", 1, 1), bench.now_ms)
    ext = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": force}
    request = bench.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, language=language)
    order, reply = bench.broker.handle(OTHER, request, bench.now_ms)
    assert (order.peer, order.command.code, order.command.is_oneway) == (PEER.id, 220, True)
    table = {MessageQueue("orders", "broker-a", 0): 3 if force == "true" else 2}
    assert QueueOffsets.decode(order.command.body).offset_table == table
    assert QueueOffsets.decode(reply.command.body).offset_table == table
    assert order.command.body.startswith(b'{"offsetTable":[' if language == "CPP" else b'{"offsetTable":{{')
    assert bench.broker.offsets.get("g", "orders", 0) == 2, "the client commits it, not the broker"


def test_resets_through_clients_that_are_not_there() -> None:
    """As on a 4.9 broker: 206 without members, 17 without the topic, 1 without an offset."""
    bench = filled()
    set_lines(bench, "useServerSideResetOffset=false")
    ext = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true"}
    assert bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 1  # queue 1 was never consumed
    bench.broker.topics.update(TopicConfig("orders", 1, 1), bench.now_ms)
    assert bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext | {"topic": "absent"}).code == 17
    bench.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"})
    assert bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 206


# The store.


def test_queue_entries() -> None:
    """321 returns the entries of the queue, and whether the group's tags match them."""
    bench = filled()
    bench.send(TAGS="B")
    ext = {"topic": "orders", "queueId": "0", "index": "2", "count": "5", "consumerGroup": "g"}
    found = ConsumeQueueEntries.decode(bench.ask(RequestCode.QUERY_CONSUME_QUEUE, ext).body)
    assert (found.min_queue_index, found.max_queue_index, found.filter_data) == (0, 4, "null")
    assert [(entry.tags_code, entry.eval) for entry in found.queue_data] == [
        (tags_code("A"), True),
        (tags_code("B"), False),
    ]
    reply = bench.ask(RequestCode.QUERY_CONSUME_QUEUE, ext | {"index": "9", "consumerGroup": "absent"})
    assert (reply.code, reply.remark) == (0, "Index 9 of 0@orders is not exist!")
    assert ConsumeQueueEntries.decode(reply.body).filter_data == "absent@orders is not online!"
    reply = bench.ask(RequestCode.QUERY_CONSUME_QUEUE, ext | {"queueId": "3"})
    assert (reply.code, reply.remark) == (1, "3@orders is not exist!")


def test_topics_that_are_gone_leave_no_queues() -> None:
    """316 removes queues without a topic and keeps the broker's own."""
    bench = filled()
    bench.broker.delays._store.queue("SCHEDULE_TOPIC_XXXX", 0)
    bench.broker.topics.delete("orders", bench.now_ms)
    assert bench.store.topics() == ["SCHEDULE_TOPIC_XXXX", "orders"]
    assert bench.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert bench.store.topics() == ["SCHEDULE_TOPIC_XXXX"]


def test_cleaning_is_asked_of_the_store() -> None:
    """A store without anything to clean answers 306 and 329 with 0."""
    bench = filled()
    assert bench.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    assert bench.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    assert bench.store.max_offset("orders", 0) == 3


def test_cold_data() -> None:
    """2001 to 2004: thresholds are stored and returned; only the kernel reads ahead."""
    bench = Bench()
    assert bench.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=b"g=5\nh=6\n").code == 0
    assert bench.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=b"g=much\n").code == 29
    assert bench.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"h").code == 0
    info = ColdDataInfo.decode(bench.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO).body)
    assert (info.config_table, info.global_cold_read_threshold) == ({"g": 5}, 104_857_600)
    assert bench.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"}).code == 0
    assert bench.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"}).code == 29


def test_rocksdb_is_refused_in_words() -> None:
    """354 and 355 are refused with the reason."""
    for code in (354, 355):
        reply = Bench().ask(code)
        assert reply.code == 3
        assert "RocksDB" in (reply.remark or "")


# Replicas.


def test_a_master_without_slaves() -> None:
    """905 to 908, 1007 and 1008 as 5.3.3 answers them without a controller."""
    bench = filled()
    status = HaRuntimeInfo.decode(bench.ask(RequestCode.GET_BROKER_HA_STATUS).body)
    assert (status.master, status.master_commit_log_max_offset) == (True, bench.store.end_offset)
    places = bench.ask(RequestCode.EXCHANGE_BROKER_HA_INFO).ext
    assert places["masterHaAddress"] == "127.0.0.1:10912"
    assert bench.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {"masterHaAddress": "1.1.1.1:1"}).ext == {}
    assert bench.ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "0"}).code == 0
    assert bench.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "0"}).code == 0
    reply = bench.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
    assert (reply.code, reply.remark) == (1, "this request only for controllerMode ")
    reply = bench.ask(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    assert reply.code == 3


def test_the_epochs_of_a_log() -> None:
    """1007 in controller mode: the bytes of a broker of 5.3.3, with the id and the end of this one."""
    bench = Bench(
        controller_mode=True,
        controller_addresses="127.0.0.1:1",
        async_learner=True,
        broker_role="SLAVE",
        broker_id=2,
    )
    bench.broker.replicas.epochs = decode_epochs(b"2\n2000752627\n1-0\n5-654\n")
    expected = (
        b'{"brokerId":2,"brokerName":"broker-a","clusterName":"DefaultCluster","epochList":[{"endOffset":654,"epoch":1,'
        b'"startOffset":0},{"endOffset":9223372036854775807,"epoch":5,"startOffset":654}],"maxOffset":0}'
    )
    assert bench.ask(RequestCode.GET_BROKER_EPOCH_CACHE).body == expected
    bench.broker.replicas.epochs = decode_epochs(b"0\n0\n")
    assert b'"epochList":[]' in bench.ask(RequestCode.GET_BROKER_EPOCH_CACHE).body


def test_a_master_tells_how_far_its_slaves_are_behind() -> None:
    """907 has the id of a slave in controller mode, and the time since it had the whole log; 0: it has it now."""
    bench = Bench(controller_mode=True, controller_addresses="127.0.0.1:1", broker_role="SYNC_MASTER")
    epochs = decode_epochs(b"0\n0\n")
    epochs.begin(Epoch(1, 0))
    slave = EpochSender(bench.store, bench.config, bench.now_ms, epochs=epochs, confirm_offset=lambda: 0)
    slave.broker_id, slave.acked_offset = 3, 0
    bench.broker.replicas.add("10.0.0.1:5", slave)
    for expected_ms in (0, 1_500):
        bench.now_ms += 1_500
        status = HaRuntimeInfo.decode(bench.ask(RequestCode.GET_BROKER_HA_STATUS).body)
        (connection,) = status.ha_connection_info
        assert (connection["brokerId"], connection["lagMs"]) == (3, expected_ms)
        slave.caught_up_ms = bench.now_ms
        bench.send("T", b"x")


def test_runtime_figures() -> None:
    """28 reports the unindexed part of the log and the free space as text; a memory store has neither."""
    bench = filled()
    table = KvTable.decode(bench.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert table["dispatchBehindBytes"] == str(bench.store.behind_size) != "0"
    assert table["commitLogDirCapacity"] == "Total : 0 B, Free : 0 B."
    assert [_size_text(size) for size in (1023, 1024, 270_582_939_648)] == ["1023 B", "1.0 KiB", "252.0 GiB"]


def test_counts_without_the_brokers_own() -> None:
    """315 sums the broker's counts with and without system topics."""
    bench = Bench()
    for topic in ("orders", "TBW102", "orders"):
        bench.send(topic)
    bench.pull()
    bench.advance(20_000)
    sums = {}
    for name in ("BROKER_PUT_NUMS", "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"):
        ext = {"statsName": name, "statsKey": "DefaultCluster"}
        sums[name] = BrokerStatsData.decode(bench.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext).body).stats_minute.sum
    assert list(sums.values()) == [3, 2, 2]


@pytest.mark.parametrize("key", sorted(CHANGEABLE))
def test_a_start_and_a_change_take_the_same_values(key: str) -> None:
    """Request 25 accepts exactly the values that broker.conf accepts."""
    entry = CHANGEABLE[key]
    kind = CommitLogConfig if entry.name in settings_of(Retention) else BrokerConfig
    for text in ("0", "1", "-1", "23", "24", "95", "100", "101", "x", "true", "", "POP", "04;05"):
        try:
            given: dict[str, Any] = {entry.name: entry.unit.read(text)}
            kind(**given)
            starts = True
        except (InvalidParameter, ValueError):
            starts = False
        changes = set_lines(Bench(), f"{key}={text}").code == 0
        assert (text, changes) == (text, starts)
