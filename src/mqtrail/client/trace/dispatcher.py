"""The dispatcher: accepts trace records without waiting, and reports every lost one.

The path of a context: open segment -> ready (a closed trace message in memory) -> the broker. While the broker is
unreachable, ready messages are moved to the spool file. Contexts that fit into neither are lost; their count is
written into the trace (TraceLoss, and droppedTotal of every TraceBatch). At any time

    recorded = sent + in memory + spooled + lost

Everything runs on one event loop; a worker thread accesses the files.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import MQError

from ..core import TraceConfig, keep_going, report
from .segments import Segment, TraceSegments
from .shared_spool import SharedSpool, SpoolTicket
from .spool import SpooledMessage, SpoolFull
from .text import trace_batch, trace_loss

log = Log()

SendTrace = Callable[[SpooledMessage], Awaitable[None]]


class TraceRefused(MQError):
    """The broker rejected this trace message, and would reject a retry."""


@dataclass(slots=True)
class Loss:
    """Contexts lost for one reason, between two times (epoch ms)."""

    reason: str
    from_ms: int
    to_ms: int
    count: int


@dataclass(slots=True, eq=False)
class _Ready:
    """A closed trace message, and the losses it reports. If it is lost, a later message reports them."""

    message: SpooledMessage
    losses: tuple[Loss, ...]
    size: int


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """The contexts of this client by state; recorded is the sum of the other four.

    A context is one attempt to send, the start or end of a handler call, or one commit.
    """

    recorded: int
    sent: int
    in_memory: int
    spooled: int
    lost: int


class Dispatcher:
    """Collects the trace of one client and sends it to the trace topic.

    Call all methods on one event loop. client_id and start_id identify the sequence of its messages, so that a reader
    detects gaps. collect is called before segments are read; it records what its owner has gathered (the send path
    does not write text itself). send raises MQError, OSError or TimeoutError if a later retry may help, else
    TraceRefused.
    """

    def __init__(
        self,
        client_id: str,
        start_id: str,
        send: SendTrace,
        config: TraceConfig,
        spool: SharedSpool,
        collect: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = now_ms,
        end: Callable[[int], str] | None = None,
    ) -> None:
        """end: returns the last record of a client that stops normally, given the time."""
        self.client_id = client_id
        self.start_id = start_id
        self._send = send
        self._config = config
        self._spool = spool
        self._collect = collect
        self._clock_ms = clock_ms
        self._end = end
        self._segments = TraceSegments(config)
        self._ready: deque[_Ready] = deque()
        self._in_flight: set[_Ready] = set()
        self._held_size = 0  # bytes of ready and in-flight messages
        self._losses: dict[str, Loss] = {}
        self._sequence = 0
        self._recorded = self._sent = self._spooled = self._lost = 0
        self._timer: asyncio.TimerHandle | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._spilling: asyncio.Task[None] | None = None
        self._spool_waits = True  # the spool may have messages
        self._outage_ms = 0  # the current wait between attempts; 0: no outage
        self._room = config.memory_size_max  # 0 once closed
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start sending, also messages that earlier processes left in the spool folder."""
        self._loop = asyncio.get_running_loop()
        self._wake()

    @property
    def counts(self) -> TraceCounts:
        """The numbers of this client's contexts by state."""
        self._collect()
        in_memory = self._segments.count + sum(ready.message.record_count for ready in (*self._ready, *self._in_flight))
        return TraceCounts(self._recorded, self._sent, in_memory, self._spooled, self._lost)

    def record(self, topic: str, text: str, keys: Sequence[str], now_ms: int, *, ids: str = "", count: int = 1) -> None:
        """Record contexts of one business topic, usually one. Never waits, never raises.

        text: their records. keys: the ids and keys to find them by; each item may be several, joined by blanks;
        duplicates are allowed. ids: further ids, joined by blanks, without duplicates. count: number of contexts.
        """
        self._recorded += count
        if self._segments.size + self._held_size + len(text) > self._room:
            self._lose("recorded after close" if self._closed else "memory full", now_ms, count)
            self.wake_later()
            return
        try:
            closed = self._segments.add(topic, text, ids, keys, count, now_ms)
        except Exception as error:
            self._lose_uncomposed(topic, count, error)
            return
        for segment in closed:
            self._make_ready(segment)
        if self._timer is None:
            self.wake_later()

    def wake_later(self) -> None:
        """Check open segments after linger_ms."""
        if self._timer is None and self._loop is not None and not self._closed:
            self._timer = self._loop.call_later(self._config.linger_ms / 1000, self._on_linger)

    def flush(self) -> None:
        """Close all open segments, so that they are sent now."""
        self._collect()
        for segment in self._segments.close_all():
            self._make_ready(segment)

    async def close(self, wait_ms: int | None = None) -> None:
        """Send the remaining messages for at most wait_ms (None: close_wait_ms), then spool the rest.

        Messages that the spool cannot take are counted as lost and logged.
        """
        if self._closed:
            return
        self.flush()
        if self._end is not None:
            self._make_ready(Segment(), self._end(self._clock_ms()))
        else:
            self._report_losses()
        self._closed = True
        self._room = -1
        if self._timer is not None:
            self._timer.cancel()
        self._loop = loop = asyncio.get_running_loop()
        end = loop.time() + (self._config.close_wait_ms if wait_ms is None else wait_ms) / 1000
        while (self._ready or self._in_flight) and not self._outage_ms and (left := end - loop.time()) > 0:
            self._wake()
            await asyncio.wait(list(self._workers), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._cancel_workers()
        await self._spill(0)
        await self._spool_losses()
        await asyncio.to_thread(self._spool.release)

    # -- from segments to ready messages --------------------------------------------------------------------------

    def _on_linger(self) -> None:
        self._timer = None
        try:
            self._collect()
        except Exception as error:
            report("trace.not_collected", error)
        for segment in self._segments.due(self._clock_ms() - self._config.linger_ms + 1):
            self._make_ready(segment)
        if self._segments:
            self.wake_later()
        elif not self._ready:
            self._report_losses()

    def _make_ready(self, segment: Segment, last: str = "") -> bool:
        """Queue the message of a segment, with a last record. False: it cannot be composed and is counted as lost."""
        try:
            ready = self._compose(segment, last)
        except Exception as error:
            self._lose_uncomposed(segment.topic, segment.count, error)
            return False
        self._ready.append(ready)
        self._held_size += ready.size
        half = self._config.memory_size_max // 2
        if self._held_size > half and self._spilling is None and self._loop is not None:
            self._spilling = self._loop.create_task(self._spill(half // 2))
        self._wake()
        return True

    def _compose(self, segment: Segment, last: str = "") -> _Ready:
        losses = tuple(self._losses.values())
        head = [trace_batch(self.client_id, self.start_id, self._sequence + 1, self._clock_ms(), self._lost)]
        head += [
            trace_loss(self.client_id, self.start_id, loss.from_ms, loss.to_ms, loss.count, loss.reason)
            for loss in losses
        ]
        body = f"{''.join(head)}{segment.text}{last}".encode("utf-8", "replace")
        keys = segment.keys(self._config.keys_size_max)
        message = SpooledMessage(self._config.topic, keys, body, segment.count, self.start_id, segment.topic)
        self._sequence += 1
        self._losses = {}
        return _Ready(message, losses, len(body) + len(keys))

    def _report_losses(self) -> bool:
        """Queue a message that only reports losses. False: there are none, or it cannot be composed."""
        return bool(self._losses) and self._make_ready(Segment())

    def _lose_uncomposed(self, topic: str, count: int, error: Exception) -> None:
        """Count contexts whose text cannot be written: a bug, which must not cause the loss of other contexts."""
        self._lose("not composed", self._clock_ms(), count)
        report("trace.lost", error, topic=topic, count=count)

    def _lose(self, reason: str, now_ms: int, count: int, losses: Sequence[Loss] = ()) -> None:
        """Count contexts as lost. losses: those that their message would have reported."""
        self._lost += count
        for loss in (*losses, *([Loss(reason, now_ms, now_ms, count)] if count else [])):
            if (known := self._losses.get(loss.reason)) is None:
                self._losses[loss.reason] = loss
            else:
                known.from_ms = min(known.from_ms, loss.from_ms)
                known.to_ms = max(known.to_ms, loss.to_ms)
                known.count += loss.count

    # -- sending ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Start workers for ready messages, up to in_flight_max; during an outage, only one."""
        if self._loop is None:
            return
        wanted = 1 if self._outage_ms else min(self._config.in_flight_max, max(1, len(self._ready)))
        while len(self._workers) < wanted:
            self._workers.add(self._loop.create_task(self._work()))

    async def _work(self) -> None:
        """Send ready messages, then spooled ones, until none are left."""
        try:
            sent = asyncio.Event()
            await keep_going("trace", partial(self._send_all, sent), sent.is_set)
        finally:
            # Not in a done callback: until that ran, _wake would count a worker that has ended.
            task = asyncio.current_task()
            assert task is not None
            self._workers.discard(task)

    async def _send_all(self, sent: asyncio.Event) -> None:
        """Send all messages, then set sent."""
        while not (self._closed and self._outage_ms):  # in that case close spools the rest
            if self._ready:
                await self._send_ready(self._ready.popleft())
            elif self._closed or not self._spool_waits or not await self._send_spooled():
                if self._ready:
                    continue  # a message became ready while the spool was read
                if self._segments or self._closed or not self._report_losses():
                    break
        sent.set()

    async def _send_ready(self, ready: _Ready) -> None:
        self._in_flight.add(ready)
        failure: Exception | None = None
        try:
            await self._send(ready.message)
        except TraceRefused as error:
            self._forget(ready)
            self._lose("refused by the broker", self._clock_ms(), ready.message.record_count, ready.losses)
            log.sparse.warning(
                "trace.refused", topic=ready.message.topic, count=ready.message.record_count, error=str(error)
            )
        except Exception as error:
            failure = error
        else:
            self._forget(ready)
            self._sent += ready.message.record_count
            self._outage_ms = 0
        finally:
            if ready in self._in_flight:  # the send failed, or close cancelled it and spools the message
                self._in_flight.discard(ready)
                self._ready.appendleft(ready)
        if failure is not None:
            await self._pause(failure)

    def _forget(self, ready: _Ready) -> None:
        self._in_flight.discard(ready)
        self._held_size -= ready.size

    async def _send_spooled(self) -> bool:
        """Send one message of the spool. False: there is none to send now."""
        self._spool_waits = False  # before the read: a spill during it sets the flag again
        try:
            ticket = await self._take()
        except Exception as error:
            report("trace.spool_unreadable", error, path=str(self._spool.path))
            return False
        if ticket is None:
            return False
        count = ticket.message.record_count if ticket.message.start_id == self.start_id else 0
        finish = ticket.back
        failure: Exception | None = None
        try:
            await self._send(ticket.message)
        except TraceRefused as error:
            finish = ticket.done
            self._spooled -= count
            self._lose("refused by the broker", self._clock_ms(), ticket.message.record_count)
            self._lost -= ticket.message.record_count - count
            log.sparse.warning("trace.refused", topic=ticket.message.topic, count=count, error=str(error))
        except Exception as error:
            failure = error
        else:
            finish = ticket.done
            self._spooled -= count
            self._sent += count
            self._outage_ms = 0
        finally:
            finish()
            self._spool_waits = True
        if failure is not None:
            await self._pause(failure)
        return True

    async def _take(self) -> SpoolTicket | None:
        """Take a message of the spool. If cancelled, give the message back: only one may be taken at a time."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._spool.take))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_give_back)
            await asyncio.wait([taking])
            raise

    async def _pause(self, error: Exception) -> None:
        if not self._outage_ms:
            report(
                "trace.unsent",
                error,
                topic=self._config.topic,
                remedy="check the brokers of the trace topic; the records are kept and retried",
            )
        first, most = self._config.retry_ms, self._config.retry_max_ms
        self._outage_ms = min(self._outage_ms * 2, most) if self._outage_ms else first
        if not self._closed:
            await asyncio.sleep(self._outage_ms / 1000)

    async def _cancel_workers(self) -> None:
        if workers := list(self._workers):
            for task in workers:
                task.cancel()
            await asyncio.wait(workers)
        if self._spilling is not None:
            await asyncio.wait([self._spilling])

    # -- spilling --------------------------------------------------------------------------------------------------

    async def _spill(self, down_to: int) -> None:
        """Move ready messages, oldest first, to the spool until at most down_to bytes are in memory."""
        try:
            while self._ready and self._held_size > down_to:
                ready = self._ready.popleft()
                self._in_flight.add(ready)
                count = ready.message.record_count
                try:
                    await asyncio.to_thread(self._spool.append, ready.message)
                    self._spooled += count
                    self._spool_waits = True
                except Exception as error:
                    self._lose(_spool_reason(error), self._clock_ms(), count, ready.losses)
                    report("trace.lost", error, count=count)
                self._forget(ready)
        finally:
            self._spilling = None
            if not self._closed:
                self._wake()

    async def _spool_losses(self) -> None:
        """At close: write the last losses into the spool's reserve, so that the next start reports them."""
        if not self._losses:
            return
        total = sum(loss.count for loss in self._losses.values())
        try:
            note = self._compose(Segment())
            await asyncio.to_thread(self._spool.append, note.message, note=True)
        except Exception as error:
            report("trace.loss_unreported", error, count=total)


def _give_back(taking: asyncio.Future[SpoolTicket | None]) -> None:
    if not taking.cancelled() and taking.exception() is None and (ticket := taking.result()) is not None:
        ticket.back()


def _spool_reason(error: Exception) -> str:
    return "spool full" if isinstance(error, SpoolFull) else "spool unusable"
