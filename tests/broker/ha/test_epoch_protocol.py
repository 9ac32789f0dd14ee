"""The slave's end of the HA protocol in controller mode. The bytes are those that a master of 5.3.3 sent for two epochs
of five messages; its log is beside this file."""

from pathlib import Path

import pytest

from mqtrail.broker import BrokerConfig, decode_epochs
from mqtrail.broker.ha import Epoch, EpochFollower, Epochs, HaError, TailDiffers
from mqtrail.broker.ha.epoch_frames import EPOCH, HANDSHAKE, HELLO_REPLY, TRANSFER, TRANSFER_HEADER
from mqtrail.store import CommitLogConfig, LogDiffers, MemoryStore

NOW_MS = 1_700_000_000_000
STORE = CommitLogConfig(segment_size=1 << 20, queue_entries=60, index_slots=32, index_entries=500)
CONFIG = BrokerConfig(broker_role="SLAVE", broker_id=7)
LOG = (Path(__file__).parent / "data" / "apache-5.3.3-two-epochs").read_bytes()
HELLO = bytes.fromhex("00000001000000010000000000000007")
REPLY = bytes.fromhex("0000000100000018000000000000044200000005 000000010000000000000000 00000005000000000000028e")
# Apache's master names the next epoch for the last bytes of one: here epoch 5 for those of epoch 1.
FIRST = bytes.fromhex("000000020000028e000000000000000000000005000000000000028e0000000000000442") + LOG[:654]
SECOND = bytes.fromhex("00000002000001b4000000000000028e00000005000000000000028e0000000000000442") + LOG[654:]
HEARTBEAT = bytes.fromhex("0000000200000000000000000000044200000005000000000000028e0000000000000442")
EPOCHS = [(1, 0), (5, 654)]


class Slave:
    def __init__(self, store: MemoryStore | None = None, *epochs: tuple[int, int], is_learner: bool = True) -> None:
        self.store = store or MemoryStore(STORE)
        self.epochs = Epochs(Epoch(*pair) for pair in epochs)
        self.saved: list[bytes] = []
        self.follower = EpochFollower(
            self.store,
            self.epochs,
            CONFIG,
            NOW_MS,
            broker_id=7,
            is_learner=is_learner,
            save=lambda epochs: self.saved.append(epochs.encode()),
        )

    def receive(self, data: bytes) -> None:
        self.follower.receive(data, NOW_MS)


def copied(size: int) -> MemoryStore:
    """Return a store with the beginning of the log."""
    store = MemoryStore(STORE)
    assert store.append_copy(0, LOG[:size]) == size
    return store


def report(position: int) -> bytes:
    return bytes.fromhex("00000002") + position.to_bytes(8, "big")


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_an_empty_slave_gets_the_log_and_its_epochs(piece: int) -> None:
    """The result is the same for any split of the bytes. The slave reports nothing before the master has answered."""
    slave = Slave()
    assert slave.follower.hello() == HELLO
    assert slave.follower.report(NOW_MS) is None
    stream = REPLY + FIRST + SECOND + HEARTBEAT
    for at in range(0, len(stream), piece):
        slave.receive(stream[at : at + piece])
    assert slave.store.log_bytes(0, 10_000) == LOG
    assert slave.epochs.all() == EPOCHS
    assert slave.saved[-1] == b"2\n2000752627\n1-0\n5-654\n"
    assert slave.follower.confirm_offset == len(LOG)
    assert slave.follower.report(NOW_MS) == report(len(LOG))
    assert slave.follower.report(NOW_MS) is None


def test_a_learner_waits_for_the_in_sync_replicas() -> None:
    """It appends what the master calls confirmed; a heartbeat may confirm the rest. A member appends all."""
    frame = FIRST[:28] + (435).to_bytes(8, "big") + FIRST[36:]
    confirmed = HEARTBEAT[:8] + (654).to_bytes(8, "big") + HEARTBEAT[16:]
    for is_learner, end in ((True, 218), (False, 654)):
        slave = Slave(is_learner=is_learner)
        slave.receive(REPLY + frame)
        assert (slave.store.end_offset, slave.follower.confirm_offset) == (end, min(end, 435))
        slave.receive(confirmed)
        assert slave.store.log_bytes(0, 1_000) == LOG[:654]


def test_the_first_report_is_where_the_log_ends() -> None:
    slave = Slave(copied(654), (1, 0))
    slave.receive(REPLY)
    assert slave.follower.report(NOW_MS) == report(654)
    slave.receive(SECOND)
    assert slave.epochs.all() == EPOCHS
    assert slave.follower.report(NOW_MS) == report(len(LOG))


def test_a_log_with_a_tail_of_its_own_is_not_continued() -> None:
    """The error names the offset where the logs diverge: this broker appended in epoch 1 after the next master began
    epoch 5."""
    slave = Slave(copied(1090), (1, 0))
    with pytest.raises(TailDiffers, match="ends at physical offset 1090, expected 654") as caught:
        slave.receive(REPLY + SECOND)
    assert caught.value.common_end == 654
    assert slave.store.end_offset == 1090


def test_a_log_of_another_group_is_refused() -> None:
    slave = Slave(copied(654), (1, 218))
    with pytest.raises(HaError, match=r"with epochs 1-218, expected one that begins .* with epochs 1-0, 5-654"):
        slave.receive(REPLY)


def test_an_epoch_without_bytes_is_forgotten() -> None:
    """This broker was elected in epoch 2 and appended nothing, so it accepts the master's bytes of epoch 1."""
    slave = Slave(copied(218), (1, 0), (2, 218))
    slave.receive(REPLY)
    assert slave.epochs.all() == [(1, 0)]
    assert slave.saved == [b"1\n1725254278\n1-0\n"]


def test_bytes_of_a_deposed_master_are_refused() -> None:
    """The bytes have an older epoch than the end of the log."""
    slave = Slave(copied(1090), *EPOCHS)
    slave.receive(REPLY)
    stale = bytes.fromhex("00000002000000080000000000000442 00000004 000000000000028e 0000000000000442") + bytes(8)
    with pytest.raises(HaError, match="found bytes of epoch 4 at physical offset 1090, expected 5 or later"):
        slave.receive(stale)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (FIRST, "found state 2"),
        (b"HTTP/1.1 400", "found state 1213486160"),
        (bytes.fromhex("000000010000000d") + bytes(12), "found a handshake with 13 bytes of epochs"),
        (bytes.fromhex("0000000100ffffff") + bytes(12), "found a handshake with 16777215 bytes"),
        (REPLY + REPLY, "found state 1"),
        (REPLY + bytes.fromhex("00000002ffffffff") + bytes(28), "found a frame of -1 bytes"),
        (REPLY + bytes.fromhex("000000020000000100000000000000ff") + bytes(20), "found bytes for physical offset 255"),
    ],
)
def test_what_is_no_master_is_refused(data: bytes, found: str) -> None:
    """Nothing is appended if the peer is no master. At offset 255 the log does not continue."""
    slave = Slave(copied(218), (1, 0))
    with pytest.raises((HaError, LogDiffers), match=found):
        slave.receive(data)
    assert slave.store.end_offset == 218


def frames_of(epochs: range, *, data: bytes = LOG) -> bytes:
    """Return a frame of one byte for each epoch, beginning with the log's first byte."""
    frames = []
    for at, epoch in enumerate(epochs):
        header = TRANSFER_HEADER.pack(TRANSFER, 1, at, epoch, at, len(data))
        frames.append(header + data[at : at + 1])
    return b"".join(frames)


def handshake(epochs: range) -> bytes:
    body = b"".join(EPOCH.pack(epoch, at) for at, epoch in enumerate(epochs))
    return HELLO_REPLY.pack(HANDSHAKE, len(body), len(LOG), epochs[-1]) + body


def test_epochs_that_come_together_are_saved_once() -> None:
    """A false master that names an epoch for each byte causes one save, before these bytes are appended."""
    slave = Slave(is_learner=False)
    slave.receive(handshake(range(1, 901)))
    slave.receive(frames_of(range(1, 401)))
    assert len(slave.saved) == 1
    assert slave.store.end_offset == 218
    assert slave.epochs.all() == [(number, number - 1) for number in range(1, 401)]
    assert decode_epochs(slave.saved[0]).all() == slave.epochs.all()


def test_a_master_that_raises_its_epoch_all_the_time_is_refused() -> None:
    """Each epoch takes an election. What came before is kept."""
    slave = Slave(is_learner=False)
    slave.receive(handshake(range(1, 2)))
    with pytest.raises(HaError, match="more than 100 epochs that began since the handshake"):
        slave.receive(frames_of(range(1, 601)))
    assert len(slave.saved) == 1
    assert slave.epochs.last_number == 101
