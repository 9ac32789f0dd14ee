"""The master's end of one connection of a slave: what to send next, and how far the slave is.

A slave reports its position when its log grew, and every few seconds. Only the last whole report counts. Its first one
decides where the transfer starts; bytes of the log follow without being asked for, then heartbeats. The shell asks for
the next bytes when the connection can take them, so a slow slave holds nothing in memory.
Source: DefaultHAConnection, FlowMonitor, apache/rocketmq store/ha/.
"""

from typing import Protocol

from ..config import BrokerConfig
from .frames import HEADER, REPORT, HaError, shown

SECOND_MS = 1_000


class LogSource(Protocol):
    """What a sender needs of a store."""

    @property
    def end_offset(self) -> int: ...

    @property
    def min_physical_offset(self) -> int: ...

    @property
    def segment_size(self) -> int: ...

    def log_bytes(self, physical_offset: int, size_max: int) -> bytes: ...


class LogSender:
    """acked_offset: physical offset up to which the slave has the log; -1: it has reported nothing yet.

    next_offset: the next byte to send; -1 before the first report.
    """

    def __init__(self, store: LogSource, config: BrokerConfig, now_ms: int) -> None:
        self._store = store
        self._config = config
        self._partial = b""
        self._received_ms = self._sent_ms = now_ms
        self._second_ms = now_ms  # when the present second of the flow control began
        self._sent_in_second = 0
        self._sent_second_before = 0
        self.acked_offset = -1
        self.next_offset = -1

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take bytes of the slave. HaError: they are no report of a slave that can follow this log."""
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        if not whole:
            return
        self._received_ms = now_ms  # only whole reports count: single bytes do not keep a place
        if self.next_offset < 0:
            self._begin(REPORT.unpack_from(data)[0], data)
        self._take(REPORT.unpack_from(data, whole - REPORT.size)[0], data[whole - REPORT.size :])

    def _take(self, reported: int, data: bytes) -> None:
        """Take a report; data: its bytes. HaError: nothing was sent up to there."""
        if not self.acked_offset <= reported <= self.next_offset:
            raise HaError(
                f"found a report of physical offset {reported}, expected {self.acked_offset} to {self.next_offset}, "
                f"what was sent ({shown(data)})"
            )
        self.acked_offset = reported

    def _begin(self, reported: int, data: bytes) -> None:
        """Choose where to start. HaError: the log does not have this place."""
        store = self._store
        if reported == 0:
            self.acked_offset = 0
            self.next_offset = self._place_of_empty()
            return
        first, end = store.min_physical_offset, store.end_offset
        if not 0 < reported <= end:
            raise HaError(
                f"found a first report of physical offset {reported}, expected at most {end}, the end of this log: "
                f"the slave has messages that this master does not have, or the peer is not a slave ({shown(data)}). "
                "Compare both logs; to drop the slave's messages, start it with an empty folder"
            )
        if reported < first:
            raise HaError(
                f"found a slave at physical offset {reported}, expected {first} or more: the part of the log that it "
                "lacks has expired here. Start it with an empty folder"
            )
        self.acked_offset = self.next_offset = reported

    def _place_of_empty(self) -> int:
        """Return where a slave without a log begins: with the last file."""
        end = self._store.end_offset
        return max(end - end % self._store.segment_size, self._store.min_physical_offset)

    def next_bytes(self, now_ms: int) -> bytes | None:
        """Return the next frame to send; None: there is nothing to send now. LogDiffers: the bytes have expired."""
        if self.next_offset < 0:
            return None
        size = self._allowed_size(now_ms)
        data = self._store.log_bytes(self.next_offset, size) if size else b""
        if not data and not self._is_heartbeat_due(now_ms):
            return None
        self._sent_ms = now_ms
        self._begin_second(now_ms)
        self._sent_in_second += len(data)
        frame = self._frame(data)
        self.next_offset += len(data)
        return frame

    def _frame(self, data: bytes) -> bytes:
        """Return the next bytes of the log as they are sent; without data a heartbeat."""
        return HEADER.pack(self.next_offset, len(data)) + data

    def _is_heartbeat_due(self, now_ms: int) -> bool:
        return now_ms - self._sent_ms >= self._config.ha_heartbeat_ms

    def _allowed_size(self, now_ms: int) -> int:
        """Return how many bytes of the log the flow control allows now."""
        config = self._config
        if not config.ha_flow_control:
            return config.ha_chunk_size
        self._begin_second(now_ms)
        return max(0, min(config.ha_chunk_size, config.ha_rate_max - self._sent_in_second))

    def _begin_second(self, now_ms: int) -> None:
        passed_ms = now_ms - self._second_ms
        if not 0 <= passed_ms < SECOND_MS:
            self._sent_second_before = self._sent_in_second if 0 <= passed_ms < 2 * SECOND_MS else 0
            self._second_ms, self._sent_in_second = now_ms, 0

    def rate(self, now_ms: int) -> int:
        """Return the bytes of the log sent in the last whole second."""
        self._begin_second(now_ms)
        return self._sent_second_before

    def check(self, now_ms: int) -> None:
        """HaError: the slave was silent for too long."""
        silent_ms = now_ms - self._received_ms
        if silent_ms > self._config.ha_silence_ms:
            raise HaError(
                f"found no report for {silent_ms} ms, expected one within {self._config.ha_silence_ms} ms "
                "(haHousekeepingInterval)"
            )
