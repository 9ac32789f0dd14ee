"""The slave's end of a connection to its master: appends the bytes that arrive, and reports its position.

Only whole records become part of the log; the beginning of one waits in memory for its rest. So the position that is
reported is always the end of a record, and a slave that is killed continues at one. A new connection starts over with
such a position.
Source: DefaultHAClient, apache/rocketmq store/ha/.
"""

from typing import Protocol

from ..config import BrokerConfig
from .frames import CHUNK_SIZE_MAX, HEADER, REPORT, HaError, shown


class LogTarget(Protocol):
    """What a follower needs of a store."""

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    def append_copy(self, physical_offset: int, data: bytes | bytearray | memoryview) -> int: ...


class Follower:
    """One connection. What the log has must be durable before (SYNC_FLUSH): the first report is its end."""

    def __init__(self, store: LogTarget, config: BrokerConfig, now_ms: int) -> None:
        self._store = store
        self._config = config
        self._received = bytearray()  # frames not read yet
        self._tail = bytearray()  # the beginning of a record; it belongs at the log's end
        self._tail_offset = store.end_offset
        self._received_ms = now_ms
        self._reported_ms = now_ms
        self._reported = -1
        self.confirm_offset = -1  # in controller mode

    def hello(self) -> bytes:
        """Return what to send before anything is received: nothing in this form of the protocol."""
        return b""

    def receive(self, data: bytes, now_ms: int) -> None:
        """Append what the master sent. HaError, LogDiffers: it does not continue this log; StoreFull: no space."""
        self._received_ms = now_ms
        received = self._received
        received += data
        at = 0
        try:
            while (end := self._read_frame(received, at)) is not None:
                at = end
        finally:
            del received[:at]

    def _read_frame(self, received: bytearray, at: int) -> int | None:
        """Take the frame at `at`; return where it ends; None: feed more first."""
        if len(received) - at < HEADER.size:
            return None
        frame: tuple[int, int] = HEADER.unpack_from(received, at)
        offset, size = frame
        self._check(offset, size, bytes(received[at : at + 16]))
        first = at + HEADER.size
        if len(received) - first < size:
            return None
        if size:
            self._append(offset, received[first : first + size])
        return first + size

    def _check(self, offset: int, size: int, head: bytes) -> None:
        """HaError: this is no frame that continues the log."""
        if not 0 <= size <= CHUNK_SIZE_MAX or offset < 0:
            raise HaError(
                f"found a frame of {size} bytes for physical offset {offset} ({shown(head)}), expected 0 to "
                f"{CHUNK_SIZE_MAX} bytes: the peer is not a master of 4.x, or of 5.x without a controller; correct "
                "haMasterAddress"
            )
        expected = self._tail_offset + len(self._tail)
        if offset != expected and expected != 0:
            raise HaError(f"found bytes for physical offset {offset}, expected {expected}, where this log continues")

    def _append(self, offset: int, data: bytearray) -> None:
        if not self._tail:
            self._tail_offset = offset
        self._tail += data
        self._store_tail(self._tail)

    def _store_tail(self, data: bytearray) -> None:
        """Append the whole records in the first bytes of the tail."""
        stored = self._store.append_copy(self._tail_offset, data)
        if stored:
            del self._tail[:stored]
            self._tail_offset += stored

    @property
    def position(self) -> int:
        """The position to report: where the log ends, or up to where it is durable (SYNC_FLUSH)."""
        return self._store.flushed_offset if self._config.sync_flush else self._store.end_offset

    def report(self, now_ms: int) -> bytes | None:
        """Return a report if one is due: the log grew, nothing was reported yet, or a heartbeat is due."""
        position = self.due_report(now_ms)
        return None if position is None else REPORT.pack(position)

    def due_report(self, now_ms: int) -> int | None:
        """Return the position to report now; None: no report is due."""
        position = self._store.end_offset if self._reported < 0 else max(self.position, self._reported)
        if position == self._reported and now_ms - self._reported_ms < self._config.ha_heartbeat_ms:
            return None
        self._reported, self._reported_ms = position, now_ms
        return position

    def check(self, now_ms: int) -> None:
        """HaError: the master was silent for too long."""
        silent_ms = now_ms - self._received_ms
        if silent_ms > self._config.ha_silence_ms:
            raise HaError(
                f"found no bytes of the master for {silent_ms} ms, expected some within {self._config.ha_silence_ms} "
                "ms (haHousekeepingInterval)"
            )
