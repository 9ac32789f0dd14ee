"""The shell of a broker: whole pieces go through the fast lane, replies wait for the flush where they must."""

from collections.abc import Callable
from typing import cast

from mqtrail.broker import Broker, Lane
from mqtrail.net import ServerConnection
from mqtrail.node.shell import Shell, wall_clock_ms
from mqtrail.wire import Peer


class BrokerShell(Shell):
    """`process` is the lane's: one call, one append and one write for all that one read brought."""

    def __init__(
        self,
        core: Broker,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        hold: Callable[[int, Callable[[], None]], None] | None = None,
        on_change: Callable[[], None] | None = None,
        on_stored: Callable[[], None] | None = None,
    ) -> None:
        """on_stored: called after pieces that may have stored messages."""
        super().__init__(core, clock=clock, hold=hold, on_change=on_change)
        self._on_stored = on_stored
        self._lane = Lane(core, self.decide)

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        """Serve a piece. RemotingError: its first frame makes no sense."""
        position, replies, after_offset, sends, handled = self._lane.process(
            cast(Peer, connection.data), buffer, start, end, self._clock()
        )
        if replies:
            if after_offset and self._hold is not None:
                self.write_bytes(connection, replies, after_offset)
            else:
                connection.write(replies)
            if self._on_stored is not None:
                self._on_stored()
        if sends:
            self.write(sends)
        if handled:
            self.look_at_timer()
        return position
