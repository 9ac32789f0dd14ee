"""Delivery: one message that the application processes, and its outcome.

    async for m in consumer:
        async with m.process():        # success when the block ends, retry when it raises
            await handle(m.body)

An unsettled delivery holds its queue's offset: the message is delivered again, here or to another member of the group.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from mqtrail.net import Log
from mqtrail.wire import MessageExt, MessageQueue

from ..core import ClientError, RetryLater
from ..trace import detail

log = Log()

DEAD_LETTER = -1  # delay level of a message that is not to be delivered again


class Outcome(NamedTuple):
    """The outcome of a handler for a message. result: SUCCESS, FAILED or EXCEPTION; the rest is RetryLater's."""

    result: str
    delay_level: int = 0
    suspend_ms: int | None = None
    detail: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Outcome":
        """Return the outcome for an exception of the handler."""
        if isinstance(error, RetryLater):
            return cls("FAILED", error.delay_level, error.suspend_ms, error.detail)
        return cls("EXCEPTION", detail=detail(error))


SUCCESS = Outcome("SUCCESS")


class Source(Protocol):
    """Where a delivery comes from: a queue that is pulled, or one that is popped."""

    @property
    def queue(self) -> MessageQueue: ...


class Settler(Protocol):
    """The consumer, as deliveries see it."""

    def begun(self, deliveries: Sequence["Delivery"]) -> None:
        """A handler starts with these, all of one source: note the time, notify the hooks."""

    def startable(self, deliveries: Sequence["Delivery"]) -> Sequence["Delivery"]:
        """Those that may go to the application now."""
        ...

    def abandon(self, deliveries: Sequence["Delivery"]) -> None:
        """The handler was cancelled, and these are not settled."""

    async def settle(self, deliveries: Sequence["Delivery"], outcomes: Sequence[Outcome]) -> None:
        """The handler has finished, one outcome per delivery. Settling completes even if the caller is cancelled."""


class Delivery:
    """A message and its outcome. The message's own fields are in `message`; the common ones are here too."""

    __slots__ = ("_later", "_settled", "_settler", "message", "process_queue", "request_id", "started_ms")

    def __init__(self, message: MessageExt, process_queue: Source, settler: Settler) -> None:
        self.message = message
        self.process_queue = process_queue
        self.request_id = ""
        self.started_ms = 0
        self._settler = settler
        self._settled = False
        self._later: Outcome | None = None

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes from the group's retry topic."""
        return self.message.topic

    @property
    def tags(self) -> str:
        return self.message.tags

    @property
    def keys(self) -> tuple[str, ...]:
        return self.message.keys

    @property
    def msg_id(self) -> str:
        return self.message.msg_id

    @property
    def properties(self) -> dict[str, str]:
        return self.message.properties

    @property
    def undecodable(self) -> str | None:
        """Why the message could not be read, None if it could (delivered only with `on_undecodable=DELIVER`)."""
        return self.message.undecodable

    @property
    def attempt(self) -> int:
        """1 for the first delivery, one more for each failure before."""
        return self.message.reconsume_times + 1

    @property
    def queue(self) -> MessageQueue:
        """The queue it was pulled from (of the retry topic, when it comes from there)."""
        return self.process_queue.queue

    @property
    def settled(self) -> bool:
        """Whether its outcome is decided."""
        return self._settled

    @property
    def settler(self) -> Settler:
        """Who decides what becomes of it."""
        return self._settler

    @property
    def outcome(self) -> Outcome:
        """What `process` would settle it as now: a success, unless `retry_later` was called."""
        return self._later or SUCCESS

    def taken(self) -> "Delivery | None":
        """Return itself if it may still go to the application, else None."""
        return self if self._settler.startable((self,)) else None

    def begin(self) -> None:
        """Note that its handler starts now. `process` does so by itself."""
        if not self.started_ms:
            self._settler.begun((self,))

    def retry_later(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        """Decide inside `process` that the message is retried; see RetryLater for the arguments."""
        self._later = Outcome("FAILED", delay_level, suspend_ms, detail)

    async def ack(self) -> None:
        """Settle it as a success."""
        await self._settle(SUCCESS)

    async def reject(self, reason: str) -> None:
        """Settle it as one that retries cannot help: it becomes a dead letter, if its group has any."""
        await self._settle(Outcome("EXCEPTION", DEAD_LETTER, detail=detail(reason)))

    async def retry(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        """Settle it as a failure: it is delivered again; after the last attempt (-1: now) it becomes a dead letter."""
        await self._settle(Outcome("FAILED", delay_level, suspend_ms, detail))

    @asynccontextmanager
    async def process(self, *, reraise: bool = False) -> AsyncIterator["Delivery"]:
        """Settle it when the block ends: as a success, or for a retry if the block raises.

        The exception is logged and not raised, so that a loop over a consumer continues; reraise raises it after the
        message was returned. Cancellation leaves the message unsettled: it is delivered again.
        """
        self.begin()
        try:
            yield self
        except RetryLater as later:
            await self._settle(Outcome.of(later))
        except Exception as error:
            log.exception("consumer.handler_failed", topic=self.topic, msg_id=self.msg_id, attempt=self.attempt)
            await self._settle(Outcome.of(error))
            if reraise:
                raise
        except BaseException:
            if not self._settled:
                self._settler.abandon((self,))
            raise
        else:
            await self._settle(self._later or SUCCESS)

    def claim(self) -> None:
        """Claim the settling, which is possible once. Raises ClientError if it is settled already."""
        if self._settled:
            raise ClientError(f"message {self.msg_id} is settled already: one ack, retry or process block each")
        self._settled = True

    async def _settle(self, outcome: Outcome) -> None:
        self.claim()
        self.begin()
        await self._settler.settle((self,), (outcome,))

    def __repr__(self) -> str:
        return f"Delivery({self.topic!r}, msg_id={self.msg_id!r}, attempt={self.attempt}, body={len(self.body)} bytes)"
