"""Delivery: one message in the hands of the application, and what becomes of it.

    async for m in consumer:
        async with m.process():        # success when the block ends, another try when it raises
            await handle(m.body)

A delivery that is never settled keeps its queue's offset where it is: the message comes again, here or at another
member of the group.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from mqtrail.client.errors import ClientError, RetryLater
from mqtrail.client.identity import now_ms
from mqtrail.client.process_queue import ProcessQueue
from mqtrail.client.trace.text import detail
from mqtrail.net import Log
from mqtrail.wire import MessageExt, MessageQueue

log = Log()


class Settler(Protocol):
    """The consumer, as a delivery sees it."""

    def begun(self, delivery: "Delivery") -> str: ...

    async def settle(self, delivery: "Delivery", result: str, delay_level: int, text: str, ended_ms: int) -> None: ...


class Delivery:
    """A message and its outcome. The message's own fields are in `message`; the common ones are here too."""

    __slots__ = (
        "_delay_level",
        "_detail",
        "_later",
        "_settled",
        "_settler",
        "message",
        "process_queue",
        "request_id",
        "started_ms",
    )

    def __init__(self, message: MessageExt, process_queue: ProcessQueue, settler: Settler) -> None:
        self.message = message
        self.process_queue = process_queue
        self.request_id = ""
        self.started_ms = 0
        self._settler = settler
        self._settled = False
        self._later = False
        self._delay_level = 0
        self._detail = ""

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
    def attempt(self) -> int:
        """1 for the first delivery, one more each time it failed before."""
        return self.message.reconsume_times + 1

    @property
    def queue(self) -> MessageQueue:
        """The queue it was pulled from (of the retry topic, when it comes from there)."""
        return self.process_queue.queue

    @property
    def settled(self) -> bool:
        """Whether its outcome is decided."""
        return self._settled

    def begin(self) -> None:
        """Note that its handler starts now. `process` does so by itself."""
        if not self.started_ms:
            self.started_ms = now_ms()
            self.process_queue.last_consume_ms = self.started_ms
            self.process_queue.running[self.message.queue_offset] = asyncio.get_running_loop().time()
            self.request_id = self._settler.begun(self)

    def retry_later(self, delay_level: int = 0, detail: str = "") -> None:
        """Decide inside `process` that the message shall come again; see RetryLater for delay_level."""
        self._later, self._delay_level, self._detail = True, delay_level, detail

    async def ack(self) -> None:
        """Settle it as a success."""
        await self._settle("SUCCESS", 0, "")

    async def retry(self, delay_level: int = 0, detail: str = "") -> None:
        """Settle it as a failure: it comes again, or goes to the dead-letter topic after the last attempt (-1: now)."""
        await self._settle("FAILED", delay_level, detail)

    @asynccontextmanager
    async def process(self, *, reraise: bool = False) -> AsyncIterator["Delivery"]:
        """Settle it by how the block ends: normally a success, by an exception another try.

        The exception is logged and ends here, so that a loop over a consumer goes on; reraise lets it through after
        the message was given back. Cancelling leaves the message unsettled: it comes again.
        """
        self.begin()
        try:
            yield self
        except RetryLater as later:
            await self._settle("FAILED", later.delay_level, later.detail)
        except Exception as error:
            log.exception("consumer.handler_failed", topic=self.topic, msg_id=self.msg_id, attempt=self.attempt)
            await self._settle("EXCEPTION", self._delay_level, detail(error))
            if reraise:
                raise
        else:
            if self._later:
                await self._settle("FAILED", self._delay_level, self._detail)
            else:
                await self._settle("SUCCESS", 0, "")

    async def _settle(self, result: str, delay_level: int, text: str) -> None:
        if self._settled:
            raise ClientError(f"message {self.msg_id} is settled already: one ack, retry or process block each")
        self.begin()
        self._settled = True
        await self._settler.settle(self, result, delay_level, text, now_ms())

    def __repr__(self) -> str:
        return f"Delivery({self.topic!r}, msg_id={self.msg_id!r}, attempt={self.attempt}, body={len(self.body)} bytes)"
