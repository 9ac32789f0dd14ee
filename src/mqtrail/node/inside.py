"""Requests to a broker from inside its process, without a socket: how the HTTP door reaches it.

They pass the same front as those of a connection: access control, limits, the wait for the flush.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from mqtrail.net import next_command
from mqtrail.wire import OWN_HOST, Host, Peer, PeerId, RemotingCommand, ResponseCode, ServiceNotAvailable

from .shell import Shell

FIRST_ID: Final = 1 << 41  # first connection id: those of the ports are smaller
OPAQUE_MAX: Final = 0x7FFF_FFFF


class Line:
    """Takes the place of a connection: it gets replies as bytes, and hands them to those who wait."""

    def __init__(self, number: int, host: Host) -> None:
        self.id = number
        self.host = host
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    def write(self, data: bytes) -> None:
        """Hand over whole replies. Requests of the broker are ignored: nothing here serves them."""
        position = 0
        while position < len(data):
            command, position = next_command(data, position, len(data))
            assert command is not None, "a core writes whole frames"
            future = self.waiting.get(command.opaque) if command.is_response else None
            if future is not None and not future.done():
                future.set_result(command)


class InsideCaller:
    """A `gateway.Caller` over a broker's shell. sign: signs each request, if the broker requires that.

    why_away: returns why the broker's database does not answer; None: it answers.
    """

    def __init__(
        self,
        shell: Shell,
        sign: Callable[[RemotingCommand], None] | None = None,
        why_away: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._shell = shell
        self._sign = sign
        self._why_away = why_away
        self._ids = count(FIRST_ID)
        self._opaques = count(1)
        self._line = Line(next(self._ids), OWN_HOST)
        shell.join(self._line)

    @property
    def away(self) -> str | None:
        """Why the database of the messages does not answer; None: it answers."""
        return self._why_away()

    async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        """Return the reply. host: of the client for which it asks. ServiceNotAvailable: the database is away.
        TimeoutError."""
        return await self._ask(self._line, command, host, timeout_ms)

    async def ask_held(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        """As `ask`, for a request that the broker may hold. If the task is cancelled, the broker forgets it."""
        line = Line(next(self._ids), host)
        self._shell.join(line)
        try:
            return await self._ask(line, command, host, timeout_ms)
        finally:
            self._shell.disconnected(line)

    async def _ask(self, line: Line, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        if (away := self.away) is not None:
            raise _away(f"found that the database does not answer ({away}), so nothing was done")
        command.opaque = next(self._opaques) & OPAQUE_MAX
        if self._sign is not None:
            self._sign(command)
        future = asyncio.get_running_loop().create_future()
        line.waiting[command.opaque] = future
        try:
            self._shell.serve(Peer(PeerId(line.id), host), command)
            if future.done():  # what needs no flush is answered at once
                await asyncio.sleep(0)  # a task may ask thousands of times: let others work between
            else:
                async with asyncio.timeout(timeout_ms / 1000):
                    await future
            reply: RemotingCommand = future.result()
        finally:
            del line.waiting[command.opaque]
        if reply.code == ResponseCode.SYSTEM_ERROR and (away := self.away) is not None:
            raise _away(f"found that the database does not answer ({away}); the request may have been executed")
        return reply


def _away(found: str) -> ServiceNotAvailable:
    return ServiceNotAvailable(f"{found}, expected a reply: start it or check the network, then repeat the request")
