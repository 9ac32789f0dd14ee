"""The shell around a core: the sockets, the clock and the timer.

A core decides (`handle`, `tick`) and returns Sends. The shell writes each Send to its connection, at once or when the
log is durable up to the Send's offset.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from mqtrail.net import Log, ServerConnection, next_command
from mqtrail.wire import (
    Host,
    Peer,
    PeerId,
    RemotingCommand,
    RemotingError,
    ResponseCode,
    Send,
    WorkParts,
    answer_failure,
    encode_command,
)

from .clock import wall_clock_ms
from .late import late_replies, refused_replies
from .watchdog import Watchdog, work_of

log = Log()

TICK_WAIT_MAX_MS = 60_000  # longest time between two ticks
TICK_PAUSE_MS = 1  # shortest time between two ticks, also if the core asks for an earlier one
FAILED_PAUSE_MS = 100  # until the next tick after something failed, which stays due


class Core(Protocol):
    """The interface that Broker, NameServer and Controller share."""

    parts: WorkParts

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]: ...

    def tick(self, now_ms: int) -> list[Send]: ...

    def next_tick_ms(self) -> int | None: ...

    def disconnected(self, peer: PeerId) -> list[Send]: ...


class ReplyWriter(Protocol):
    """Takes the replies for one peer: a ServerConnection, or a `Line` inside the process."""

    @property
    def id(self) -> int: ...

    @property
    def host(self) -> Host: ...

    def write(self, data: bytes) -> None: ...


class Hold(Protocol):
    """`Flusher.after`."""

    def __call__(
        self,
        physical_offset: int,
        release: Callable[[], None],
        late: Callable[[ResponseCode], Callable[[], None] | None] | None,
        refuse: Callable[[], None] | None,
        size: int,
    ) -> None: ...


class HoldForTables(Protocol):
    """`TableWriter.after`."""

    def __call__(self, number: int, release: Callable[[], None], refuse: Callable[[str], None], size: int) -> None: ...


class Shell:
    """Serves one core to the connections of one server: a `net.Application`.

    hold: `Flusher.after`, for Sends that wait for the log; None: `after_offset` is ignored (ASYNC_FLUSH).
    hold_for_tables: `TableWriter.after`, for Sends that wait for tables. on_change: called after each call that may
    have changed the core, to save tables and register topics.
    """

    def __init__(
        self,
        core: Core,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        hold: Hold | None = None,
        hold_for_tables: HoldForTables | None = None,
        on_change: Callable[[], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.watchdog = watchdog or Watchdog()
        self._core = core
        core.parts.report = self._part_failed
        self._paused_until_s = 0.0  # of the loop's clock: no tick before it
        self._clock = clock
        self._hold = hold
        self._hold_for_tables = hold_for_tables
        self._on_change = on_change
        self._connections: dict[PeerId, ReplyWriter] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._stopped = False

    def start(self) -> None:
        """Start to call `tick`."""
        self.set_timer()

    def stop(self) -> None:
        """Stop calling `tick`."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # net.Application

    def connected(self, connection: ServerConnection) -> None:
        connection.data = self.join(connection)

    def join(self, connection: ReplyWriter) -> Peer:
        """Return the peer of a new connection; from now on it gets its replies."""
        peer = Peer(PeerId(connection.id), connection.host)
        self._connections[peer.id] = connection
        return peer

    def disconnected(self, connection: ReplyWriter) -> None:
        peer_id = PeerId(connection.id)
        self._connections.pop(peer_id, None)
        try:
            self.write(self._core.disconnected(peer_id))
        except Exception:
            log.sparse.exception("core.disconnect_failed", peer=str(connection.host))
        self.set_timer()

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        """Serve one command after another by `handle`."""
        now_ms = self._clock()
        self.watchdog.begin()
        try:
            while start < end and not connection.write_paused:
                command, start = next_command(buffer, start, end)
                if command is None:
                    break
                self.write(self.decide(cast(Peer, connection.data), command, now_ms))
                if connection.turn_is_over():
                    break
        finally:
            self.set_timer()
        return start

    def serve(self, peer: Peer, command: RemotingCommand) -> None:
        """Serve one request from inside the process."""
        try:
            self.write(self.decide(peer, command, self._clock()))
        finally:
            self.set_timer()

    # The core's decisions

    def decide(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Return the core's decision. An unexpected exception is logged and answered by code 1 (SYSTEM_ERROR)."""
        began_s = self.watchdog.clock()
        try:
            return self._core.handle(peer, command, now_ms)
        except Exception as error:
            log.sparse.exception("core.failed", code=command.code, peer=str(peer.address))
            if command.is_oneway or command.is_response:
                return []
            return answer_failure(peer, command, error)
        finally:
            self.watchdog.end(began_s, work_of(command.code), str(peer.address))

    def write(self, sends: list[Send]) -> None:
        """Write each Send to its connection, now or when its log offset and tables are durable. Skip closed ones."""
        for send in sends:
            connection = self._connections.get(send.peer)
            if connection is None:
                continue
            try:
                data = encode_command(send.command)
            except (
                RemotingError
            ) as error:  # the reply is above 16 MiB: reply with an error, or the peer waits until its timeout
                log.sparse.error("reply.too_long", peer=str(connection.host), code=send.command.code, error=str(error))
                data = encode_command(RemotingCommand.reply_to(send.command, ResponseCode.SYSTEM_ERROR, str(error)))
            if send.after_tables and self._hold_for_tables is not None:
                self._hold_for_tables(
                    send.after_tables,
                    partial(self.write_bytes, connection, data, send.after_offset),
                    partial(_refuse, connection, send.command),
                    len(data),
                )
            else:
                self.write_bytes(connection, data, send.after_offset)

    def write_bytes(self, connection: ReplyWriter, data: bytes, after_offset: int) -> None:
        """Write an encoded reply, now or when the log is durable up to after_offset."""
        if after_offset and self._hold is not None:
            self._hold(
                after_offset,
                partial(connection.write, data),
                partial(_write_late, connection, data),
                partial(_write_refused, connection, data),
                len(data),
            )
        else:
            connection.write(data)

    # Time

    def set_timer(self, after_ms: int = 0) -> None:
        """Set the timer to the core's next tick, not before after_ms. Call it after each call of the core."""
        due_ms: int | None = 0
        try:
            if self._on_change is not None:
                self._on_change()
            due_ms = self._core.next_tick_ms()
        except Exception:
            self._part_failed("time of the next tick")
        if self._stopped:
            return
        now_ms = self._clock()
        if self._paused_until_s:
            after_ms = max(after_ms, now_ms + self._pause_ms())
        latest_ms = now_ms + TICK_WAIT_MAX_MS
        due_ms = latest_ms if due_ms is None else min(max(due_ms, now_ms, after_ms), latest_ms)
        if self._timer is not None:
            # A timer that fires too early only sets itself again, so only an earlier time replaces it.
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later((due_ms - now_ms) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock()
        began_s = self.watchdog.begin()
        try:
            self.write(self._core.tick(now_ms))
        except Exception:
            self._part_failed("tick")
        self.watchdog.end(began_s, "tick")
        self.set_timer(now_ms + TICK_PAUSE_MS)

    def _part_failed(self, part: str) -> None:
        """Log the exception of a part of the core's own work."""
        self._paused_until_s = self._loop.time() + FAILED_PAUSE_MS / 1000
        log.sparse.exception("core.tick_failed", part=part)

    def _pause_ms(self) -> int:
        """Return the rest of the pause after a failure."""
        left_s = self._paused_until_s - self._loop.time()
        if left_s <= 0:
            self._paused_until_s = 0.0
        return max(0, math.ceil(left_s * 1000))


def _refuse(connection: ReplyWriter, command: RemotingCommand, remark: str) -> None:
    """Answer SYSTEM_ERROR in place of a reply. A Send that is a request (a notification, a check) is dropped."""
    if command.is_response:
        connection.write(encode_command(RemotingCommand.reply_to(command, ResponseCode.SYSTEM_ERROR, remark)))


def _write_late(connection: ReplyWriter, data: bytes, code: ResponseCode) -> Callable[[], None] | None:
    """Answer code to sends whose flush or replication is late; return what writes the other replies after the
    flush."""
    late, waiting = late_replies(data, code)
    if late:
        connection.write(late)
    return (lambda: connection.write(waiting)) if waiting else None


def _write_refused(connection: ReplyWriter, data: bytes) -> None:
    """Answer at once replies that cannot wait for the flush, because too many wait."""
    connection.write(refused_replies(data))
