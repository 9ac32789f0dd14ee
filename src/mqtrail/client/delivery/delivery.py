"""Delivery: one message that the application processes, and its outcome.

    async for m in consumer:
        async with m.process():        # success when the block ends, retry when it raises
            await handle(m.body)

An unsettled message keeps its queue's offset from being committed past it, so it is delivered again, here or to another
member of the group.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from mqtrail.net import Log
from mqtrail.wire import MessageExt, MessageQueue

from ..core import ClientError, RetryLater
from ..trace import detail

log = Log()

DEAD_LETTER = -1  # delay level: do not deliver the message again


class Outcome(NamedTuple):
    """The outcome of a handler for a message. result: SUCCESS, FAILED or EXCEPTION. Other fields: see RetryLater."""

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
    """The source of a delivery: a queue that is pulled or popped."""

    @property
    def queue(self) -> MessageQueue: ...


class Settler(Protocol):
    """The consumer, as deliveries see it."""

    def begun(self, deliveries: Sequence["Delivery"]) -> None:
        """Note the time and notify the hooks: a handler starts with these deliveries, all of one source."""

    def startable(self, deliveries: Sequence["Delivery"]) -> Sequence["Delivery"]:
        """Return the deliveries that may be passed to the application now."""
        ...

    def abandon(self, deliveries: Sequence["Delivery"]) -> None:
        """Take back unsettled deliveries whose handler was cancelled."""

    async def settle(self, deliveries: Sequence["Delivery"], outcomes: Sequence[Outcome]) -> None:
        """Settle deliveries, one outcome for each. Settling completes even if the caller is cancelled."""


class Delivery:
    """A message and its outcome. `message` has all fields of the message; the common ones are attributes here too."""

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
        """The topic the message was sent to, also if it was delivered from the group's retry topic."""
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
        """Why the message could not be read; None if it could. Such messages need `on_undecodable=DELIVER`."""
        return self.message.undecodable

    @property
    def attempt(self) -> int:
        """Number of this delivery: 1 for the first, one more for each failure."""
        return self.message.reconsume_times + 1

    @property
    def queue(self) -> MessageQueue:
        """The queue the message was pulled from, which may belong to the retry topic."""
        return self.process_queue.queue

    @property
    def settled(self) -> bool:
        """Whether its outcome is decided."""
        return self._settled

    @property
    def settler(self) -> Settler:
        """Settles this delivery."""
        return self._settler

    @property
    def outcome(self) -> Outcome:
        """The outcome that `process` would settle now: success, unless `retry_later` was called."""
        return self._later or SUCCESS

    def taken(self) -> "Delivery | None":
        """Return itself if it may still be passed to the application, else None."""
        return self if self._settler.startable((self,)) else None

    def begin(self) -> None:
        """Note that its handler starts now. `process` calls this."""
        if not self.started_ms:
            self._settler.begun((self,))

    def retry_later(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        """Decide inside `process` that the message is retried; see RetryLater for the arguments."""
        self._later = Outcome("FAILED", delay_level, suspend_ms, detail)

    async def ack(self) -> None:
        """Settle it as a success."""
        await self._settle(SUCCESS)

    async def reject(self, reason: str) -> None:
        """Settle it as a failure that a retry cannot help: it becomes a dead letter, if its group has those."""
        await self._settle(Outcome("EXCEPTION", DEAD_LETTER, detail=detail(reason)))

    async def retry(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        """Settle it as a failure to be delivered again. After the last attempt, or with delay level -1, it becomes a
        dead letter. For the arguments see RetryLater.
        """
        await self._settle(Outcome("FAILED", delay_level, suspend_ms, detail))

    @asynccontextmanager
    async def process(self, *, reraise: bool = False) -> AsyncIterator["Delivery"]:
        """Settle it when the block ends: as a success, or for a retry if the block raises.

        The exception is logged and not raised, so that a loop over a consumer continues. reraise: raise it, after the
        message was sent back. Cancellation leaves the message unsettled: it is delivered again.
        """
        self.begin()
        try:
            yield self
        except RetryLater as later:
            await self._settle(Outcome.of(later))
        except Exception as error:
            log.sparse.exception("consumer.handler_failed", topic=self.topic, msg_id=self.msg_id, attempt=self.attempt)
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
        """Mark it as settled. Raises ClientError if it is settled already."""
        if self._settled:
            raise ClientError(
                f"message {self.msg_id} is already settled: expected one ack, retry, reject or process block"
            )
        self._settled = True

    async def _settle(self, outcome: Outcome) -> None:
        self.claim()
        self.begin()
        await self._settler.settle((self,), (outcome,))

    def __repr__(self) -> str:
        return f"Delivery({self.topic!r}, msg_id={self.msg_id!r}, attempt={self.attempt}, body={len(self.body)} bytes)"
