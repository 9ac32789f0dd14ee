"""Changes of topics and groups that are saved together: nothing is acknowledged before it is durable, or lost after."""

import gc
import random

import pytest

from mqtrail.broker import USERS_FILE, Broker, Lane
from mqtrail.broker.files import DELAYS_FILE, FILTERS_FILE, TIMER_METRICS_FILE
from mqtrail.broker.timing.counts import SAVE_MS
from mqtrail.store import ConfigFileStore, MemoryDisk, StoreFull
from mqtrail.wire import (
    ConsumerData,
    CreateTopicHeader,
    HeartbeatData,
    Perm,
    PopHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SendMessageHeader,
    SubscriptionData,
    TopicConfig,
    UserInfo,
    dumps,
    dumps_fastjson,
    encode_command,
    encode_properties,
)
from tests.store.hard_disk import HardDisk, PowerCut

from .helpers import NOW_MS, OTHER, PEER, Bench


class Gathering(Bench):
    """A broker whose tables are saved by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.files = ConfigFileStore(self.disk, gathers=True)
        self.broker = self._new_broker()

    def create(self, topic: str, queues: int = 4) -> Send:
        ext = CreateTopicHeader(topic, queues, queues, int(Perm.READ | Perm.WRITE)).to_ext()
        (send,) = self.tell(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        return send

    def save(self) -> None:
        job = self.files.begin_save()
        assert job is not None
        job()
        self.files.end_save()


def test_what_follows_from_a_change_waits_for_it() -> None:
    """A query of a topic that is not saved yet waits; a query of another topic does not."""
    bench = Gathering()
    bench.create("old")
    bench.save()
    made = bench.create("new")
    assert made.after_tables > bench.files.settled
    assert bench.create("new").after_tables == made.after_tables, "it is there already, and may go with a crash"
    assert bench.create("old").after_tables == 0
    (read,) = bench.tell(RequestCode.GET_TOPIC_CONFIG, {"topic": "new"})
    assert read.after_tables == made.after_tables
    bench.save()
    assert bench.create("new").after_tables == 0


def test_changes_gather_while_one_save_runs() -> None:
    """A change made during the save does not count as saved."""
    bench = Gathering()
    first = bench.create("first")
    job = bench.files.begin_save()
    assert job is not None
    second = bench.create("second")
    job()
    bench.files.end_save()
    assert first.after_tables <= bench.files.settled < second.after_tables
    assert "second" not in str(ConfigFileStore(bench.disk).load("topics.json"))
    bench.save()
    assert second.after_tables <= bench.files.settled
    assert bench.files.begin_save() is None


def test_a_failed_save_undoes_everything_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values return to the state before all waiting changes, and the next save writes the files so."""
    bench = Gathering()
    bench.create("kept", 4)
    bench.save()
    bench.create("kept", 5)
    bench.create("kept", 6)
    bench.create("made")
    bench.heartbeat(group="g")
    version = bench.broker.topics.version

    def full(path: str, data: bytes) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(bench.disk, "replace", full)
    job = bench.files.begin_save()
    assert job is not None
    with pytest.raises(StoreFull):
        job()
    bench.files.end_save(failed=True)
    monkeypatch.undo()
    kept = bench.broker.topics.get("kept")
    assert kept == TopicConfig("kept", 4, 4)
    assert "made" not in bench.broker.topics
    assert bench.broker.groups.get("g") is None
    assert bench.broker.topics.version > version, "what the lane remembers is gone"
    bench.save()
    saved = ConfigFileStore(bench.disk).load("topics.json")
    assert saved is not None
    assert TopicConfig("kept", 4, 4).members() in saved["topicConfigTable"].values()


def test_the_lane_leaves_a_topic_alone_until_it_is_saved() -> None:
    """The lane does not acknowledge a message in a topic that a crash would remove."""
    bench = Gathering()
    lane = Lane(bench.broker)
    bench.create("old")
    bench.save()
    bench.create("new")

    def send(topic: str) -> tuple[bool, list[Send]]:
        ext = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(NOW_MS), "h": "0"}
        ext |= {"i": "UNIQ_KEY\x01A1", "j": "0", "k": "false", "m": "false"}
        data = encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, b"x", opaque=7))
        served = lane.process(PEER, data, 0, len(data), NOW_MS)
        return bool(served.replies), served.sends

    assert send("old") == (True, [])
    replied, (waits,) = send("new")
    assert (replied, waits.command.code) == (False, 0)
    assert waits.after_tables > bench.files.settled
    bench.save()
    assert send("new") == (True, [])


def test_power_loss_in_any_call_forgets_nothing_that_was_acknowledged() -> None:
    """A power loss during any call to the disk keeps everything acknowledged, and leaves readable files."""
    cut_at = 0
    while True:
        cut_at += 1
        bench = Gathering()
        disk = HardDisk(random.Random(cut_at))
        files = ConfigFileStore(disk, gathers=True)
        bench.files = files
        bench.broker = Broker(bench.config, bench.store, files, unique_id=lambda: "id", now_ms=NOW_MS)
        disk.power_cut_at = cut_at
        acknowledged: list[str] = []
        waiting: list[tuple[str, int]] = []
        try:
            for number in range(6):
                for topic in (f"a{number}", f"b{number}"):
                    waiting.append((topic, bench.create(topic).after_tables))
                bench.heartbeat(group=f"g{number}")
                bench.save()
                acknowledged += [topic for topic, of in waiting if of <= files.settled]
            ended = True
        except PowerCut:
            ended = False
        disk.stop(power=True)
        disk.power_cut_at = -1
        again = Broker(bench.config, bench.store, ConfigFileStore(disk), unique_id=lambda: "id", now_ms=NOW_MS)
        assert [topic for topic in acknowledged if topic not in again.topics] == [], f"power cut in call {cut_at}"
        if ended:
            assert len(set(acknowledged)) == 12
            return


def test_the_file_is_what_it_would_be_if_written_whole() -> None:
    """Entries encoded one by one give the same bytes as the whole table."""
    one = Gathering()
    for number in (3, 1, 2):
        one.create(f"t{number}")
    one.heartbeat(group="g")
    one.broker.groups.forbid("g", "t1", True, NOW_MS)
    one.tell(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t2"})
    one.save()
    whole = ConfigFileStore(one.disk)
    for name in ("topics.json", "subscriptionGroup.json"):
        written = one.disk.read(f"config/{name}")
        document = whole.load(name)
        assert document is not None
        whole.save(name, document)
        assert one.disk.read(f"config/{name}") == written


def test_offsets_are_saved_off_the_loop() -> None:
    """The tick only notes the offsets: no reply waits, the loop writes nothing, and each entry is encoded once."""
    bench = Gathering()
    bench.create("orders")
    bench.save()
    offsets = bench.broker.offsets
    for number in range(300):
        offsets.commit(f"g{number:03}", "orders", number % 3, number)
    sends = bench.broker.tick(NOW_MS + 5_000)
    assert [send.after_tables for send in sends if send.after_tables] == []
    assert bench.files.load("consumerOffset.json") is None
    offsets.commit("g000", "orders", 0, 77)  # after it was noted
    bench.save()
    document = bench.files.load("consumerOffset.json")
    assert document is not None
    assert len(document["offsetTable"]) == 300
    assert document["offsetTable"]["orders@g000"] == {0: 0}
    bench.broker.tick(NOW_MS + 10_000)
    bench.save()
    assert bench.disk.read("config/consumerOffset.json") == dumps_fastjson(offsets.table().members())


def test_a_save_encodes_the_offsets_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work does not depend on the number of groups."""
    bench = Gathering()
    offsets = bench.broker.offsets
    for number in range(300):
        offsets.commit(f"g{number:03}", "orders", 0, number)
    bench.broker.tick(NOW_MS + 5_000)
    bench.save()
    encoded: list[object] = []
    monkeypatch.setattr("mqtrail.broker.tables.offsets.dumps", lambda name: encoded.append(name) or dumps(name))
    offsets.commit("g007", "orders", 0, 77)
    bench.broker.tick(NOW_MS + 10_000)
    bench.save()
    assert encoded == ["orders@g007"]
    assert bench.disk.read("config/consumerOffset.json") == dumps_fastjson(offsets.table().members())


def test_a_failed_save_of_offsets_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was acknowledged, so nothing is undone; the newest offsets are saved once the disk works."""
    bench = Gathering()
    offsets = bench.broker.offsets
    offsets.commit("g", "orders", 0, 5)
    offsets.commit("h", "orders", 0, 6)
    bench.broker.tick(NOW_MS + 5_000)

    def full(path: str, data: bytes) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(bench.disk, "replace", full)
    job = bench.files.begin_save()
    assert job is not None
    with pytest.raises(StoreFull):
        job()
    offsets.commit("g", "orders", 0, 9)
    bench.broker.tick(NOW_MS + 10_000)
    bench.files.end_save(failed=True)
    monkeypatch.undo()
    assert offsets.get("g", "orders", 0) == 9
    bench.save()
    document = bench.files.load("consumerOffset.json")
    assert document is not None
    assert document["offsetTable"] == {"orders@g": {0: 9}, "orders@h": {0: 6}}
    assert bench.files.begin_save() is None


def test_offsets_that_went_are_saved_as_gone() -> None:
    """Deleting a topic removes its entries; the others are not encoded again."""
    bench = Gathering()
    offsets = bench.broker.offsets
    offsets.commit("g", "orders", 0, 5)
    offsets.commit("g", "bills", 1, 6)
    bench.broker.tick(NOW_MS + 5_000)
    bench.save()
    offsets.forget_topic("orders")
    bench.broker.tick(NOW_MS + 10_000)
    bench.save()
    document = bench.files.load("consumerOffset.json")
    assert document is not None
    assert document["offsetTable"] == {"bills@g": {1: 6}}


def test_the_first_pops_wait_for_what_a_start_needs() -> None:
    """The start of the logs is durable before the first pop, or any pop meanwhile, is answered."""
    bench = Gathering()
    bench.create("orders", 1)
    bench.heartbeat(group="g")
    bench.save()
    bench.send()
    bench.send()

    def popped() -> Send:
        header = PopHeader("g", "orders", 0, 1, 60_000, 0, NOW_MS, 0)
        (send,) = [send for send in bench.tell(RequestCode.POP_MESSAGE, header.to_ext()) if send.command.is_response]
        assert send.command.code == 0
        return send

    first, second = popped(), popped()
    assert first.after_tables == second.after_tables > bench.files.settled
    bench.save()
    bench.send()
    assert popped().after_tables == 0


class Stored(Gathering):
    """One topic with a message and an offset, all saved."""

    def __init__(self) -> None:
        super().__init__()
        self.create("orders", 1)
        self.save()
        self.send()
        self.broker.offsets.commit("g", "orders", 0, 1)

    def delete(self) -> Send:
        (send,) = self.tell(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert send.command.code == 0
        return send


def test_messages_of_a_deleted_topic_go_when_that_is_durable() -> None:
    """Until the deletion is durable, the files stay, the topic cannot be created again, and the reply waits."""
    bench = Stored()
    answer = bench.delete()
    assert answer.after_tables > bench.files.settled
    assert bench.store.topics() == ["orders"]
    assert bench.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert bench.store.max_offset("orders", 0) == 1
    refused = bench.send()
    assert (refused.code, "try again" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    bench.save()
    assert answer.after_tables <= bench.files.settled
    assert bench.store.topics() == []
    assert bench.broker.offsets.get("g", "orders", 0) is None
    assert bench.send().ext["queueOffset"] == "0"


def test_a_deletion_that_cannot_be_saved_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is restored with its messages and offsets, and can be used and deleted again."""
    bench = Stored()
    bench.delete()

    def full(path: str, data: bytes) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(bench.disk, "replace", full)
    job = bench.files.begin_save()
    assert job is not None
    with pytest.raises(StoreFull):
        job()
    bench.files.end_save(failed=True)
    monkeypatch.undo()
    bench.save()
    assert "orders" in bench.broker.topics
    assert bench.broker.offsets.get("g", "orders", 0) == 1
    assert bench.send().ext["queueOffset"] == "1"
    bench.delete()
    bench.save()
    assert bench.store.topics() == []


def test_an_error_of_what_follows_a_save_stops_nothing_else() -> None:
    """Everything else that waits for the save is done, then the error is raised."""
    files = ConfigFileStore(MemoryDisk(), gathers=True)
    done: list[str] = []

    def fail() -> None:
        raise StoreFull("no room")

    for name, act in (("a", lambda: done.append("a")), ("b", fail), ("c", lambda: done.append("c"))):
        files.after(files.change(name, lambda: lambda: b"{}", lambda: None), act)
    job = files.begin_save()
    assert job is not None
    job()
    with pytest.raises(StoreFull):
        files.end_save()
    assert done == ["a", "c"]
    assert files.settled == 3


def test_users_and_policies_are_acknowledged_when_they_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes apply at once; a change that cannot be saved is undone, and no save runs inside the request."""
    bench = Gathering()
    users = bench.broker.access.auth.users
    if bench.files.begin_save() is not None:
        bench.files.end_save()
    user = UserInfo("u", "secret12", "Normal").encode()
    (made,) = bench.tell(RequestCode.AUTH_CREATE_USER, {"username": "u"}, user)
    assert (made.command.code, made.after_tables > bench.files.settled, "u" in users) == (0, True, True)
    assert ConfigFileStore(bench.disk).load(USERS_FILE) is None
    bench.save()
    assert ConfigFileStore(bench.disk).load(USERS_FILE) is not None
    entry = '{"resource":"Topic:t","actions":["PUB"],"decision":"ALLOW"}'
    policies = b'{"policies":[{"policyType":"CUSTOM","entries":[%b]}]}' % entry.encode()
    (granted,) = bench.tell(RequestCode.AUTH_CREATE_ACL, {"subject": "User:u"}, policies)
    assert (granted.command.code, granted.after_tables > bench.files.settled) == (0, True), granted
    (gone,) = bench.tell(RequestCode.AUTH_DELETE_USER, {"username": "u"})
    assert (gone.after_tables > bench.files.settled, "u" in users, bench.broker.access.auth.acls) == (True, False, {})
    version = bench.broker.access.version

    def full(path: str, data: bytes) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(bench.disk, "replace", full)
    job = bench.files.begin_save()
    assert job is not None
    with pytest.raises(StoreFull):
        job()
    bench.files.end_save(failed=True)
    assert ("u" in users, bench.broker.access.auth.acls) == (True, {})
    assert bench.broker.access.version > version


def test_no_table_is_written_in_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The saving thread encodes and writes filters, delay levels and timer counts too."""
    bench = Gathering()
    bench.send(DELAY="1")
    bench.send(TIMER_DELAY_MS="5000")
    subscription = SubscriptionData.build("DefaultCluster", "a > 1", "SQL92", sub_version=NOW_MS)
    data = HeartbeatData("c1", (), (ConsumerData("g", subscription_data_set=(subscription,)),))
    bench.ask(RequestCode.HEART_BEAT, body=data.encode())
    monkeypatch.setattr(bench.disk, "replace", None)
    bench.advance(SAVE_MS + 10_000)
    bench.store.flush()
    bench.advance(10_000)
    job = bench.files.begin_save()
    assert job is not None
    monkeypatch.undo()
    job()
    bench.files.end_save()
    for name in (FILTERS_FILE, DELAYS_FILE, TIMER_METRICS_FILE):
        assert ConfigFileStore(bench.disk).load(name) is not None, name


def test_a_pop_woken_by_the_fast_lane_waits_for_the_first_save() -> None:
    """A start reads the logs from their end at that save: without it the messages would be popped again."""
    bench = Gathering()
    bench.create("orders")
    bench.save()
    header = PopHeader("g", "orders", 0, 32, 60_000, 10_000, bench.now_ms, 0)
    assert bench.tell(RequestCode.POP_MESSAGE, header.to_ext()) == []
    properties = encode_properties({"UNIQ_KEY": "0" * 32, "WAIT": "true"})
    message = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=bench.now_ms, properties=properties)
    piece = encode_command(bench.request(RequestCode.SEND_MESSAGE_V2, message.to_ext_v2(), b"hi"))
    served = Lane(bench.broker).process(OTHER, piece, 0, len(piece), bench.now_ms)
    assert served.stored
    (answer,) = served.sends
    assert answer.peer == PEER.id
    assert answer.after_tables > bench.files.settled


@pytest.mark.slow
def test_topics_and_groups_do_not_lengthen_the_pauses_of_the_garbage_collector() -> None:
    """The garbage collector does not track their settings: otherwise full collections would take longer with larger
    tables."""
    bench = Gathering()
    bench.create("first")
    bench.heartbeat(group="first")
    bench.save()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(300):
        bench.create(f"t{number}")
        bench.broker.groups.require(f"g{number}", NOW_MS)
    bench.save()
    gc.collect()
    assert len(gc.get_objects()) - before < 100
