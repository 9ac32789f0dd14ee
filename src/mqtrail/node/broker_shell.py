"""The shell of a broker: passes received bytes to the fast lane, and holds replies until the flush that they need."""

from collections.abc import Callable
from functools import partial
from typing import cast

from mqtrail.broker import Broker, HeldPull, Lane
from mqtrail.net import ServerConnection, next_command
from mqtrail.wire import Peer, Send

from .clock import wall_clock_ms
from .shell import Hold, HoldForTables, Shell
from .watchdog import STALL_S, Watchdog, work_of

BUSY_FROM_MS = 5  # a piece that takes this long delays other connections
LARGE_PIECE_SIZE = 16 * 1024  # a smaller piece of sends and pulls never takes that long

Fetch = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs a function in another thread, then the second one in the loop's."""


class BrokerShell(Shell):
    """`process` uses the lane: one call, one append and one write for all frames of one read.

    fetch: `InTime.later`, for a store whose reads another thread runs.
    """

    def __init__(
        self,
        core: Broker,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        hold: Hold | None = None,
        hold_for_tables: HoldForTables | None = None,
        on_change: Callable[[], None] | None = None,
        on_stored: Callable[[], None] | None = None,
        when_registered: Callable[[Callable[[], None]], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """on_stored: called after a piece that may have stored messages. when_registered: of the Registrar."""
        super().__init__(
            core,
            clock=clock,
            hold=hold,
            hold_for_tables=hold_for_tables,
            on_change=on_change,
            watchdog=watchdog or Watchdog(core.stalls),
        )
        self._on_stored = on_stored
        self.fetch: Fetch | None = None
        self._when_registered = when_registered
        self._broker = core
        self._fast_failure = core.fast_failure
        self._busy_since_ms = 0  # when the first slow piece of this loop iteration began; 0: none was slow
        self._lane = Lane(core, self.decide)

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        """Serve a piece. RemotingError: its first frame is malformed."""
        now_ms = self._clock()
        if self._busy_since_ms or connection.kept_s:
            waited_ms = self._waited_ms(connection, now_ms)
            shortest_ms = self._fast_failure.shortest_ms
            if shortest_ms is not None and waited_ms >= shortest_ms:
                return self._process_late(connection, buffer, start, end, now_ms, waited_ms)
        watchdog = self.watchdog
        began_s, stalls = watchdog.clock(), watchdog.stalls
        if began_s >= watchdog.mark_due_s:
            watchdog.mark(began_s)
        position, replies, after_offset, sends, handled, stored = self._lane.process(
            cast(Peer, connection.data), buffer, start, end, now_ms, connection.turn_is_over
        )
        if watchdog.clock() - began_s >= STALL_S and watchdog.stalls == stalls:
            command, _ = next_command(buffer, start, end)  # report the stall under the first command
            watchdog.end(began_s, work_of(-1 if command is None else command.code), str(connection.host))
        if end - start > LARGE_PIECE_SIZE or handled:
            self._note_slow_piece(now_ms)
        if replies:
            if after_offset and self._hold is not None:
                self.write_bytes(connection, replies, after_offset)
            else:
                connection.write(replies)
        if stored and self._on_stored is not None:
            self._on_stored()
        if sends:
            self.write(sends)
        if handled:
            self.set_timer()
        return position

    def write(self, sends: list[Send]) -> None:
        """Write each Send. If the request created or changed a topic, first wait until name servers know it.

        Apache's broker does the same: a consumer that starts after updateTopic, or after the first message to an
        auto-created topic, then finds the route at once instead of after its next route refresh (30 s).
        """
        if sends and self._when_registered is not None and self._broker.topics_changed:
            self._when_registered(lambda: super(BrokerShell, self).write(sends))
        else:
            super().write(sends)

    def set_timer(self, after_ms: int = 0) -> None:
        """Also start the fetches that the core asks for."""
        super().set_timer(after_ms)
        if self.fetch is not None:
            for fetch, pull in self._broker.take_fetches():
                self.fetch(fetch, partial(self._fetched, pull))

    def _fetched(self, pull: HeldPull) -> None:
        self.write(self._broker.fetched(pull, self._clock()))
        self.set_timer()

    # Fast failure. A piece that was readable at the loop's last poll and is read only now has waited since then. The
    # same is true of a piece kept back because the peer did not read its replies. Time in the
    # kernel's buffer before the poll is unknown and not counted.

    def _waited_ms(self, connection: ServerConnection, now_ms: int) -> int:
        """Return the known waiting time of a piece's first request, in ms."""
        waited_ms = now_ms - self._busy_since_ms if self._busy_since_ms else 0
        if connection.kept_s:
            waited_ms = max(waited_ms, int((self._loop.time() - connection.kept_s) * 1000))
        return waited_ms

    def _note_slow_piece(self, began_ms: int) -> None:
        """Note when a slow piece began: pieces that became readable with it have waited since then."""
        if not self._busy_since_ms and self._clock() - began_ms >= BUSY_FROM_MS:
            self._busy_since_ms = began_ms
            self._loop.call_soon(self._caught_up)

    def _caught_up(self) -> None:
        """All readable pieces are served, and the loop polls again."""
        self._busy_since_ms = 0

    def _process_late(
        self, connection: ServerConnection, buffer: bytes, start: int, end: int, now_ms: int, waited_ms: int
    ) -> int:
        """Serve a piece command by command, and refuse the requests that waited too long."""
        peer = cast(Peer, connection.data)
        try:
            while start < end and not connection.write_paused:
                command, start = next_command(buffer, start, end)
                if command is None:
                    break
                sends = self._fast_failure.refuse(peer, command, waited_ms, end - start)
                self.write(self.decide(peer, command, now_ms) if sends is None else sends)
                if connection.turn_is_over():
                    break
        finally:
            if self._on_stored is not None:
                self._on_stored()
            self.set_timer()
        return start
