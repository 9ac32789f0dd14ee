"""The master's end of the HA protocol in controller mode. Expected bytes are written by hand from the layout that a
master of 5.3.3 uses; the log is one of two epochs that it wrote. The last part joins both ends."""

import pytest

from mqtrail.broker import BrokerConfig, Epoch, EpochFollower, Epochs, HaError, TailDiffers
from mqtrail.broker.ha import EpochSender
from mqtrail.store import MemoryStore

from .test_epoch_protocol import FIRST, LOG, NOW_MS, STORE, copied, report
from .test_protocol import record

CONFIG = BrokerConfig(controller_mode=True, controller_addresses="127.0.0.1:1", ha_chunk_size=1_000)
HELLO = bytes.fromhex("00000001 0000 0000 0000000000000007")
REPLY = bytes.fromhex("0000000100000018000000000000044200000005 000000010000000000000000 00000005000000000000028e")
EPOCHS = [(1, 0), (5, 654)]
# 5.3.3 names epoch 5 for all of this; here the bytes of epoch 1 have their own.
OF_EPOCH_1 = bytes.fromhex("000000020000028e0000000000000000000000010000000000000000") + FIRST[28:]
OF_EPOCH_5 = bytes.fromhex("00000002000001b4000000000000028e00000005000000000000028e0000000000000442") + LOG[654:]


class Master:
    """A master with a log and its epochs; the confirm offset is what a test sets."""

    def __init__(self, size: int = len(LOG), epochs: list[tuple[int, int]] = EPOCHS) -> None:
        self.store = copied(size)
        self.epochs = Epochs(Epoch(*one) for one in epochs)
        self.confirm_offset = size

    def sender(self, now_ms: int = NOW_MS) -> EpochSender:
        return EpochSender(self.store, CONFIG, now_ms, epochs=self.epochs, confirm_offset=lambda: self.confirm_offset)


def sent(sender: EpochSender, now_ms: int = NOW_MS) -> list[bytes]:
    frames: list[bytes] = []
    while len(frames) < 20 and (frame := sender.next_bytes(now_ms)) is not None:
        frames.append(frame)
    return frames


def heartbeat(offset: int, epoch: int, start: int, confirm_offset: int) -> bytes:
    values = ((2, 4), (0, 4), (offset, 8), (epoch, 4), (start, 8), (confirm_offset, 8))
    return b"".join(value.to_bytes(size, "big") for value, size in values)


@pytest.mark.parametrize("piece", [1, 7, 1_000])
def test_a_slave_gets_the_epochs_and_then_the_log(piece: int) -> None:
    """Each piece has bytes of one epoch. The result is the same for any split of what the slave sends."""
    sender, frames = Master().sender(), list[bytes]()
    stream = HELLO + report(0)
    for at in range(0, len(stream), piece):
        sender.receive(stream[at : at + piece], NOW_MS)
        frames += sent(sender)
    assert frames == [REPLY, OF_EPOCH_1, OF_EPOCH_5]
    assert (sender.broker_id, sender.is_learner, sender.acked_offset) == (7, False, 0)
    sender.receive(report(654) + report(1090), NOW_MS)
    assert sender.acked_offset == 1090


def test_an_empty_slave_may_begin_with_the_last_file() -> None:
    """syncFromLastFile; else it begins with the first one, as in 5.3.3."""
    master = Master()
    while master.store.end_offset < STORE.segment_size:
        master.store.append([record(bytes(100_000))], NOW_MS)
    for begins_late, first in ((b"\0\1", STORE.segment_size), (b"\0\0", 0)):
        sender = master.sender()
        sender.receive(HELLO[:4] + begins_late + HELLO[6:] + report(0), NOW_MS)
        assert sender.next_offset == first


def test_an_idle_slave_gets_a_confirm_offset_that_moved() -> None:
    master = Master()
    master.confirm_offset = 436
    sender = master.sender()
    sender.receive(HELLO + report(654), NOW_MS)
    assert sent(sender)[1][:36] == OF_EPOCH_5[:28] + (436).to_bytes(8, "big")
    sender.receive(report(1090), NOW_MS)
    master.confirm_offset = 1090
    assert sent(sender, NOW_MS + 99) == []
    assert sent(sender, NOW_MS + 100) == [heartbeat(1090, 5, 654, 1090)]
    assert sent(sender, NOW_MS + 5_099) == []
    assert sent(sender, NOW_MS + 5_100) == [heartbeat(1090, 5, 654, 1090)]


def test_a_slave_is_caught_up_at_the_time_whose_log_it_has() -> None:
    """A slave that has all that was there when it reported last had the whole log then, although the log grew since."""
    master = Master()
    sender = master.sender()
    sender.receive(HELLO + report(1090), NOW_MS + 1_000)
    assert sender.caught_up_ms == NOW_MS + 1_000
    (place,) = master.store.append([record()], NOW_MS)
    end = 1090 + place.size
    sender.receive(report(1090), NOW_MS + 2_000)  # it lacks the new one: has had everything a second ago
    master.store.append([record()], NOW_MS)
    sent(sender)
    sender.receive(report(end), NOW_MS + 3_000)
    assert sender.caught_up_ms == NOW_MS + 2_000
    sender.receive(report(end), NOW_MS + 9_000)
    assert sender.caught_up_ms == NOW_MS + 2_000


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"GET / HTTP/1.1\r\n", "GET / HTTP"),
        (report(1), "found state 2"),
        (HELLO + HELLO, "found state 1"),
        (HELLO[:8] + bytes.fromhex("ffffffffffffffff"), "id -1"),
        (HELLO + report(1091), "found a first report of physical offset 1091, expected at most 1090"),
        (HELLO + report(654) + report(655), "expected 654 to 654, what was sent"),
    ],
)
def test_what_no_slave_sends(data: bytes, found: str) -> None:
    with pytest.raises(HaError, match=found):
        Master().sender().receive(data, NOW_MS)


# Both ends.


class Link:
    """A slave that follows a master; whole frames move when a test says so."""

    def __init__(self, master: Master, slave: MemoryStore, epochs: Epochs, broker_id: int = 7) -> None:
        self.sender = master.sender()
        config = BrokerConfig(broker_role="SLAVE", broker_id=broker_id)
        self.follower = EpochFollower(
            slave, epochs, config, NOW_MS, broker_id=broker_id, is_learner=False, save=lambda epochs: None
        )
        self.sender.receive(self.follower.hello(), NOW_MS)

    def run(self, now_ms: int = NOW_MS) -> None:
        """Exchange all that there is to exchange."""
        moved = True
        while moved:
            moved = False
            for frame in sent(self.sender, now_ms):
                self.follower.receive(frame, now_ms)
                moved = True
            if (answer := self.follower.report(now_ms)) is not None:
                self.sender.receive(answer, now_ms)
                moved = True


def test_both_ends_agree() -> None:
    """Log, epochs and confirm offset of the slave are the master's; appends of a later epoch arrive with it."""
    master, slave, epochs = Master(), MemoryStore(STORE), Epochs()
    link = Link(master, slave, epochs)
    link.run()
    assert (slave.log_bytes(0, 2_000), epochs.all()) == (LOG, EPOCHS)
    assert (link.sender.acked_offset, link.follower.confirm_offset) == (1090, 1090)
    master.epochs.begin(Epoch(9, 1090))
    master.store.append([record(b"of the next epoch")], NOW_MS)
    link.run()
    assert slave.log_bytes(0, 2_000) == master.store.log_bytes(0, 2_000)
    assert epochs.all() == [*EPOCHS, (9, 1090)]
    assert (link.sender.acked_offset, link.follower.confirm_offset) == (slave.end_offset, 1090)


def test_a_deposed_master_cuts_its_tail_and_follows() -> None:
    """It was master of epoch 5 and appended more, which the next master, of epoch 6 from 872 on, does not have."""
    deposed, epochs = copied(1090), Epochs(Epoch(*one) for one in EPOCHS)
    master = Master(872, [*EPOCHS, (6, 872)])
    master.store.append([record(b"of the next master")], NOW_MS)
    with pytest.raises(TailDiffers) as caught:
        Link(master, deposed, epochs).run()
    assert caught.value.common_end == 872
    kept = copied(872)  # what the broker has after it was started again
    link = Link(master, kept, epochs)
    link.run()
    assert kept.log_bytes(0, 2_000) == master.store.log_bytes(0, 2_000)
    assert epochs.all() == [*EPOCHS, (6, 872)]
