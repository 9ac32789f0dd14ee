"""Small parts: held pulls, locks, clients, statistics, properties, settings."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.broker import BrokerConfig, properties_text
from mqtrail.broker.bounds import HELD_PEER_SHARE, HELD_SIZE_MAX
from mqtrail.broker.filter import TagFilter
from mqtrail.broker.properties import PropertyRules, with_real_queue
from mqtrail.broker.tables.clients import Client, ClientTable
from mqtrail.broker.tables.held import DUE_A_SLICE, Arrived, HeldPull, HeldPulls, QueueKey
from mqtrail.broker.tables.locks import LockTable
from mqtrail.broker.telemetry import statistics
from mqtrail.broker.telemetry.statistics import Statistics, StatKey
from mqtrail.wire import (
    ConsumerData,
    Host,
    InvalidParameter,
    MessageIllegal,
    MessageQueue,
    Peer,
    PeerId,
    RemotingCommand,
    SubscriptionData,
    SystemBusy,
    conf_keys,
    decode_properties,
    encode_properties,
)

from .helpers import NOW_MS, OTHER, PEER

QUEUE = ("T", 0)


def held(
    peer: Peer = PEER, *, offset: int = 0, codes: frozenset[int] | None = None, deadline_ms: int = 100
) -> HeldPull:
    return HeldPull(peer, RemotingCommand(11), QUEUE, offset, None if codes is None else TagFilter(codes), deadline_ms)


def woken(pulls: HeldPulls, queue: QueueKey, next_offset: int, arrived: Arrived | None) -> list[HeldPull]:
    pulls.arrived(queue, next_offset, arrived)
    return pulls.take_woken()


def test_held_pulls_end_once() -> None:
    """A pull that was woken is not answered again at its deadline or when its connection closes."""
    pulls = HeldPulls(10)
    first, second = held(deadline_ms=100), held(OTHER, deadline_ms=50)
    pulls.hold(first)
    pulls.hold(second)
    assert pulls.next_deadline_ms() == 50
    assert woken(pulls, QUEUE, 1, None) == [first, second]
    assert (len(pulls), pulls.next_deadline_ms(), pulls.take_due(1000), QUEUE in pulls) == (0, None, [], False)
    pulls.disconnect(PEER.id)


def test_held_pulls_wait_for_their_tags_and_offset() -> None:
    """A message with another tag, or before the offset that a pull waits for, does not wake the pull."""
    pulls = HeldPulls(10)
    pull = held(offset=5, codes=frozenset({7}))
    pulls.hold(pull)
    assert woken(pulls, QUEUE, 6, [(8, b"")]) == []
    assert woken(pulls, QUEUE, 5, [(7, b"")]) == []
    assert woken(pulls, ("T", 1), 6, [(7, b"")]) == []
    assert woken(pulls, QUEUE, 6, [(8, b""), (7, b"")]) == [pull]


def test_held_pulls_leave_no_litter() -> None:
    """Pulls that end early leave no deadlines behind."""
    pulls = HeldPulls(10)
    for number in range(10_000):
        pulls.hold(held(deadline_ms=100_000 + number))
        assert woken(pulls, QUEUE, 1, None)
    assert len(pulls._deadlines) < 200


def test_held_pulls_are_bounded() -> None:
    """Above the limit a pull is refused, whatever its connection."""
    pulls = HeldPulls(1)
    pulls.hold(held())
    for peer in (PEER, OTHER):
        with pytest.raises(SystemBusy, match="held_pulls_max"):
            pulls.hold(held(peer))


def test_held_pulls_of_one_connection_are_bounded() -> None:
    """One peer cannot use all the room: others can still wait. The limits are a number and a size."""
    pulls = HeldPulls(100_000)
    for _ in range(10_000):
        pulls.hold(held())
    with pytest.raises(SystemBusy, match="of one connection"):
        pulls.hold(held())
    pulls.hold(held(OTHER))
    pulls.disconnect(PEER.id)
    large = HELD_SIZE_MAX // HELD_PEER_SHARE // 2
    pulls.hold(HeldPull(PEER, RemotingCommand(11, {"subscription": "x" * large}), QUEUE, 0, None, 100))
    with pytest.raises(SystemBusy, match="held requests of"):
        pulls.hold(HeldPull(PEER, RemotingCommand(11, {"subscription": "x" * large}), QUEUE, 0, None, 100))
    pulls.hold(held(OTHER))
    pulls.disconnect(PEER.id)
    pulls.hold(held())


def test_filters_of_held_pulls_count() -> None:
    """A subscription of 64 KiB becomes 16 000 tag hashes, which take twenty times the memory of its text."""
    pulls = HeldPulls(100_000)
    codes = frozenset(range(50_000))
    for _ in range(HELD_SIZE_MAX // HELD_PEER_SHARE // (64 * len(codes))):
        pulls.hold(held(codes=codes))
    with pytest.raises(SystemBusy, match="held requests of"):
        pulls.hold(held(codes=codes))
    pulls.disconnect(PEER.id)
    pulls.hold(held(codes=codes))


def test_bodies_of_held_requests_are_not_kept() -> None:
    """A pull needs no body, so bodies of up to 16 MiB are dropped from the 100 000 held pulls."""
    pulls = HeldPulls(1)
    pull = HeldPull(PEER, RemotingCommand(11, body=b"x" * 1000), QUEUE, 0, None, 100)
    pulls.hold(pull)
    assert pull.request.body == b""


def test_many_held_pulls_are_woken_and_ended_a_few_at_a_time() -> None:
    """Each pull is woken once; pulls of another queue are woken between the slices, and later messages count too."""
    pulls = HeldPulls(100_000)
    many = [held() for _ in range(1_000)]
    later = held(offset=1)
    for pull in [*many, later]:
        pulls.hold(pull)
    other = HeldPull(PEER, RemotingCommand(11), ("T", 1), 0, None, 100)
    pulls.hold(other)
    taken = woken(pulls, QUEUE, 1, [(7, b"")])
    assert len(taken) < 100
    assert pulls.is_waking
    assert not pulls.arrived(QUEUE, 2, [(7, b"")])
    assert pulls.arrived(("T", 1), 1, [(7, b"")])
    assert pulls.take_woken()[0] is other
    while pulls.is_waking:
        slice_ = pulls.take_woken()
        assert len(slice_) < 100
        taken += slice_
    assert len(set(map(id, taken))) == len(taken)
    assert len(pulls) == 0
    for _ in many:
        pulls.hold(held())
    assert len(pulls.take_due(1_000)) == DUE_A_SLICE
    assert pulls.next_deadline_ms() == 100


def test_locks_are_bounded_and_lapsed_ones_make_room() -> None:
    """The locks of a client have a limit; expired locks do not count."""
    locks = LockTable(60_000, 2)
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    locks.lock("g", "c", queues[:2], NOW_MS)
    with pytest.raises(SystemBusy, match="queue locks"):
        locks.lock("h", "c", queues[2:], NOW_MS)
    assert locks.lock("h", "c", queues[2:], NOW_MS + 60_001) == queues[2:]
    assert not locks.is_any_held("g", NOW_MS + 60_001)


def client(peer: Peer, client_id: str, seen_ms: int = NOW_MS) -> Client:
    return Client(peer, client_id, "PYTHON", 479, seen_ms)


def test_newer_subscriptions_win() -> None:
    """An older heartbeat does not undo a newer one; topics that it does not name are removed."""
    clients = ClientTable()
    new, old = (SubscriptionData.build("T", tags, sub_version=version) for tags, version in (("A", 2), ("B", 1)))
    assert clients.register_consumer(ConsumerData("g", subscription_data_set=(new,)), client(PEER, "c1"))
    assert not clients.register_consumer(ConsumerData("g", subscription_data_set=(old,)), client(PEER, "c1"))
    group = clients.consumer_group("g")
    assert group is not None
    assert group.subscriptions == {"T": new}
    assert clients.register_consumer(ConsumerData("g"), client(PEER, "c1"))
    assert group.subscriptions == {}


def test_silent_clients_are_forgotten_one_by_one() -> None:
    """Expiry keeps members with a recent heartbeat, and removes groups without members."""
    clients = ClientTable()
    clients.register_consumer(ConsumerData("g"), client(PEER, "c1", NOW_MS))
    clients.register_consumer(ConsumerData("g"), client(OTHER, "c2", NOW_MS + 10))
    clients.register_producer("p", client(PEER, "c1", NOW_MS))
    assert clients.expire(NOW_MS + 5) == ["g"]
    group = clients.consumer_group("g")
    assert group is not None
    assert group.client_ids() == ["c2"]
    assert (clients.producers("p"), clients.disconnect(PEER.id), clients.disconnect(OTHER.id)) == ([], [], ["g"])
    assert clients.consumer_group("g") is None


def test_statistics_windows() -> None:
    """Sum, rate and average cover only the window; a counter that never counted is absent, not 0."""
    stats = Statistics("C", NOW_MS)
    counter = stats.put_counter("T", 0)
    now_ms = NOW_MS
    for _ in range(20):
        counter.count += 30
        counter.size += 3000
        counter.times += 10
        now_ms += 10_000
        stats.tick(now_ms)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert (windows[0].sum, windows[0].tps, windows[0].avgpt) == (180, 3.0, 3.0)
    assert stats.put_tps("T") == 3.0
    assert stats.windows("TOPIC_PUT_NUMS", "U") is None
    assert (stats.put_total(), stats.put_size_total()) == (600, 60_000)
    assert stats.rates(now_ms)["put"][1] == pytest.approx(3.0)
    stats.forget_topic("T")
    assert stats.windows("TOPIC_PUT_NUMS", "T") is None


def test_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends to and pulls from very many queues do not fill the memory; totals stay right."""
    monkeypatch.setattr(statistics, "COUNTERS_MAX", 10)
    monkeypatch.setattr(statistics, "ITEMS_MAX", 30)
    stats = Statistics("C", NOW_MS)
    for number in range(1_000):
        stats.put_counter("T", number).add(1, 10)
        stats.get_counter("T", number, f"g{number}").add(2, 20)
        stats.ack(f"T{number}", "g", 1)
        stats.check_point("T", f"g{number}")
        stats.send_back("T", f"g{number}")
    tables = (stats._puts, stats._gets, stats._acks, stats._check_points, stats._send_backs)
    assert [len(list(cast(Any, table))) for table in tables] == [11] * 5
    assert (stats.put_total(), stats.put_size_total(), stats.get_total()) == (1_000, 10_000, 2_000)
    stats.tick(NOW_MS + 10_000)
    assert sum(map(len, stats._items.values())) == stats._item_count == 30
    for name, total in (("BROKER_PUT_NUMS", 1_000), ("BROKER_ACK_NUMS", 1_000)):
        found = stats.windows(name, "C")
        assert found is not None
        assert found[0].sum == total
    assert stats.windows("QUEUE_PUT_NUMS", "T@900") is None


@pytest.mark.slow
def test_statistics_are_sampled_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick sums up all counters; the sample equals one taken in a single tick."""
    summed: list[str] = []

    def seen(topic: str) -> bool:
        if topic == "sliced":  # a broker of another test may run in a thread
            summed.append(topic)
        return False

    monkeypatch.setattr(statistics, "is_system_topic", seen)
    stats = Statistics("C", NOW_MS)
    for number in range(20_000):
        stats.put_counter("sliced", number).add(1, 10)
        stats.get_counter("sliced", number, "g").add(1, 10)
    ticks = []
    now_ms = NOW_MS + 10_000
    while stats.next_tick_ms() <= now_ms:
        before = len(summed)
        stats.tick(now_ms)
        ticks.append(len(summed) - before)
    assert max(ticks) == statistics.COUNTERS_A_SLICE
    assert sum(ticks) == 40_000
    assert len(ticks) > 25
    windows = stats.windows("TOPIC_PUT_NUMS", "sliced")
    assert windows is not None
    assert windows[0].sum == 20_000
    assert not summed[40_000:]


def test_figures_are_noted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more figures than counters: no tick adds a sample to all of them."""
    monkeypatch.setattr(statistics, "ITEMS_A_SLICE", 100)
    monkeypatch.setattr(statistics, "ITEMS_MAX", 500)
    stats = Statistics("C", NOW_MS)
    for number in range(200):
        stats.put_counter("T", number).add(1, 10)
    sampled: list[StatKey] = []
    add = Statistics._add_sample

    def added(self: Statistics, key: StatKey, sample: Any) -> None:
        sampled.append(key)
        add(self, key, sample)

    monkeypatch.setattr(Statistics, "_add_sample", added)
    ticks = []
    now_ms = NOW_MS + 10_000
    while stats.next_tick_ms() <= now_ms:
        before = len(sampled)
        stats.tick(now_ms)
        ticks.append(len(sampled) - before)
    assert max(ticks) == 100
    assert sum(ticks) == len(set(sampled)) > 400


def test_statistics_morning() -> None:
    """At midnight the total becomes the new day's morning figure."""
    stats = Statistics("C", NOW_MS)
    stats.put_counter("T", 0).count += 5
    stats.tick(NOW_MS + 86_400_000)
    assert stats.morning == {"Yesterday": (0, 0), "Today": (5, 0)}


RULES = PropertyRules(BrokerConfig(), lambda: "FRESH")
NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "CLUSTER", "MSG_REGION", "POP_CK", "WAIT", "x"])
VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_stored_properties(sent: dict[str, str], ended: bool) -> None:
    """Both paths keep all of the sender's properties, set ours, remove POP_CK, and make sure that there is an id."""
    text = encode_properties(sent)
    stored = RULES.of_message((text if ended else text.removesuffix("\x02")).encode())
    expected = {name: value for name, value in sent.items() if name != "POP_CK"}
    expected |= {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    expected.setdefault("UNIQ_KEY", "FRESH")
    assert decode_properties(stored.text) == expected
    assert stored.unique_id == expected["UNIQ_KEY"]


@given(st.binary(max_size=200))
def test_any_bytes_as_properties(text: bytes) -> None:
    """A text that is no list of properties is stored unchanged or refused, without an unexpected error."""
    try:
        stored = RULES.of_message(text)
    except (MessageIllegal, SystemBusy):
        return
    assert decode_properties(stored.text)["CLUSTER"] == "DefaultCluster"


def test_properties_that_do_not_fit() -> None:
    """A text that is too long before or after ours are added is refused with sizes and remedy."""
    with pytest.raises(MessageIllegal, match=r"found properties of 32800 bytes, expected at most 32767"):
        RULES.of_message(b"a" * 32_800)
    almost = b"KEYS\x01" + b"k" * 32_700 + b"\x02"
    with pytest.raises(MessageIllegal, match="expected at most 32767"):
        RULES.of_message(almost)
    with pytest.raises(MessageIllegal, match="expected at most 32767"):
        with_real_queue(almost + b"x" * 60, "orders", 0)


def test_settings_speak_rocketmq() -> None:
    """Reading a broker.conf's keys and writing them back gives the same text."""
    settings: dict[str, Any] = {
        entry.name: entry.unit.read(text)
        for key, text in {"brokerName": "b", "flushDiskType": "SYNC_FLUSH", "traceTopicEnable": "true"}.items()
        for entry in [conf_keys(BrokerConfig)[key]]
    }
    lines = properties_text(BrokerConfig(**settings, address=Host("1.2.3.4", 5))).splitlines()
    assert {"brokerName=b", "flushDiskType=SYNC_FLUSH", "traceTopicEnable=true", "listenPort=5"} <= set(lines)
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    "settings", [{"broker_name": ""}, {"broker_id": 1}, {"held_pulls_max": 0}, {"offsets_save_ms": -1}]
)
def test_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    """A setting out of range stops the start with an error that names it."""
    with pytest.raises(InvalidParameter, match=next(iter(settings))):
        BrokerConfig(**settings)


def test_peer_ids_are_numbers() -> None:
    """The node numbers connections; the broker only compares the numbers."""
    assert Peer(PeerId(3), Host("::1", 1)).id == 3
