"""The slave's end of a connection to its master in controller mode.

It says who it is, compares the epochs of both logs, and then appends what comes, as in classic mode (`follower`). A log
with bytes that the master does not have is not continued: `TailDiffers` names the place up to which both are the same.
Each epoch is noted durably before its first byte is appended. What came together is noted and appended together, so
that a false master cannot cause a save with each of its frames.

A learner appends only what all in-sync replicas have, as far as it knows, because the master does not wait for it. So
it never shows a message that is lost with its master. The rest waits in memory.
Source: AutoSwitchHAClient, apache/rocketmq store/ha/autoswitch/.
"""

from collections.abc import Callable
from typing import Final

from ..config import BrokerConfig
from .epoch_frames import (
    EPOCH,
    EPOCH_REPORT,
    EPOCHS_SIZE_MAX,
    HANDSHAKE,
    HELLO,
    HELLO_REPLY,
    STATE,
    TRANSFER,
    TRANSFER_HEADER,
    decode_handshake_epochs,
)
from .epochs import Epoch, EpochError, Epochs
from .follower import Follower, LogTarget
from .frames import HaError, shown

EPOCHS_NEW_MAX: Final = 100  # of one connection, that began after its handshake: each takes an election
HELD_SIZE_MAX: Final = 64 << 20  # bytes of a learner's memory that wait for the in-sync replicas


class TailDiffers(HaError):
    """The log has bytes that the master does not have. common_end: up to there both are the same."""

    def __init__(self, end_offset: int, common_end: int, master_end: int) -> None:
        super().__init__(
            f"found a log that ends at physical offset {end_offset}, expected {common_end}, up to where it equals the "
            f"log of the master, which ends at {master_end}"
        )
        self.common_end = common_end


class EpochFollower(Follower):
    """One connection. save: writes the epochs durably. confirm_offset: up to there all in-sync replicas have the log,
    as far as this one knows; -1: nothing came yet."""

    def __init__(
        self,
        store: LogTarget,
        epochs: Epochs,
        config: BrokerConfig,
        now_ms: int,
        *,
        broker_id: int,
        is_learner: bool,
        save: Callable[[Epochs], None],
    ) -> None:
        """is_learner: never become part of the in-sync replicas."""
        super().__init__(store, config, now_ms)
        self._epochs = epochs
        self._broker_id = broker_id
        self._is_learner = is_learner
        self._save = save
        self._is_greeted = False
        self._master = Epochs()
        self._new_epochs = 0
        self._confirmed = -1  # as the master said
        self._is_unsaved = False  # epochs of bytes that wait in the tail
        self._has_frames = False  # that are not appended yet

    def hello(self) -> bytes:
        """Return the first bytes to send."""
        return HELLO.pack(HANDSHAKE, 0, int(self._is_learner), self._broker_id)

    def report(self, now_ms: int) -> bytes | None:
        """Return a report if one is due; None before the master has answered the handshake."""
        position = self.due_report(now_ms) if self._is_greeted else None
        return None if position is None else EPOCH_REPORT.pack(TRANSFER, position)

    def receive(self, data: bytes, now_ms: int) -> None:
        """As in classic mode; the bytes of all frames are appended at the end."""
        try:
            super().receive(data, now_ms)
        finally:
            self._append_frames()

    def _append_frames(self) -> None:
        if not self._has_frames:
            return
        self._has_frames = False
        if self._is_unsaved:
            self._save(self._epochs)
            self._is_unsaved = False
        if self._tail:
            self._store_tail(self._tail)
        self.confirm_offset = min(self._confirmed, self._store.end_offset)

    def _read_frame(self, received: bytearray, at: int) -> int | None:
        """Take the frame at `at`; return where it ends; None: feed more first."""
        if len(received) - at < STATE.size:
            return None
        (state,) = STATE.unpack_from(received, at)
        if state != (TRANSFER if self._is_greeted else HANDSHAKE):
            raise HaError(
                f"found state {state} ({shown(bytes(received[at : at + 16]))}), expected "
                f"{TRANSFER if self._is_greeted else HANDSHAKE}: the peer is not a master in controller mode; check "
                "enableControllerMode on the master"
            )
        return self._read_transfer(received, at) if self._is_greeted else self._read_handshake(received, at)

    def _read_handshake(self, received: bytearray, at: int) -> int | None:
        if len(received) - at < HELLO_REPLY.size:
            return None
        head: tuple[int, int, int, int] = HELLO_REPLY.unpack_from(received, at)
        _, size, master_end, _ = head
        first = at + HELLO_REPLY.size
        if not 0 <= size <= EPOCHS_SIZE_MAX or size % EPOCH.size or master_end < 0:
            raise HaError(
                f"found a handshake with {size} bytes of epochs and a log that ends at {master_end}, expected a "
                f"multiple of {EPOCH.size} up to {EPOCHS_SIZE_MAX}, and a physical offset"
            )
        if len(received) - first < size:
            return None
        try:
            self._master = Epochs(decode_handshake_epochs(received[first : first + size]))
        except EpochError as error:
            raise HaError(str(error)) from error
        self._compare(self._master, master_end)
        self._is_greeted = True
        return first + size

    def _compare(self, master: Epochs, master_end: int) -> None:
        """TailDiffers, HaError: this log cannot be continued as it is."""
        end = self._store.end_offset
        if self._epochs.last is None:
            # It was copied in classic mode, or is new. Only what the master has can be compared.
            common_end: int | None = end if end <= master_end else None
        else:
            common_end = self._epochs.common_end(end, master, master_end)
        if common_end is None:
            raise HaError(
                f"found a log that ends at physical offset {end}, with epochs {_shown(self._epochs)}, expected one "
                f"that begins like the log of the master, which ends at {master_end}, with epochs {_shown(master)}: "
                "they are logs of different groups; correct brokerName, or start with an empty folder"
            )
        if common_end < end:
            raise TailDiffers(end, common_end, master_end)
        if self._epochs.cut(end):  # of a time as master in which nothing was written
            self._save(self._epochs)

    def _read_transfer(self, received: bytearray, at: int) -> int | None:
        if len(received) - at < TRANSFER_HEADER.size:
            return None
        head: tuple[int, int, int, int, int, int] = TRANSFER_HEADER.unpack_from(received, at)
        _, size, offset, epoch, epoch_start, confirm_offset = head
        first = at + TRANSFER_HEADER.size
        if size or offset >= 0:  # a heartbeat before the first transfer names no place
            self._check(offset, size, bytes(received[at : at + 16]))
        if len(received) - first < size:
            return None
        self._confirmed = confirm_offset
        self._has_frames = True
        if size:
            self._note(Epoch(epoch, epoch_start), offset, size)
            if not self._tail:
                self._tail_offset = offset
            self._tail += received[first : first + size]
        return first + size

    def _store_tail(self, data: bytearray) -> None:
        if not self._is_learner:
            super()._store_tail(data)
        elif (size := self._confirmed - self._tail_offset) > 0:
            super()._store_tail(data[:size])
        if len(self._tail) > HELD_SIZE_MAX:
            raise HaError(
                f"found {len(self._tail)} bytes that not all in-sync replicas have, expected at most {HELD_SIZE_MAX}: "
                "one of them is slow; they are requested again"
            )

    def _note(self, epoch: Epoch, offset: int, size: int) -> None:
        """Note the epochs of the bytes that are appended next. HaError: they cannot be of this epoch.

        Apache's master labels the last bytes of an epoch with the next one, so its handshake decides.
        """
        if epoch.number < self._epochs.last_number:
            raise HaError(
                f"found bytes of epoch {epoch.number} at physical offset {offset}, expected {self._epochs.last_number} "
                "or later: the peer is no longer master"
            )
        try:
            self._new_epochs += self._master.begin(epoch)
            if self._new_epochs > EPOCHS_NEW_MAX:
                raise HaError(
                    f"found more than {EPOCHS_NEW_MAX} epochs that began since the handshake, expected one for each "
                    "election: the peer is not a master"
                )
            for one in self._master.after(self._epochs.last_number):
                if one.start_offset < offset + size:
                    self._is_unsaved |= self._epochs.begin(one)
        except EpochError as error:
            raise HaError(str(error)) from error


def _shown(epochs: Epochs) -> str:
    found = [f"{epoch.number}-{epoch.start_offset}" for epoch in epochs.all()]
    return ", ".join(found[-5:]) or "none"
