"""Real time and a real network for the simulator's clients: the same producers and consumers with real brokers."""

import asyncio
import random
import time
from collections.abc import Callable

from mqtrail.wire import FRAME_HEAD_SIZE
from tests.sim.engine import Engine, Timer

CONNECT_TIMEOUT_S = 2.0


class RealEngine(Engine):
    """The clock of this machine, ms since the start."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.chance = random.Random(seed)
        self.start_ms = time.time_ns() // 1_000_000

    @property
    def now_ms(self) -> float:
        return (self._loop.time() - self._began_s) * 1000

    @now_ms.setter
    def now_ms(self, value: float) -> None:
        """Return the real time since the start, ms."""

    def after(self, delay_ms: float, act: Callable[[], None]) -> Timer:
        timer = Timer(act)
        self._loop.call_later(max(0.0, delay_ms) / 1000, lambda: timer.act() if timer.act is not None else None)
        return timer


class RealLink(asyncio.Protocol):
    """One connection; frames wait until it is open."""

    def __init__(self, on_data: Callable[[bytes], None], on_close: Callable[[], None]) -> None:
        self.is_open = True
        self._on_data, self._on_close = on_data, on_close
        self._transport: asyncio.WriteTransport | None = None
        self._early: list[bytes] = []
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        if not self.is_open:
            transport.close()
        for data in self._early:
            transport.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= FRAME_HEAD_SIZE:
            size = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._on_data(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed()

    def failed(self) -> None:
        """The connection could not be opened."""
        self._closed()

    def _closed(self) -> None:
        if self.is_open:
            self.is_open = False
            self._on_close()

    def to_server(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._closed()


class RealNetwork:
    """TCP connections."""

    def __init__(self) -> None:
        self._connecting: set[asyncio.Task[None]] = set()

    def connect(self, address: str, on_data: Callable[[bytes], None], on_close: Callable[[], None]) -> RealLink:
        link = RealLink(on_data, on_close)
        task = asyncio.create_task(_connect(address, link))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return link


async def _connect(address: str, link: RealLink) -> None:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(lambda: link, host, int(port))
    except (OSError, TimeoutError):
        link.failed()
