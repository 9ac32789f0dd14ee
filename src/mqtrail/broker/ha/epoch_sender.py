"""The master's end of one connection of a slave in controller mode.

The slave says who it is, and gets the epochs of this log. It cuts off what this log does not have, and reports where it
ends. Then it gets the log as in classic mode (`sender`), each piece of one epoch, with the confirm offset: up to there
all in-sync replicas have the log.
Source: AutoSwitchHAConnection, apache/rocketmq store/ha/autoswitch/.
"""

from collections.abc import Callable
from typing import Final

from ..config import BrokerConfig
from .epoch_frames import (
    EPOCH,
    EPOCH_REPORT,
    HANDSHAKE,
    HELLO,
    HELLO_REPLY,
    STATE,
    TRANSFER,
    TRANSFER_HEADER,
)
from .epochs import Epoch, Epochs
from .frames import HaError, shown
from .sender import LogSender, LogSource

CONFIRM_PAUSE_MS: Final = 100  # after which an idle slave gets a confirm offset that moved


class EpochSender(LogSender):
    """broker_id: of the slave; -1 before its handshake. caught_up_ms: the last time at which it had the whole log."""

    def __init__(
        self,
        store: LogSource,
        config: BrokerConfig,
        now_ms: int,
        *,
        epochs: Epochs,
        confirm_offset: Callable[[], int],
    ) -> None:
        super().__init__(store, config, now_ms)
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._confirmed = -1  # as it was sent last
        self._reply = b""
        self._begins_late = False  # an empty slave begins with the last file
        self._mark_end, self._mark_ms = store.end_offset, now_ms
        self.broker_id = -1
        self.is_learner = False
        self.caught_up_ms = now_ms

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take bytes of the slave. HaError: they are not those of a slave that can follow this log."""
        data = self._partial + data
        at = 0
        if self.broker_id < 0:
            at = self._greet(data)
        if self.broker_id >= 0:
            at = self._read_reports(data, at, now_ms)
        if at:  # only whole frames count: single bytes do not keep a place
            self._received_ms = now_ms
        self._partial = data[at:]

    def _greet(self, data: bytes) -> int:
        """Take the handshake; return where it ends, 0: feed more first."""
        self._check_state(data, 0, HANDSHAKE)
        if len(data) < HELLO.size:
            return 0
        hello: tuple[int, int, int, int] = HELLO.unpack_from(data)
        _, begins_late, is_learner, broker_id = hello
        if broker_id < 0:
            raise HaError(f"found a handshake of a slave with id {broker_id}, expected 0 or more ({shown(data)})")
        self.broker_id, self.is_learner, self._begins_late = broker_id, bool(is_learner), bool(begins_late)
        epochs = self._epochs.all()
        head = HELLO_REPLY.pack(HANDSHAKE, len(epochs) * EPOCH.size, self._store.end_offset, self._epochs.last_number)
        self._reply = head + b"".join(EPOCH.pack(*epoch) for epoch in epochs)
        return HELLO.size

    def _read_reports(self, data: bytes, at: int, now_ms: int) -> int:
        """Take the reports; return where the last whole one ends."""
        last = -1
        while at < len(data):
            self._check_state(data, at, TRANSFER)
            if len(data) - at < EPOCH_REPORT.size:
                break
            last = at
            at += EPOCH_REPORT.size
            if self.next_offset < 0:
                self._begin(EPOCH_REPORT.unpack_from(data, last)[1], data[last:at])
        if last >= 0:
            self._take(EPOCH_REPORT.unpack_from(data, last)[1], data[last:at])
            self._note_progress(now_ms)
        return at

    def _check_state(self, data: bytes, at: int, expected: int) -> None:
        """HaError: a whole state is there, and it is another one."""
        if len(data) - at >= STATE.size and (state := STATE.unpack_from(data, at)[0]) != expected:
            raise HaError(
                f"found state {state} ({shown(data[at:])}), expected {expected}: the peer is not a slave in controller "
                "mode; check enableControllerMode on it"
            )

    def _note_progress(self, now_ms: int) -> None:
        """Note when the slave last had all that the log had at that time."""
        end_offset = self._store.end_offset
        if self.acked_offset >= end_offset:
            self.caught_up_ms = now_ms
        elif self.acked_offset >= self._mark_end:
            self.caught_up_ms = self._mark_ms
        else:
            return
        self._mark_end, self._mark_ms = end_offset, now_ms

    def _place_of_empty(self) -> int:
        """Return where a slave without a log begins: with the first file, unless it wants the last one."""
        return super()._place_of_empty() if self._begins_late else self._store.min_physical_offset

    def next_bytes(self, now_ms: int) -> bytes | None:
        """Return the next frame to send; None: there is nothing to send now. LogDiffers: the bytes have expired."""
        if self._reply:
            reply, self._reply = self._reply, b""
            return reply
        return super().next_bytes(now_ms)

    def _frame(self, data: bytes) -> bytes:
        self._confirmed = self._confirm_offset()
        epoch, _ = self._epoch_at(self.next_offset)
        return TRANSFER_HEADER.pack(TRANSFER, len(data), self.next_offset, *epoch, self._confirmed) + data

    def _is_heartbeat_due(self, now_ms: int) -> bool:
        if super()._is_heartbeat_due(now_ms):
            return True
        return now_ms - self._sent_ms >= CONFIRM_PAUSE_MS and self._confirmed != self._confirm_offset()

    def _allowed_size(self, now_ms: int) -> int:
        """A piece does not go past the end of its epoch."""
        _, end = self._epoch_at(self.next_offset)
        return min(super()._allowed_size(now_ms), end - self.next_offset)

    def _epoch_at(self, physical_offset: int) -> tuple[Epoch, int]:
        """Return the epoch of a byte, and where it ends. A byte without an epoch counts as of the first."""
        epochs = self._epochs.all()
        found, end = epochs[0], self._store.end_offset
        for epoch in epochs[1:]:
            if epoch.start_offset > physical_offset:
                return found, epoch.start_offset
            found = epoch
        return found, end
