"""Both ends of the HA protocol. The bytes are those of DefaultHAConnection and DefaultHAClient (docs of the layout:
mqtrail.broker.ha.frames); nothing here is made by our own encoder where bytes are expected."""

from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, Follower, HaError, LogSender
from mqtrail.store import CommitLogConfig, LogDiffers, MemoryStore, PendingRecord
from mqtrail.wire import Host

NOW_MS = 1_700_000_000_000
CONFIG = BrokerConfig(broker_role="ASYNC_MASTER", ha_chunk_size=64)
STORE = CommitLogConfig(segment_size=128 * 1024, queue_entries=60, index_slots=32, index_entries=500)


def record(body: bytes = b"hello") -> PendingRecord:
    return PendingRecord("orders", 0, body, b"", 0, NOW_MS, Host("10.0.0.1", 1).packed())


def i64(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def header(offset: int, size: int) -> bytes:
    return i64(offset) + size.to_bytes(4, "big", signed=True)


@pytest.fixture
def master() -> MemoryStore:
    return MemoryStore(STORE)


def sent(sender: LogSender, now_ms: int = NOW_MS) -> list[bytes]:
    frames = []
    while (frame := sender.next_bytes(now_ms)) is not None:
        frames.append(frame)
        if len(frame) == 12:
            break
    return frames


def test_a_master_sends_from_the_report_on(master: MemoryStore) -> None:
    """The master sends nothing before the first report; then headers with position and size of each piece, then
    heartbeats."""
    (place,) = master.append([record()], NOW_MS)
    sender = LogSender(master, CONFIG, NOW_MS)
    assert sent(sender, NOW_MS + 6_000) == []
    sender.receive(bytes.fromhex("0000000000"), NOW_MS)
    assert sent(sender) == []
    sender.receive(bytes.fromhex("000000"), NOW_MS)
    log = master.log_bytes(0, 1_000)
    rest = place.size - 64
    assert sent(sender) == [header(0, 64) + log[:64], header(64, rest) + log[64:]]
    assert sent(sender, NOW_MS + 4_999) == []
    assert sent(sender, NOW_MS + 5_000) == [header(place.size, 0)]
    assert sender.acked_offset == 0
    sender.receive(i64(64) + i64(place.size), NOW_MS + 5_100)
    assert sender.acked_offset == place.size
    master.append([record(b"x")], NOW_MS)
    assert sent(sender)[0][:12] == header(place.size, 64)


def test_an_empty_slave_gets_the_last_file(master: MemoryStore) -> None:
    """As on Apache's master, report 0 starts at the last file, and any other report starts where it ends."""
    while master.end_offset < 3 * STORE.segment_size:
        master.append([record(bytes(10_000))], NOW_MS)
    start = master.end_offset - master.end_offset % STORE.segment_size
    for report, first in ((0, start), (STORE.segment_size, STORE.segment_size)):
        sender = LogSender(master, CONFIG, NOW_MS)
        sender.receive(i64(report), NOW_MS)
        assert sender.next_offset == first


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"GET / HTTP/1.1\r\n", "GET / HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", r"\\x16\\x03"),
        (i64(-1), "physical offset -1"),
        (i64(1 << 20), "does not have"),
    ],
)
def test_a_master_refuses_what_is_no_slave_of_it(master: MemoryStore, data: bytes, found: str) -> None:
    """A peer with another protocol, or a slave with more log than the master, gets no data."""
    master.append([record()], NOW_MS)
    sender = LogSender(master, CONFIG, NOW_MS)
    with pytest.raises(HaError, match=found):
        sender.receive(data, NOW_MS)
    assert sent(sender) == []


def test_a_master_refuses_reports_of_what_it_never_sent(master: MemoryStore) -> None:
    """Such a report would count bytes as replicated that the slave does not have; reports never decrease."""
    (place,) = master.append([record()], NOW_MS)
    sender = LogSender(master, CONFIG, NOW_MS)
    sender.receive(i64(0), NOW_MS)
    assert len(sender.next_bytes(NOW_MS) or b"") == 12 + 64
    with pytest.raises(HaError, match="expected 0 to 64"):
        sender.receive(i64(place.size), NOW_MS)
    sender.receive(i64(64), NOW_MS)
    with pytest.raises(HaError, match="expected 64 to 64"):
        sender.receive(i64(0), NOW_MS)


def test_a_slave_whose_rest_has_expired_is_refused() -> None:
    """The slave cannot continue; the error says what to do."""

    class Expired:
        end_offset, min_physical_offset, segment_size = 300, 200, 100

        def log_bytes(self, physical_offset: int, size_max: int) -> bytes:
            raise AssertionError("nothing is read")

    with pytest.raises(HaError, match=r"expected 200 or more.*empty folder"):
        LogSender(Expired(), CONFIG, NOW_MS).receive(i64(100), NOW_MS)


def test_flow_control(master: MemoryStore) -> None:
    """At most the configured bytes per second are sent; without a limit, all at once."""
    master.append([record(bytes(1_000))], NOW_MS)
    slow = BrokerConfig(broker_role="ASYNC_MASTER", ha_chunk_size=64, ha_flow_control=True, ha_rate_max=100)
    sender = LogSender(master, slow, NOW_MS)
    sender.receive(i64(0), NOW_MS)
    assert [len(frame) - 12 for frame in sent(sender)] == [64, 36]
    assert sent(sender, NOW_MS + 999) == []
    assert [len(frame) - 12 for frame in sent(sender, NOW_MS + 1_000)] == [64, 36]


def test_silence_ends_a_connection(master: MemoryStore) -> None:
    """Both ends close after haHousekeepingInterval without bytes."""
    for end in (LogSender(master, CONFIG, NOW_MS), Follower(master, CONFIG, NOW_MS)):
        end.check(NOW_MS + 20_000)
        with pytest.raises(HaError, match="haHousekeepingInterval"):
            end.check(NOW_MS + 20_001)


def follower_of(store: MemoryStore, **settings: Any) -> Follower:
    return Follower(store, BrokerConfig(broker_role="SLAVE", broker_id=1, **settings), NOW_MS)


@pytest.mark.parametrize("piece", [1, 5, 1_000])
def test_a_slave_appends_and_reports(master: MemoryStore, piece: int) -> None:
    """Frames arrive in pieces; a record split across frames is stored once complete. Heartbeats carry no bytes."""
    first, second = master.append([record(), record(b"x" * 300)], NOW_MS)
    log = master.log_bytes(0, 10_000)
    cut = first.size + 20
    stream = header(0, cut) + log[:cut] + header(cut, 0) + header(cut, len(log) - cut) + log[cut:]
    slave = MemoryStore(STORE)
    follower = follower_of(slave)
    assert follower.report(NOW_MS) == bytes(8)
    reports = []
    for at in range(0, len(stream), piece):
        follower.receive(stream[at : at + piece], NOW_MS)
        reports.append(follower.report(NOW_MS))
    assert [one for one in reports if one] == [i64(first.size), i64(second.end_offset)][-len(reports) :]
    assert slave.log_bytes(0, 10_000) == log
    assert follower.report(NOW_MS + 4_999) is None
    assert follower.report(NOW_MS + 5_000) == i64(second.end_offset)


def test_a_new_connection_starts_at_a_record(master: MemoryStore) -> None:
    """The received part of an unfinished record is dropped with the connection."""
    (first, _) = master.append([record(), record(b"x" * 300)], NOW_MS)
    log = master.log_bytes(0, 10_000)
    slave = MemoryStore(STORE)
    follower_of(slave).receive(header(0, first.size + 20) + log[: first.size + 20], NOW_MS)
    again = follower_of(slave)
    assert again.report(NOW_MS) == i64(first.size)
    again.receive(header(first.size, len(log) - first.size) + log[first.size :], NOW_MS)
    assert slave.log_bytes(0, 10_000) == log


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "haMasterAddress.*|HTTP/1.1"),
        (header(500, 10), "found bytes for physical offset 500, expected"),
        (header(0, 10), "found bytes for physical offset 0, expected"),
        (header(0, -1), "found a frame of -1 bytes"),
        (header(-8, 0), "for physical offset -8"),
    ],
)
def test_a_slave_refuses_what_does_not_continue_its_log(frame: bytes, found: str) -> None:
    """Another protocol, a gap, or a master that is behind raises an error and leaves the log unchanged."""
    slave = MemoryStore(STORE)
    slave.append([record()], NOW_MS)
    before = slave.log_bytes(0, 10_000)
    with pytest.raises(HaError, match=found):
        follower_of(slave).receive(frame, NOW_MS)
    assert slave.log_bytes(0, 10_000) == before


def test_a_slave_refuses_the_log_of_another_cluster(master: MemoryStore) -> None:
    """The end of the slave's log lies inside a record of the master's log, so the received bytes are no record."""
    slave = MemoryStore(STORE)
    slave.append([record(b"another cluster")], NOW_MS)
    master.append([record(bytes(1_000))], NOW_MS)
    sender = LogSender(master, CONFIG, NOW_MS)
    follower = follower_of(slave)
    sender.receive(follower.report(NOW_MS) or b"", NOW_MS)
    (frame, *_) = sent(sender)
    with pytest.raises(LogDiffers, match="not a copy of that one"):
        follower.receive(frame, NOW_MS)
    assert slave.max_offset("orders", 0) == 1


def test_under_sync_flush_a_slave_reports_what_is_durable(master: MemoryStore) -> None:
    """The first report is the end of the log, where the master starts; later reports are the flushed position."""
    (place,) = master.append([record()], NOW_MS)
    slave = MemoryStore(STORE)
    follower = follower_of(slave, sync_flush=True)
    assert follower.report(NOW_MS) == bytes(8)
    follower.receive(header(0, place.size) + master.log_bytes(0, 1_000), NOW_MS)
    assert follower.report(NOW_MS) is None
    slave.flush()
    assert follower.report(NOW_MS) == i64(place.size)


def test_a_log_begins_nowhere_for_records_of_another_place(master: MemoryStore) -> None:
    """An empty slave would keep that place for ever, and its master would refuse it as a slave with a longer log."""
    (place,) = master.append([record()], NOW_MS)
    log = master.log_bytes(0, place.size)
    slave = MemoryStore(STORE)
    follower = Follower(slave, CONFIG, NOW_MS)
    far = (1 << 62) // STORE.segment_size * STORE.segment_size
    with pytest.raises(LogDiffers, match="found a record of physical offset 0"):
        follower.receive(header(far, len(log)) + log, NOW_MS)
    assert slave.end_offset == 0
    Follower(slave, CONFIG, NOW_MS).receive(header(0, len(log)) + log, NOW_MS)
    assert slave.log_bytes(0, place.size) == log
