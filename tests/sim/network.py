"""A faulty network: frames are delayed, lost or duplicated, connections are cut or refused.

A link carries whole frames, in order each way, like TCP. A lost frame has the effect of a hung peer or of a
request that timed out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mqtrail.wire import Host

from .engine import Engine


@dataclass(slots=True)
class NetworkRates:
    """Probabilities (0 to 1) of faults per frame, and delays (ms)."""

    lost: float = 0.0
    doubled: float = 0.0
    cut: float = 0.0
    delay_ms_max: float = 3.0
    late: float = 0.0  # frames that are delayed by up to LATE_MS
    refused: float = 0.0


LATE_MS = 2_000.0


class Listener(Protocol):
    """A server: accepts connections at an address."""

    def accepted(self, link: "Link") -> None: ...

    def received(self, link: "Link", data: bytes) -> None: ...

    def closed(self, link: "Link") -> None: ...


class Link:
    """One connection. The client's side gives on_data and on_close; the server gets events by its Listener."""

    def __init__(
        self,
        network: "Network",
        number: int,
        server: Listener,
        on_data: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        self.number = number
        self.client_host = Host("10.0.0.1", 20_000 + number)
        self.is_open = True
        self._network = network
        self._server = server
        self._on_data = on_data
        self._on_close = on_close
        self._last_ms = {"up": 0.0, "down": 0.0}

    def to_server(self, data: bytes) -> None:
        """Send a frame of the client."""
        self._network.carry(self, "up", lambda: self._server.received(self, data))

    def to_client(self, data: bytes) -> None:
        self._network.carry(self, "down", lambda: self._on_data(data))

    def close(self) -> None:
        """Close the connection. Both sides learn of it a little later; frames in flight are lost."""
        if self.is_open:
            self.is_open = False
            self._network.engine.after(1.0, lambda: self._server.closed(self))
            self._network.engine.after(1.0, self._on_close)

    def arrival_ms(self, way: str, delay_ms: float) -> float:
        """Return the arrival time of a frame with this delay, not before the frame ahead of it."""
        at_ms = max(self._last_ms[way], self._network.engine.now_ms + delay_ms)
        self._last_ms[way] = at_ms
        return at_ms


class Network:
    """Addresses, and the faults of frames."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rates = NetworkRates()
        self.listeners: dict[str, Listener] = {}
        self._links = 0

    def connect(self, address: str, on_data: Callable[[bytes], None], on_close: Callable[[], None]) -> Link | None:
        """Return a new connection, None without a listener or if it fails."""
        server = self.listeners.get(address)
        if server is None or self.engine.happens(self.rates.refused):
            return None
        self._links += 1
        link = Link(self, self._links, server, on_data, on_close)
        server.accepted(link)
        return link

    def carry(self, link: Link, way: str, arrive: Callable[[], None]) -> None:
        """Deliver a frame to the other side, or lose it."""
        engine, rates = self.engine, self.rates
        if not link.is_open or engine.happens(rates.lost):
            return
        if engine.happens(rates.cut):
            link.close()
            return
        for _ in range(2 if engine.happens(rates.doubled) else 1):
            delay_ms = engine.between(0.05, rates.delay_ms_max)
            if engine.happens(rates.late):
                delay_ms += engine.between(0, LATE_MS)
            at_ms = link.arrival_ms(way, delay_ms)
            engine.after(at_ms - engine.now_ms, lambda: arrive() if link.is_open else None)
