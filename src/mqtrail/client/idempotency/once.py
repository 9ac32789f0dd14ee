"""Idempotent: claim a key, let the effect happen, mark the key.

    once = Idempotent("billing", RedisClaims(redis.asyncio.Redis()), key=lambda m: m.keys[0])

    @consumer.handler("orders")
    @once
    async def bill(m: Delivery) -> None: ...

    the claim finds          what follows
    nothing, an old lease    the handler runs; then the key is marked
    a lease that runs        KeyBusy: the message is delivered again later
    a mark                   the message is done, the handler does not run

    then                                   what follows
    the handler raises or retries          the claim is given back, and the message is delivered again
    the process ends, the task is          the lease ends, and the message is delivered again
    cancelled, the store is down
    the lease ended and another took it    ClaimLost: the mark changes nothing, and the message is delivered again

Effect and mark are two steps: after a crash between them the effect happens again. `Inbox` makes them one.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from mqtrail.net import Log
from mqtrail.wire import validate_group

from ..core import ClientError, RetryLater
from ..delivery import Delivery
from .claims import Claims, ClaimState, KeyClaim
from .keys import KeyFunction, digest, key_of, message_id
from .retrying import RetryReturned

log = Log()

DAY_MS: Final = 24 * 60 * 60 * 1000
SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000  # of an ordered queue, see RetryLater

Effect = Callable[[], Awaitable[bytes | None]]
OnceHandler = Callable[[Delivery], Coroutine[Any, Any, RetryLater | None]]
OnRepeat = Callable[[Delivery, bytes], Awaitable[None]]

_token: contextvars.ContextVar[int] = contextvars.ContextVar("mqtrail_fencing_token", default=0)


def fencing_token() -> int:
    """Return the token of the claim for which the handler runs; 0 outside of one.

    A later claim of the same key has a higher one: a resource that refuses tokens below the highest it has seen refuses
    the effect of a handler whose lease ended.
    """
    return _token.get()


class KeyBusy(RetryLater):
    """Another handler works on the key, perhaps one that died: its lease ends in left_ms. The message is retried."""

    def __init__(self, key: str, left_ms: int) -> None:
        suspend_ms = min(max(left_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
        super().__init__(detail=f"key {key!r} is being worked on for {left_ms} ms more", suspend_ms=suspend_ms)
        self.left_ms = left_ms


class ClaimLost(ClientError):
    """The handler took longer than lease_ms, and another one took the key: the effect may have happened twice."""


class Once(NamedTuple):
    """The outcome of a key. fresh: its effect happened now. result: what the effect returned, now or then."""

    fresh: bool
    result: bytes


@dataclass(slots=True)
class IdempotentCounts:
    """Calls since the start. failed: the effect raised or asked for a retry. store_failed: the store did not answer."""

    effects: int = 0
    repeats: int = 0
    busy: int = 0
    failed: int = 0
    lost: int = 0
    store_failed: int = 0


class Idempotent:
    """Lets the effect of each key happen once for a group, as long as no process dies between effect and mark.

    group: the namespace of the keys, usually the consumer's group. key: of a message (default: its id). lease_ms:
    longest time of an effect; after a crash the key is busy for that long. keep_ms: how long a done key is remembered;
    longer than any repeat of a message takes. store_timeout_ms: of each request to the store. result_size_max: bytes of
    a result; a larger one is logged and not kept. threads_max: threads for plain handlers. on_repeat: awaited with the
    message and the result of the first time when a message is repeated, for example to send the reply again.
    """

    def __init__(
        self,
        group: str,
        store: Claims,
        *,
        key: KeyFunction = message_id,
        lease_ms: int = 60_000,
        keep_ms: int = DAY_MS,
        store_timeout_ms: int = 5_000,
        result_size_max: int = 64 * 1024,
        threads_max: int = 20,
        on_repeat: OnRepeat | None = None,
    ) -> None:
        validate_group(group)
        if lease_ms < 1 or keep_ms < 1:
            raise ClientError(f"found lease_ms {lease_ms} and keep_ms {keep_ms}, expected at least 1")
        self.group = group
        self._store = store
        self._key = key
        self._lease_ms = lease_ms
        self._keep_ms = keep_ms
        self._timeout_s = store_timeout_ms / 1000
        self._result_size_max = result_size_max
        self._threads_max = threads_max
        self._on_repeat = on_repeat
        self._pool: ThreadPoolExecutor | None = None
        self._counts = IdempotentCounts()

    @property
    def counts(self) -> IdempotentCounts:
        """A copy of what was counted since the start."""
        return replace(self._counts)

    def __call__(self, handler: Callable[[Delivery], Any]) -> OnceHandler:
        """Return a handler of single messages that runs this one once for each key. A decorator.

        The handler may return bytes, which are kept as its result, None, or RetryLater. A plain function runs in a
        thread. The new handler raises KeyBusy, ClaimLost, and what the handler and the store raise: each means a retry.
        """

        @functools.wraps(handler)
        async def handle(delivery: Delivery) -> RetryLater | None:
            if not isinstance(delivery, Delivery):
                raise ClientError(
                    f"found a {type(delivery).__name__}, expected a Delivery: call `run` for each message of a batch"
                )

            async def effect() -> bytes | None:
                answer = await self._call(handler, delivery)
                if isinstance(answer, RetryLater):
                    raise RetryReturned(answer)
                return answer if isinstance(answer, bytes) else None

            try:
                once = await self.run(key_of(self._key, delivery), effect)
            except RetryReturned as retry:
                return retry.later
            if not once.fresh and self._on_repeat is not None:
                await self._on_repeat(delivery, once.result)
            return None

        return handle

    async def run(self, key: str, effect: Effect) -> Once:
        """Let effect happen unless it has happened for this key; return its result.

        Raises KeyBusy, ClaimLost, what effect raises (the key is free again), and what the store raises. If the store
        fails after the effect, the effect happens again later.
        """
        id = digest(self.group, key)
        claim = await self._ask(self._store.claim(id, self._lease_ms, self._keep_ms))
        if claim.state is ClaimState.BUSY:
            self._counts.busy += 1
            raise KeyBusy(key, claim.left_ms)
        if claim.state is ClaimState.DONE:
            self._counts.repeats += 1
            return Once(False, claim.result)
        token = _token.set(claim.token)
        try:
            result = await effect() or b""
        except Exception:  # of the handler: any means a retry
            self._counts.failed += 1
            await self._release(id, claim, key)
            raise
        finally:  # after a cancellation the effect may still be going on in a thread: its lease runs out
            _token.reset(token)
        if len(result) > self._result_size_max:
            log.sparse.warning(
                "idempotency.result_dropped",
                key=key,
                size=len(result),
                remedy="return less, or raise result_size_max; repeats get an empty result",
            )
            result = b""
        if not await self._ask(self._store.complete(id, claim, result, self._keep_ms)):
            self._counts.lost += 1
            raise ClaimLost(
                f"the effect of key {key!r} took longer than lease_ms ({self._lease_ms} ms), and another handler took "
                "the key: the effect may have happened twice; raise lease_ms"
            )
        self._counts.effects += 1
        return Once(True, result)

    def close(self) -> None:
        """Release the threads of plain handlers, without waiting for them."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def _ask(self, question: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await question
        except Exception:  # of the store's client: any means that the store is down
            self._counts.store_failed += 1
            raise

    async def _release(self, id: str, claim: KeyClaim, key: str) -> None:
        try:
            await self._ask(self._store.release(id, claim))
        except Exception as error:  # the handler's own error matters more; the lease ends anyway
            log.sparse.warning("idempotency.release_failed", key=key, error=repr(error), lease_ms=self._lease_ms)

    async def _call(self, handler: Callable[[Delivery], Any], delivery: Delivery) -> Any:
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(delivery)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads_max, "mqtrail-once")
        context = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(self._pool, context.run, handler, delivery)
        return await answer if inspect.isawaitable(answer) else answer
