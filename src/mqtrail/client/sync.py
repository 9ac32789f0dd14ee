"""The synchronous facade: the same producers, consumers and admin, driven by one background event loop a process.

The loop's thread starts with the first call that needs it, never at import, and is a daemon. After fork a child has
no such thread: its first call starts one, and facades that were made before the fork make their client anew there
(connections are the parent's). Calls are safe from any thread but the loop's own.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from mqtrail.client.config import NAMESRV_DEFAULT, ProducerConfig
from mqtrail.client.errors import ClientClosed, ClientError
from mqtrail.client.outgoing import SendResult
from mqtrail.client.producer import Producer
from mqtrail.wire import Message, MessageQueue

T = TypeVar("T")
C = TypeVar("C", bound="Startable")


class Startable(Protocol):
    """What a facade drives."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


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
        """End the loop at interpreter exit."""
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
    """Return this process's background loop, started now if need be."""
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
    """Starts the client behind it when it is first needed, and again in a child after fork."""

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
        """Close the client behind it; in a child, the parent's is left alone."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            background().run(client.close())

    def _get(self) -> C:
        if self._closed:
            raise ClientClosed("this client was closed; make a new one")
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


class SyncProducer(Facade[Producer]):
    """Producer for code without asyncio. Thread safe; see Producer for what each call means and raises."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        *,
        trace: bool = False,
        config: ProducerConfig | None = None,
    ) -> None:
        super().__init__(lambda: Producer(group, namesrv, trace=trace, config=config))

    def send(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message or a batch, wait for the broker's answer."""
        producer = self._get()
        return background().run(producer.send(message, queue=queue, order_key=order_key, timeout_ms=timeout_ms))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None) -> str:
        """Hand a message to the socket, return its id."""
        return background().run(self._get().send_oneway(message, queue=queue, order_key=order_key))
