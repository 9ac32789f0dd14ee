"""The network of a group of brokers and controllers: requests that may be lost, and streams that stand still.

A cut link loses requests and replies, whose senders wait for their time-out. A stream, as TCP, delivers its bytes in
order once the link is whole again, or is closed by an end that no longer waits.
"""

import asyncio
from collections.abc import Callable

from mqtrail.net import ConnectError, RequestTimeout
from mqtrail.wire import RemotingCommand

from .engine import Engine

RETRANSMIT_MS = 100.0
Answer = Callable[[RemotingCommand], None]
Serve = Callable[[str, RemotingCommand, Answer], None]


class MemberNetwork:
    """Directed links between machines, by name. servers: address -> machine and what serves a request there."""

    def __init__(self, engine: Engine, delay_ms: float) -> None:
        self._engine = engine
        self._delay_ms = delay_ms
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.servers: dict[str, tuple[str, Serve]] = {}
        self._opaque = 0

    def delay_ms(self, source: str, target: str) -> float:
        return self._engine.between(0.1, self._delay_ms) + self.slow.get((source, target), 0.0)

    def carry(self, source: str, target: str, act: Callable[[], None]) -> None:
        """Call act at the target, unless the link is cut when it is sent or arrives."""
        link = (source, target)
        if link not in self.cut:
            self._engine.after(self.delay_ms(*link), lambda: act() if link not in self.cut else None)

    def ask(
        self, source: str, address: str, command: RemotingCommand, answer: Answer, refused: Callable[[], None]
    ) -> None:
        """Send a request; call answer with the reply, refused if no member listens, or nothing ever."""
        self._opaque += 1
        command.opaque = self._opaque
        target, _ = self.servers.get(address, (address.partition(":")[0], None))

        def arrive() -> None:
            found = self.servers.get(address)
            if found is None:
                self.carry(target, source, refused)
            else:
                found[1](source, command, lambda reply: self.carry(target, source, lambda: answer(reply)))

        self.carry(source, target, arrive)


class MemberPool:
    """A machine's connections to others, as mqtrail.net.ConnectionPool."""

    def __init__(self, network: MemberNetwork, machine: str) -> None:
        self._network = network
        self._machine = machine
        self._closed = False

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        done: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()

        def settle(reply: RemotingCommand | None) -> None:
            if not done.done():
                done.set_result(reply)

        self._network.ask(self._machine, address, command, settle, lambda: settle(None))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                reply = await done
        except TimeoutError:
            raise RequestTimeout(f"found no reply of {address} within {timeout_ms} ms") from None
        if reply is None:
            raise ConnectError(f"cannot connect to {address}")
        return reply

    async def oneway(self, address: str, command: RemotingCommand, timeout_ms: int) -> None:
        self._network.ask(self._machine, address, command, lambda reply: None, lambda: None)

    async def close(self) -> None:
        """Requests that wait end by their time-out."""


class ByteStream:
    """One direction of a connection: bytes arrive in order, later while the link is cut. closed: nothing arrives."""

    def __init__(
        self, engine: Engine, network: MemberNetwork, link: tuple[str, str], receive: Callable[[bytes], None]
    ) -> None:
        self._engine, self._network, self._link, self._receive = engine, network, link, receive
        self._last_ms = 0.0
        self._held: list[bytes] = []
        self.closed = False

    def send(self, data: bytes) -> None:
        self._held.append(data)
        due_ms = max(self._last_ms, self._engine.now_ms + self._network.delay_ms(*self._link))
        self._last_ms = due_ms
        self._engine.after(due_ms - self._engine.now_ms, self._arrive)

    def _arrive(self) -> None:
        if self.closed or not self._held:
            return
        if self._link in self._network.cut:
            self._engine.after(RETRANSMIT_MS, self._arrive)
            return
        self._receive(self._held.pop(0))
