"""The shell of a broker: whole pieces go through the fast lane, replies wait for the flush where they must."""

from collections.abc import Callable
from typing import cast

from mqtrail.broker import Broker, Lane
from mqtrail.net import ServerConnection, next_command
from mqtrail.wire import Peer, Send

from .clock import wall_clock_ms
from .shell import Hold, HoldForTables, Shell
from .watchdog import STALL_S, Watchdog, work_of

BUSY_FROM_MS = 5  # a piece that takes as long keeps others waiting
LARGE_PIECE_SIZE = 16 * 1024  # smaller ones do not, unless they are more than sends and pulls


class BrokerShell(Shell):
    """`process` is the lane's: one call, one append and one write for all that one read brought."""

    def __init__(
        self,
        core: Broker,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        hold: Hold | None = None,
        hold_for_tables: HoldForTables | None = None,
        on_change: Callable[[], None] | None = None,
        on_stored: Callable[[], None] | None = None,
        when_told: Callable[[Callable[[], None]], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """on_stored: called after pieces that may have stored messages. when_told: `Registrar.when_told`."""
        super().__init__(
            core,
            clock=clock,
            hold=hold,
            hold_for_tables=hold_for_tables,
            on_change=on_change,
            watchdog=watchdog or Watchdog(core.stalls),
        )
        self._on_stored = on_stored
        self._when_told = when_told
        self._broker = core
        self._fast_failure = core.fast_failure
        self._busy_since_ms = 0  # since when pieces that were ready together are served; 0: none took long
        self._lane = Lane(core, self.decide)

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        """Serve a piece. RemotingError: its first frame makes no sense."""
        now_ms = self._clock()
        if self._busy_since_ms or connection.kept_s:
            waited_ms = self._waited_ms(connection, now_ms)
            shortest_ms = self._fast_failure.shortest_ms
            if shortest_ms is not None and waited_ms >= shortest_ms:
                return self._process_late(connection, buffer, start, end, now_ms, waited_ms)
        watchdog = self.watchdog
        began_s, stalls = watchdog.clock(), watchdog.stalls
        position, replies, after_offset, sends, handled, stored = self._lane.process(
            cast(Peer, connection.data), buffer, start, end, now_ms, connection.turn_is_over
        )
        if watchdog.clock() - began_s >= STALL_S and watchdog.stalls == stalls:
            command, _ = next_command(buffer, start, end)  # the first of them stands for them all
            watchdog.look(began_s, work_of(-1 if command is None else command.code), str(connection.host))
        if end - start > LARGE_PIECE_SIZE or handled:
            self._look_at_clock(now_ms)
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
            self.look_at_timer()
        return position

    def write(self, sends: list[Send]) -> None:
        """Write each Send; what a topic was made or changed for waits until name servers know it.

        As Apache's broker answers only then, a consumer that starts after updateTopic, or after the first message of a
        topic that makes itself, finds the route at once and not when it asks again in half a minute.
        """
        if sends and self._when_told is not None and self._broker.topics_changed:
            self._when_told(lambda: super(BrokerShell, self).write(sends))
        else:
            super().write(sends)

    # Fast failure. What was ready to be read when the loop last looked, and is read only now, has waited since then; so
    # has what a peer left here because it did not read its replies. More is not known: how long bytes lay in the
    # kernel before that is nobody's to say.

    def _waited_ms(self, connection: ServerConnection, now_ms: int) -> int:
        """Return how long the first request of a piece surely waited."""
        waited_ms = now_ms - self._busy_since_ms if self._busy_since_ms else 0
        if connection.kept_s:
            waited_ms = max(waited_ms, int((self._loop.time() - connection.kept_s) * 1000))
        return waited_ms

    def _look_at_clock(self, began_ms: int) -> None:
        """After a piece that may have taken long: note when it began, for those that were ready with it."""
        if not self._busy_since_ms and self._clock() - began_ms >= BUSY_FROM_MS:
            self._busy_since_ms = began_ms
            self._loop.call_soon(self._caught_up)

    def _caught_up(self) -> None:
        """All that was ready has been served: the loop looks again."""
        self._busy_since_ms = 0

    def _process_late(
        self, connection: ServerConnection, buffer: bytes, start: int, end: int, now_ms: int, waited_ms: int
    ) -> int:
        """Serve a piece that waited long, one command after another: refuse what waited too long."""
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
            self.look_at_timer()
        return start
