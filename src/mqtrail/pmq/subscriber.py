"""Receiving: a task per topic asks for messages, the application settles each, and long work is extended."""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

from mqtrail.net import Log

from .door import DoorClient, PmqConfig, PmqError, RequestRefused

WAIT_S: Final = 20.0  # the door holds a receive without messages
PAUSE_S: Final = 1.0  # after a receive that failed
ASKED_MAX: Final = 32  # messages of one receive
REASON_MAX: Final = 1_000
LEASE_S: Final = 60.0  # a member of a broadcast group ends without a request for so long
LEASE_PARTS: Final = 4  # it is renewed so often in its time
DROP_S: Final = 1.0  # delay of messages that were received and not begun when the subscriber closed

Handler = Callable[["ReceivedMessage"], Awaitable[None] | None]
H = TypeVar("H", bound=Handler)
Settle = Callable[["ReceivedMessage", str, Mapping[str, Any]], Awaitable[None]]

log = Log()


@dataclass(eq=False)
class ReceivedMessage:
    """A message for the group. Settle it once: by a `process` block, `ack` or `retry`.

    attempt: 1 at the first delivery. Times are ms since 1970, UTC.
    """

    topic: str
    body: bytes
    tags: str
    keys: str
    properties: Mapping[str, str]
    msg_id: str
    queue_id: int
    queue_offset: int
    attempt: int
    born_ms: int
    stored_ms: int
    _receipt: str = field(repr=False)
    _settle: Settle = field(repr=False)
    _settled: bool = field(default=False, repr=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)  # an extension makes the receipt void

    async def ack(self) -> None:
        """Settle it as a success: the group does not get it again."""
        self._claim()
        await self._settle(self, "ack", {})

    async def retry(self, delay_s: float | None = None, detail: str = "") -> None:
        """Settle it as a failure: it is delivered again, after a delay that grows with the attempts, or after delay_s.

        detail: the reason, for the trace.
        """
        self._claim()
        further: dict[str, Any] = {"reason": detail[:REASON_MAX]}
        if delay_s is not None:
            further["delay_s"] = delay_s
        await self._settle(self, "nack", further)

    async def extend(self, invisible_s: float) -> None:
        """Take more time, from now on. The subscriber does this by itself while the message is not settled."""
        await self._settle(self, "extend", {"invisible_s": invisible_s})

    @asynccontextmanager
    async def process(self, *, reraise: bool = False) -> AsyncIterator[ReceivedMessage]:
        """Settle it when the block ends: as a success, or for a retry if the block raises.

        The exception is logged and not raised, so that a loop over a subscriber continues. reraise: raise it too. A
        block that settles the message itself is left alone. Cancellation leaves the message unsettled.
        """
        try:
            yield self
        except Exception as error:
            log.sparse.exception(
                "subscriber.handler_failed", topic=self.topic, msg_id=self.msg_id, attempt=self.attempt
            )
            await self._end(f"{type(error).__name__}: {error}")
            if reraise:
                raise
        else:
            await self._end(None)

    async def _end(self, failure: str | None) -> None:
        """Settle it, unless it is settled. If the door does not answer, it is delivered again."""
        if self._settled:
            return
        try:
            await (self.ack() if failure is None else self.retry(detail=failure))
        except PmqError as error:
            log.sparse.warning("subscriber.not_settled", topic=self.topic, msg_id=self.msg_id, found=str(error))

    def _claim(self) -> None:
        if self._settled:
            raise PmqError(f"message {self.msg_id} is already settled: expected one ack, retry or process block")
        self._settled = True


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A group of which each subscriber gets each message, whatever the others get.

    member: a name of the subscriber, unique in the group: with it, the next subscriber of this name continues where
    this one was, if it begins within lease_s (10 to 3,600) of its end. lease_s also bounds how long messages are kept
    for a subscriber that died. from_first: begin with the oldest message, not with those published from now on.
    """

    group: str
    member: str = ""
    lease_s: float = LEASE_S
    from_first: bool = False


class Subscriber:
    """Receives the messages of a group through a door. Each group gets each message.

        async with Subscriber("http://127.0.0.1:8080", "stock", {"orders": "CREATED || PAID"}) as subscriber:
            async for message in subscriber:
                async with message.process():
                    reserve(message.body)

    Or with handlers, of which `concurrency` run at a time:

        @subscriber.handler("orders")
        async def reserve(message: ReceivedMessage) -> None: ...

        await subscriber.run()

    A message that is not settled is extended until it was held for hold_max_s; then it is delivered again.

    With `Broadcast("stock")` as the group, each subscriber gets each message.
    """

    def __init__(
        self,
        url: str,
        group: str | Broadcast,
        topics: str | Mapping[str, str] | None = None,
        *,
        concurrency: int = 10,
        invisible_s: float = 60.0,
        from_first: bool = True,
        config: PmqConfig | None = None,
    ) -> None:
        """topics: one, or the tags wanted of each (`*`: all). concurrency: messages that are received and not settled,
        and handlers at a time. invisible_s: until messages of a subscriber that died are delivered again. from_first: a
        new group begins with the oldest message; for Broadcast, its own is valid. PmqError: the URL is not
        that of a door."""
        self._door = DoorClient(url, config or PmqConfig())
        self._broadcast = group if isinstance(group, Broadcast) else None
        self._group = group.group if isinstance(group, Broadcast) else group
        self._own_group = self._group  # a member has another one
        self._member = "" if self._broadcast is None else self._broadcast.member or uuid4().hex
        self._joined: set[str] = set()  # topics that a member has joined with
        self._topics = {topics: "*"} if isinstance(topics, str) else dict(topics or {})
        self._concurrency = concurrency
        self._invisible_s = invisible_s
        self._from_first = from_first
        self._handlers: dict[str, Handler] = {}
        self._held: dict[ReceivedMessage, float] = {}  # not settled -> when it was received
        self._changed = asyncio.Event()
        self._queue: asyncio.Queue[ReceivedMessage | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._failure: PmqError | None = None
        self._is_closed = False

    def handler(self, topic: str, tag: str = "*") -> Callable[[H], H]:
        """Decorate the function that processes a topic's messages. A plain function runs in a thread."""

        def register(function: H) -> H:
            self._topics[topic] = tag
            self._handlers[topic] = function
            return function

        return register

    async def start(self) -> None:
        """Do what the start of an `async with` block does. Receiving begins with the first `receive`, loop or `run`."""
        await self._door.start()

    async def close(self, timeout_s: float = 10.0) -> None:
        """Receive no more, let handlers end for timeout_s, give back what was not begun, close the connections."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        waiting = [message for message in _drained(self._queue) if message is not None]
        self._queue.put_nowait(None)
        with suppress(PmqError, TimeoutError):  # they are delivered again in any case
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(message.retry(DROP_S, "the subscriber was closed") for message in waiting))
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        for task in self._running:
            task.cancel()
        if self._broadcast is not None and self._joined and not self._broadcast.member:
            with suppress(PmqError, TimeoutError):  # it ends when its lease is over
                async with asyncio.timeout(timeout_s):
                    await self._door.ask(self._member_path, None, method="DELETE")
        await self._door.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Return the next message; None: none came in time, or the subscriber was closed. RequestRefused: the door
        refuses the group or a topic; a topic that does not exist yet is waited for."""
        self._receive_topics()
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._queue.get()
        except TimeoutError:
            return None
        if message is None:
            self._queue.put_nowait(None)  # for the next one who waits
            if self._failure is not None:
                raise self._failure
        return message

    async def run(self) -> None:
        """Process messages with the handlers until `close`. RequestRefused: see `receive`."""
        if not self._handlers:
            raise PmqError("found no handler, expected one for each topic: decorate a function with `handler`")
        with ThreadPoolExecutor(self._concurrency, "subscriber") as pool:
            workers = [asyncio.create_task(self._work(pool)) for _ in range(self._concurrency)]
            self._running.update(workers)
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                self._running.difference_update(workers)

    async def _work(self, pool: ThreadPoolExecutor) -> None:
        async for message in self:
            handler = self._handlers[message.topic]
            async with message.process():
                if inspect.iscoroutinefunction(handler):
                    await handler(message)
                else:
                    await asyncio.get_running_loop().run_in_executor(pool, handler, message)

    # Receiving.

    def _receive_topics(self) -> None:
        """Begin to receive, once."""
        if self._tasks or self._is_closed:
            return
        if not self._topics:
            raise PmqError("found no topic, expected at least one: pass topics, or decorate handlers")
        self._tasks = [asyncio.create_task(self._receive_topic(*item)) for item in self._topics.items()]
        self._tasks.append(asyncio.create_task(self._extend_held()))
        if self._broadcast is not None:
            self._tasks.append(asyncio.create_task(self._keep_lease(self._broadcast)))

    @property
    def _member_path(self) -> str:
        return f"/groups/{quote(self._group, safe='')}/members/{quote(self._member, safe='')}"

    async def _join(self, broadcast: Broadcast, topics: Sequence[str]) -> None:
        """Make the subscriber's own group, or renew its lease."""
        wanted = {"topics": topics, "lease_s": broadcast.lease_s, "from_first": broadcast.from_first}
        self._own_group = (await self._door.ask(self._member_path, wanted, method="PUT"))["group"]

    async def _keep_lease(self, broadcast: Broadcast) -> None:
        """Renew the lease also while nothing is received."""
        while True:
            await asyncio.sleep(broadcast.lease_s / LEASE_PARTS)
            if self._joined:
                with suppress(PmqError):  # a receive reports it
                    await self._join(broadcast, sorted(self._joined))

    async def _receive_topic(self, topic: str, tag: str) -> None:
        while True:
            while (free := self._concurrency - len(self._held)) <= 0:
                self._changed.clear()
                await self._changed.wait()
            try:
                if self._broadcast is not None and topic not in self._joined:
                    await self._join(self._broadcast, [topic])
                    self._joined.add(topic)
                await self._receive_some(topic, tag, min(free, ASKED_MAX))
            except RequestRefused as error:
                self._joined.clear()  # its lease may be over: it joins again, with all topics
                if error.status != HTTPStatus.NOT_FOUND:
                    self._failure = error
                    self._queue.put_nowait(None)
                    return
                await self._pause(topic, error)
            except PmqError as error:
                await self._pause(topic, error)

    async def _pause(self, topic: str, error: PmqError) -> None:
        log.sparse.warning("subscriber.cannot_receive", topic=topic, group=self._group, found=str(error))
        await asyncio.sleep(PAUSE_S)

    async def _receive_some(self, topic: str, tag: str, count: int) -> None:
        wanted = {
            "topic": topic,
            "max": count,
            "wait_s": WAIT_S,
            "invisible_s": self._invisible_s,
            "tag": tag,
            "from_first": self._from_first
            or self._broadcast is not None,  # a member: of queues that its topic gets later
        }
        answer = await self._door.ask(f"/groups/{quote(self._own_group, safe='')}/receive", wanted, hold_s=WAIT_S)
        now_s = asyncio.get_running_loop().time()
        for item in answer["messages"]:
            message = self._message(item)
            self._held[message] = now_s
            self._queue.put_nowait(message)
        await asyncio.sleep(answer["slow_down_ms"] / 1000)

    def _message(self, item: Mapping[str, Any]) -> ReceivedMessage:
        body = item.get("body")
        return ReceivedMessage(
            topic=item["topic"],
            body=base64.b64decode(item["body_base64"]) if body is None else body.encode(),
            tags=item.get("tag", ""),
            keys=item.get("key", ""),
            properties=item.get("headers", {}),
            msg_id=item["id"],
            queue_id=item["queue"],
            queue_offset=item["offset"],
            attempt=item["attempt"],
            born_ms=item["born_ms"],
            stored_ms=item["stored_ms"],
            _receipt=item["receipt"],
            _settle=self._settle,
        )

    async def _settle(self, message: ReceivedMessage, act: str, further: Mapping[str, Any]) -> None:
        """Ask the door, one after the other for a message. After ack and nack it is not held any more."""
        if act != "extend":
            self._held.pop(message, None)
            self._changed.set()
        async with message._turn:
            if act == "extend" and message._settled:
                return
            body = {"receipts": [message._receipt], **further}
            answer = await self._door.ask(f"/groups/{quote(self._own_group, safe='')}/{act}", body)
            message._receipt = answer["results"][0]["receipt"]

    async def _extend_held(self) -> None:
        """Extend what is not settled at half of its time."""
        loop = asyncio.get_running_loop()
        extended_s: dict[ReceivedMessage, float] = {}
        while True:
            await asyncio.sleep(self._invisible_s / 4)
            now_s = loop.time()
            extended_s = {message: extended_s.get(message, since_s) for message, since_s in self._held.items()}
            for message, last_s in list(extended_s.items()):
                if now_s - self._held.get(message, now_s) > self._door.config.hold_max_s:
                    self._held.pop(message, None)
                    self._changed.set()
                elif now_s - last_s >= self._invisible_s / 2 and message in self._held:
                    extended_s[message] = now_s
                    with suppress(PmqError):  # it is delivered again
                        await message.extend(self._invisible_s)


def _drained(queue: asyncio.Queue[ReceivedMessage | None]) -> list[ReceivedMessage | None]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
