"""The synchronous facade: the same producers, consumers and admin, on one background event loop per process.

The first call that needs the loop starts its thread, a daemon; importing does not. A child has no such thread after
fork: its first call starts one, and facades created before the fork create a new client (the connections belong to the
parent). Calls are safe from any thread except the loop's own.
"""

import asyncio
import atexit
import concurrent.futures
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from ..core import ClientClosed, ClientError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="Startable", covariant=True)


class Startable(Protocol):
    """A client that a facade starts and closes."""

    async def start(self) -> None: ...

    async def close(self) -> object: ...


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mqtrail-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop and return its result. An interrupted wait (KeyboardInterrupt) cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a synchronous client was called from its own event loop: use the asyncio client there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed while the call was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop at interpreter exit."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_lock = threading.Lock()
_background: BackgroundLoop | None = None


def background() -> BackgroundLoop:
    """Return this process's background loop; start it if necessary."""
    global _background
    with _lock:
        if _background is None:
            _background = BackgroundLoop()
            atexit.register(_background.stop)
        return _background


def _after_fork_in_child() -> None:
    global _background, _lock
    _lock = threading.Lock()
    if _background is not None:
        atexit.unregister(_background.stop)
    _background = None


os.register_at_fork(after_in_child=_after_fork_in_child)


class Facade(Generic[C]):
    """Starts its asyncio client at first use, and a new one in a child after fork."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._client: C | None = None
        self._pid = 0
        self._closed = False
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        self._get()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the asyncio client. A child does not close the client of its parent."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            background().run(client.close())

    def _get(self) -> C:
        if self._closed:
            raise ClientClosed("this client was closed; create a new one")
        if self._client is None or self._pid != os.getpid():
            if self._pid != os.getpid():
                self._starting = threading.Lock()
                self._client, self._pid = None, os.getpid()
            with self._starting:
                if self._client is None:
                    client = self._make()
                    background().run(client.start())
                    self._client = client
        assert self._client is not None
        return self._client


def waiting(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[C], P], T]:
    """Return a client's method as a blocking method of the facade with the same arguments, result and docstring."""

    @functools.wraps(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return background().run(method(self._get(), *args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[C, P], AsyncIterator[T]],
) -> Callable[Concatenate[Facade[C], P], Iterator[T]]:
    """Return a client's asynchronous iterator as a plain one of its facade."""

    @functools.wraps(method)
    def iterate(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._get(), *args, **kwargs)
        try:
            while (item := background().run(_next(items))) is not None:
                yield item
        finally:
            background().run(_close(items))

    return iterate


@contextmanager
def entered(block: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an asynchronous block of a client; its end runs on the loop too, with the exception if there is one."""
    value = background().run(_enter(block))
    try:
        yield value
    except BaseException as error:
        if not background().run(_leave(block, error)):
            raise
    else:
        background().run(_leave(block, None))


async def _enter(block: AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _leave(block: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool:
    return bool(await block.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None))


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
