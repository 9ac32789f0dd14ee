"""Topics, groups and offsets: their files, and their state after a restart."""

from collections.abc import Callable

import pytest

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.broker.access.auth import Auth
from mqtrail.broker.config import QUEUES_MAX
from mqtrail.broker.files import next_version
from mqtrail.broker.tables.groups import GroupTable
from mqtrail.broker.tables.offsets import OffsetTable
from mqtrail.broker.tables.topics import TopicTable
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore, StoreError
from mqtrail.wire import DataVersion, InvalidParameter, Perm, SystemError_, TopicConfig

from ..helpers import NOW_MS, Bench, at_once


def files() -> ConfigFileStore:
    return ConfigFileStore(MemoryDisk())


def test_topics_json_has_apaches_shape() -> None:
    """Apache RocketMQ can read the file that has a topic created by a send."""
    bench = Bench()
    bench.send("orders")
    document = bench.files.load("topics.json")
    assert document is not None
    assert document["topicConfigTable"]["orders"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert document["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS}


def test_tables_survive_a_restart() -> None:
    """A broker that starts again knows its topics, groups, offsets and their versions."""
    bench = Bench()
    bench.send("orders")
    bench.heartbeat(topics={"orders": "*"})
    (queue_id,) = bench.store.queue_ids("orders")
    bench.broker.offsets.commit("g", "orders", queue_id, 1)
    bench.broker.offsets.commit("h", "orders", queue_id, 7)
    version = bench.broker.topics.data_version
    bench.restart()
    assert "orders" in bench.broker.topics
    assert "%RETRY%g" in bench.broker.topics
    assert bench.broker.groups.get("g") is not None
    assert bench.broker.offsets.get("g", "orders", queue_id) == 1
    assert bench.broker.offsets.get("h", "orders", queue_id) == 1, "past the queue's end, new messages would be skipped"
    assert bench.broker.topics.data_version == version


def test_what_cannot_be_saved_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an automatically created topic or group cannot be saved, it is not created: a restart must not lose it."""
    bench = Bench()

    def refuse(path: str, data: bytes) -> None:
        raise OSError("the disk fails")

    monkeypatch.setattr(bench.disk, "replace", refuse)
    with pytest.raises(OSError, match="the disk fails"):
        bench.broker.groups.find("g", NOW_MS)
    with pytest.raises(OSError, match="the disk fails"):
        bench.broker.topics.create_own("%RETRY%g", 1, Perm.READ | Perm.WRITE, NOW_MS)
    assert bench.broker.groups.get("g") is None
    assert "%RETRY%g" not in bench.broker.topics
    monkeypatch.undo()
    bench.broker.groups.find("g", NOW_MS)
    bench.broker.topics.create_own("%RETRY%g", 1, Perm.READ | Perm.WRITE, NOW_MS)
    bench.restart()
    assert bench.broker.groups.get("g") is not None
    assert "%RETRY%g" in bench.broker.topics


def test_moved_offsets_are_saved_once_durable() -> None:
    """Offsets that depend on a record are saved when the record is durable, with their value of that time; others at
    once."""
    kept = files()
    table = OffsetTable(kept, NOW_MS)
    table.commit("g", "T", 0, 3)
    table.move("g", "T", 0, 5)
    table.move("g", "T", 1, 1)
    table.move("h", "T", 0, 2)
    table.commit("h", "T", 0, 9)

    def saved() -> dict[str, dict[int, int]]:
        return OffsetTable(kept, NOW_MS).table().offset_table

    table.save(NOW_MS, 100, 60)
    assert saved() == {"T@g": {0: 3}, "T@h": {0: 9}}
    table.move("g", "T", 0, 7)
    table.save(NOW_MS, 200, 150)
    assert saved() == {"T@g": {0: 5, 1: 1}, "T@h": {0: 9}}
    assert table.get("g", "T", 0) == 7
    table.save(NOW_MS, 200, 200)
    assert saved() == {"T@g": {0: 7, 1: 1}, "T@h": {0: 9}}
    table.move("g", "T", 0, 8)
    at_once(table.forget_group("g"))
    table.save(NOW_MS, 300, 300)
    assert saved() == {"T@h": {0: 9}}


def test_offsets_that_were_cut_are_saved_at_once() -> None:
    """Otherwise they would be past the queue's end after another kill, and newer messages would be skipped."""
    bench = Bench()
    bench.broker.offsets.commit("g", "orders", 0, 10)
    bench.broker.save(bench.now_ms)
    bench.broker = bench._new_broker()
    assert bench.files.report == [
        "consumerOffset.json: found 1 offsets beyond the end of their queues, such as 10 of orders@g queue 0, whose "
        "end is 0: set to the end"
    ]
    assert OffsetTable(bench.files, NOW_MS).get("g", "orders", 0) == 0
    for _ in range(5):
        bench.send()
    bench.broker = bench._new_broker()
    assert bench.broker.offsets.get("g", "orders", 0) == 0


def test_a_delay_level_beyond_its_end_is_reported_and_saved() -> None:
    """Its messages up to the end count as delivered; the log says so once, and the file has the end then."""
    bench = Bench()
    bench.send(DELAY="1")
    bench.files.save("delayOffset.json", {"offsetTable": {1: 7, 2: 0, 3: 9}})
    bench.broker = bench._new_broker()
    found = [line.partition(" delay level ") for line in bench.files.report]
    assert [(start, end.partition(":")[0]) for start, _, end in found] == [
        ("delayOffset.json: found 7 of", "1, expected at most 1, the end of its queue"),
        ("delayOffset.json: found 9 of", "3, expected at most 0, the end of its queue"),
    ]
    bench.store.flush()
    bench.advance(20_000)
    bench.send(DELAY="1")
    bench.advance(20_000)
    bench.files.report.clear()
    bench.broker = bench._new_broker()
    assert bench.files.report == []
    assert bench.broker.delays.positions() == {1: (2, 2)}


def test_many_saves_before_a_flush() -> None:
    """The states that wait for a flush are bounded: the newest ones wait together."""
    kept = files()
    table = OffsetTable(kept, NOW_MS)
    for number in range(100):
        table.move("g", "T", 0, number)
        table.save(NOW_MS, number, -1)
    assert OffsetTable(kept, NOW_MS).get("g", "T", 0) is None
    table.save(NOW_MS, 100, 99)
    assert OffsetTable(kept, NOW_MS).get("g", "T", 0) == 99


def test_offsets_of_apache_are_read() -> None:
    """A 4.9 consumerOffset.json, with bare queue ids and no version, is read."""
    disk = MemoryDisk()
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"T@g":{0:10,1:3}}}')
    table = OffsetTable(ConfigFileStore(disk), NOW_MS)
    assert table.queues("g", "T") == {0: 10, 1: 3}
    assert (at_once(table.topics_of("g")), at_once(table.groups_of("T"))) == (["T"], ["g"])


def test_a_table_of_another_shape_is_named() -> None:
    """A config file that is no table of topics stops the start, with its name and the remedy."""
    disk = MemoryDisk()
    disk.replace("config/topics.json", b'{"topicConfigTable":[1]}')
    with pytest.raises(StoreError, match=r"topics\.json: .*repair one of them by hand"):
        TopicTable(BrokerConfig(), ConfigFileStore(disk), NOW_MS)


def a_broker(kept: ConfigFileStore) -> Broker:
    return Broker(BrokerConfig(), MemoryStore(), kept, unique_id=str, now_ms=NOW_MS)


TABLES = (
    ("topics.json", "topicConfigTable", lambda kept: TopicTable(BrokerConfig(), kept, NOW_MS)),
    ("subscriptionGroup.json", "subscriptionGroupTable", lambda kept: GroupTable(BrokerConfig(), kept, NOW_MS)),
    ("consumerOffset.json", "offsetTable", lambda kept: OffsetTable(kept, NOW_MS)),
    ("users.json", "userTable", lambda kept: Auth(BrokerConfig(), kept, lambda: None)),
    ("acls.json", "aclTable", lambda kept: Auth(BrokerConfig(), kept, lambda: None)),
    ("delayOffset.json", "offsetTable", a_broker),
    ("timermetrics", "timingCount", a_broker),
    ("consumerFilter.json", "filterDataByTopic", a_broker),
    ("consumerOrderInfo.json", "table", a_broker),
    ("messageRequestMode.json", "messageRequestModeMap", a_broker),
)


@pytest.mark.parametrize("text", ["{}", '{"dataVersion":{"counter":1}}', '{"%s":null}'])
@pytest.mark.parametrize(("name", "member", "load"), TABLES)
def test_a_document_without_its_table_is_not_an_empty_table(
    name: str, member: str, load: Callable[[ConfigFileStore], object], text: str
) -> None:
    """Every save writes the table: a file without it would lose all topics, groups, offsets or users unnoticed."""
    disk = MemoryDisk()
    disk.replace(f"config/{name}", text.replace("%s", member).encode())
    with pytest.raises(StoreError, match=f"{name}: found no {member}, expected the table; repair one of them by hand"):
        load(ConfigFileStore(disk))


@pytest.mark.parametrize("text", ["{}", '{"%s":7}', '{"%s":'])
@pytest.mark.parametrize(("name", "member", "load"), TABLES)
def test_a_document_that_is_no_table_is_replaced_by_its_bak(
    name: str, member: str, load: Callable[[ConfigFileStore], object], text: str
) -> None:
    """Each table is taken from the state before the last save, and reported; the next save keeps the good .bak."""
    disk = MemoryDisk()
    good, bad = f'{{"{member}":{{}}}}'.encode(), text.replace("%s", member).encode()
    disk.replace(f"config/{name}", bad)
    disk.replace(f"config/{name}.bak", good)
    kept = ConfigFileStore(disk)
    load(kept)
    (found,) = (line for line in kept.report if name in line)
    assert found.startswith(f"config/{name}: ")
    assert found.endswith(f": using config/{name}.bak, the state before the last save")
    disk.replace(f"config/{name}", bad)
    kept.save(name, {member: {}, "more": 1})
    assert disk.read(f"config/{name}.bak") == good


@pytest.mark.parametrize("number", [-7, QUEUES_MAX + 1, (1 << 63) - 1])
def test_a_topic_with_impossible_queues_stops_the_start(number: int) -> None:
    """Clients create as many queues as a route claims, and the broker's requests iterate over them."""
    disk = MemoryDisk()
    topic = f'{{"topicName":"orders","readQueueNums":{number},"writeQueueNums":4}}'
    disk.replace("config/topics.json", f'{{"topicConfigTable":{{"orders":{topic}}}}}'.encode())
    with pytest.raises(InvalidParameter, match=f"topics.json: found read_queue_nums {number} of topic orders"):
        TopicTable(BrokerConfig(), ConfigFileStore(disk), NOW_MS)


def test_impossible_offsets_are_left_out_and_reported() -> None:
    """Clients treat a negative offset as none; keys without topic@group are ignored."""
    disk = MemoryDisk()
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"T@g":{0:-7,1:3},"T":{0:1}}}')
    kept = ConfigFileStore(disk)
    assert OffsetTable(kept, NOW_MS).queues("g", "T") == {1: 3}
    assert [line.split(",")[0] for line in kept.report] == [
        "consumerOffset.json: found {0: -7} of T@g",
        "consumerOffset.json: found 'T'",
    ]


def test_a_version_at_its_end_begins_anew() -> None:
    """A counter of 2^63 would make the file unreadable at the next start, so it restarts."""
    version = next_version(DataVersion(1, (1 << 63) - 1, 5), NOW_MS)
    assert version == DataVersion(NOW_MS, 0, 5)
    assert DataVersion.read(version.members()) == version


def test_offsets_are_saved_only_when_changed() -> None:
    """Without a commit, five seconds pass without a write."""
    bench = Bench()
    bench.advance(20_000)
    assert bench.files.load("consumerOffset.json") is None
    bench.broker.offsets.commit("g", "orders", 0, 1)
    bench.advance(5_000)
    document = bench.files.load("consumerOffset.json")
    assert document is not None
    assert document["offsetTable"] == {"orders@g": {"0": 1}} or document["offsetTable"] == {"orders@g": {0: 1}}


def test_every_change_of_topics_is_noticed() -> None:
    """Creating, changing and deleting a topic raise the version and request a registration; a repetition does not."""
    topics = TopicTable(BrokerConfig(), files(), NOW_MS)
    topics.changed = False
    seen = [topics.version]
    topics.update(TopicConfig("orders", 4, 4), NOW_MS)
    seen.append(topics.version)
    assert (list(topics.changed_names), topics.changed) == (["orders"], False)
    topics.update(TopicConfig("orders", 4, 4), NOW_MS)
    assert topics.version == seen[-1]
    assert topics.delete("orders", NOW_MS)
    assert not topics.delete("orders", NOW_MS)
    assert topics.version > seen[-1] > seen[0]
    assert topics.changed, "one topic less: only a whole registration can say that"


def test_a_first_send_takes_no_more_queues_than_the_template_has() -> None:
    """The client's number of queues is limited to TBW102's, and the INHERIT bit is not inherited."""
    topics = TopicTable(BrokerConfig(default_topic_queue_nums=2), files(), NOW_MS)
    made = topics.create_by_send("orders", "TBW102", 16, NOW_MS)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (2, 2, Perm.READ | Perm.WRITE)
    assert topics.create_by_send("more", "SELF_TEST_TOPIC", 4, NOW_MS) is None
    assert topics.create_by_send("more", "absent", 4, NOW_MS) is None


def test_topics_that_make_themselves_are_bounded() -> None:
    """A client that sends to ever new topics reaches a limit; the error names the setting."""
    topics = TopicTable(BrokerConfig(topics_max=12), files(), NOW_MS)
    number = 0
    while len(topics) < 12:
        topics.create_by_send(f"t{(number := number + 1)}", "TBW102", 1, NOW_MS)
    with pytest.raises(SystemError_, match="topics_max"):
        topics.create_by_send("one_more", "TBW102", 1, NOW_MS)
    topics.update(TopicConfig("by_hand", 1, 1), NOW_MS)


@pytest.mark.parametrize("nums", [-1, 70_000])
def test_absurd_queue_numbers_are_refused(nums: int) -> None:
    """A typo in a number does not fill the disk with queue files."""
    topics = TopicTable(BrokerConfig(), files(), NOW_MS)
    with pytest.raises(InvalidParameter, match="read_queue_nums"):
        topics.update(TopicConfig("orders", nums, 4), NOW_MS)


def test_auto_creation_follows_todays_setting() -> None:
    """A TBW102 saved with auto-creation on creates no topics once it is off."""
    kept = files()
    TopicTable(BrokerConfig(), kept, NOW_MS).update(TopicConfig("orders", 4, 4), NOW_MS)
    topics = TopicTable(BrokerConfig(auto_create_topic=False), kept, NOW_MS)
    assert topics.create_by_send("orders", "TBW102", 4, NOW_MS) is None


def test_system_names() -> None:
    """The cluster's and the broker's names and the trace topic are the broker's own."""
    topics = TopicTable(BrokerConfig(trace_topic_enable=True, trace_topic="my_trace"), files(), NOW_MS)
    for name in ("TBW102", "DefaultCluster", "broker-a", "my_trace", "rmq_sys_x"):
        assert topics.is_system(name)
        with pytest.raises(InvalidParameter, match="conflict with system topic"):
            topics.update(TopicConfig(name, 1, 1), NOW_MS)
    assert not topics.is_system("orders")


def test_groups_make_themselves_only_where_they_may() -> None:
    """Without auto-creation only RocketMQ's own groups are created automatically."""
    groups = GroupTable(BrokerConfig(auto_create_group=False), files(), NOW_MS)
    assert groups.find("g", NOW_MS) is None
    assert groups.find("CID_RMQ_SYS_x", NOW_MS) is not None
    with pytest.raises(InvalidParameter):
        GroupTable(BrokerConfig(), files(), NOW_MS).find("g" * 121, NOW_MS)
    with pytest.raises(SystemError_, match="groups_max"):
        GroupTable(BrokerConfig(groups_max=8), files(), NOW_MS).find("g", NOW_MS)


def test_a_reset_voids_commits_until_it_is_taken() -> None:
    """The reset applies to the next pull of the queue, once."""
    table = OffsetTable(files(), NOW_MS)
    table.reset("g", "T", 0, 5)
    assert table.is_reset("g", "T", 0)
    assert (table.take_reset("g", "T", 1), table.take_reset("g", "T", 0), table.take_reset("g", "T", 0)) == (
        None,
        5,
        None,
    )
    assert not table.is_reset("g", "T", 0)
    assert table.get("g", "T", 0) == 5


def test_forgetting() -> None:
    """A deleted topic or group leaves no offsets behind."""
    table = OffsetTable(files(), NOW_MS)
    for group in ("g", "h"):
        for topic in ("T", "U"):
            table.commit(group, topic, 0, 1)
            table.note_pull(group, topic, 0, 2)
    table.forget_topic("T")
    at_once(table.forget_group("h"))
    assert list(table) == [("g", "U")]
    assert table.pulled("g", "T", 0) is None


def test_offsets_of_a_deleted_topic_are_gone_at_once() -> None:
    """Entries that are still to be freed do not count, and a new topic of the same name keeps all its own."""
    kept = files()
    table = OffsetTable(kept, NOW_MS)
    for number in range(4):
        for topic in ("T", "U"):
            table.commit(f"g{number}", topic, 0, 1)
            table.note_pull(f"g{number}", topic, 0, 2)
    table.reset("g3", "T", 0, 5)
    table.move("g2", "T", 1, 5)
    table.forget_topic("T")
    assert table.is_forgetting
    assert [name for name, _ in table.entries(sorted([*table, ("g1", "T")]))] == [f"U@g{number}" for number in range(4)]
    assert list(table.table().offset_table) == [f"U@g{number}" for number in range(4)]
    assert {topic for _, topic, _, _ in table.pulled_positions()} == {"U"}
    assert (at_once(table.groups_of("T")), at_once(table.topics_of("g0"))) == ([], ["U"])
    assert (table.get("g0", "T", 0), table.queues("g1", "T"), table.pulled("g1", "T", 0)) == (None, {}, None)
    assert (table.is_reset("g3", "T", 0), table.take_reset("g3", "T", 0)) == (False, None)
    table.commit("g2", "T", 0, 7)
    table.note_pull("new", "T", 0, 8)
    while table.is_forgetting:
        table.forget_some()
    assert (at_once(table.groups_of("T")), table.queues("g2", "T")) == (["g2"], {0: 7})
    assert table.pulled("new", "T", 0) == 8
    assert list(table.table().offset_table) == ["U@g0", "U@g1", "T@g2", "U@g2", "U@g3"]
    table.save(NOW_MS, 100, 100)
    assert list(OffsetTable(kept, NOW_MS).table().offset_table) == ["U@g0", "U@g1", "T@g2", "U@g2", "U@g3"]


def test_offsets_are_found_by_group_and_by_topic() -> None:
    """A look-up visits no entries of others, also after deletions and after a restart."""
    bench = Bench()
    offsets = bench.broker.offsets
    for group, topic in (("g", "a"), ("g", "b"), ("h", "a"), ("b@g", "a")):
        offsets.commit(group, topic, 0, 1)
    offsets.move("g", "c", 0, 1)
    offsets.note_pull("g", "pulled", 0, 1)
    assert (at_once(offsets.topics_of("g")), at_once(offsets.groups_of("a"))) == (["a", "b", "c"], ["g", "h"])
    assert [name for name, _ in offsets.entries(sorted(offsets))] == ["a@b@g", "a@g", "b@g", "c@g", "a@h"]
    bench.store.flush()
    bench.restart()
    offsets = bench.broker.offsets
    assert (at_once(offsets.topics_of("g")), at_once(offsets.groups_of("a"))) == (["a", "b", "c"], ["g", "h"])
    offsets.forget_topic("a")
    assert (at_once(offsets.topics_of("g")), at_once(offsets.groups_of("a")), at_once(offsets.topics_of("h"))) == (
        ["b", "c"],
        [],
        [],
    )
    at_once(offsets.forget_group("g"))
    assert (at_once(offsets.topics_of("g")), list(offsets)) == ([], [])
    while offsets.is_forgetting:
        offsets.forget_some()
    assert (offsets._topics_of, offsets._groups_of) == ({}, {})
