"""Wake-ups: after an insert, the owner of the queue gets a POST to its own HTTP port, so that it pulls.

The name of a consumer, `ip|pid|number|port`, has its port. The address is that of the connection which registered it,
never the one in the name: the door sends nothing to others. But behind a proxy that is the proxy's address, and the
client chooses the port. So there are no wake-ups to proxies, nor to this machine unless a setting allows it, and none
to ports of the system's services. A wake-up is a hint; a client without one pulls anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import httpx

PATH: Final = "/mq/client/notify"
PAUSE_S: Final = 0.01  # between two wake-ups of an address; those of the meantime go together
DEAD_S: Final = 5.0  # an address that failed gets none for so long
TIMEOUT_S: Final = 2.0
POSTS_MAX: Final = 50  # at a time
PORT_PART: Final = 3  # of the name
PORT_LEAST: Final = 1_024  # below are services of the system, which no pmq client is
ITEMS_MAX: Final = 1_000  # of one wake-up


class ClientAddress(NamedTuple):
    """Where a consumer listens."""

    ip: str
    port: int


Post = Callable[[ClientAddress, dict[str, Any]], Awaitable[None]]


def address_of(name: str, ip: str) -> ClientAddress | None:
    """Return where a consumer of this name, which registered from ip, listens; None: it has no port for that."""
    parts = name.split("|")
    if len(parts) <= PORT_PART or not (parts[PORT_PART].isascii() and parts[PORT_PART].isdecimal()):
        return None
    port = int(parts[PORT_PART][:6])
    return ClientAddress(ip, port) if PORT_LEAST <= port < 1 << 16 else None


class Waker:
    """`start`, any number of `wake`, `stop`. post: sends one wake-up, or raises."""

    def __init__(self, post: Post | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._post = post or self._post_http
        self._clock = clock
        self._http: httpx.AsyncClient | None = None
        self._waiting: dict[ClientAddress, dict[tuple[int, str], None]] = {}
        self._dead_until_s: dict[ClientAddress, float] = {}
        self._posts: dict[ClientAddress, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Send nothing more."""
        self._waiting.clear()
        for task in self._posts.values():
            task.cancel()
        await asyncio.gather(*self._posts.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def wake(self, address: ClientAddress, queue_number: int, group: str) -> None:
        """Tell a consumer that there is something in a queue, soon; with others of the next 10 ms."""
        if self._dead_until_s.get(address, 0.0) > self._clock():
            return
        if address not in self._posts and len(self._posts) >= POSTS_MAX:
            return
        waiting = self._waiting.setdefault(address, {})
        if len(waiting) < ITEMS_MAX:
            waiting[queue_number, group] = None
        if address not in self._posts:
            self._posts[address] = asyncio.create_task(self._send(address))

    async def _send(self, address: ClientAddress) -> None:
        try:
            while wanted := self._waiting.pop(address, None):
                items = [{"queueId": number, "consumerGroupName": group} for number, group in wanted]
                async with asyncio.timeout(TIMEOUT_S):
                    await self._post(address, {"msgNotifyDtos": items})
                self._dead_until_s.pop(address, None)
                await asyncio.sleep(PAUSE_S)
        except (httpx.HTTPError, OSError, TimeoutError):
            self._forget_old()
            self._dead_until_s[address] = self._clock() + DEAD_S
            self._waiting.pop(address, None)
        finally:
            del self._posts[address]

    def _forget_old(self) -> None:
        now_s = self._clock()
        self._dead_until_s = {one: until_s for one, until_s in self._dead_until_s.items() if until_s > now_s}

    async def _post_http(self, address: ClientAddress, body: dict[str, Any]) -> None:
        if self._http is None:
            limits = httpx.Limits(max_keepalive_connections=0)  # a kept one may be closed by the client meanwhile
            self._http = httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S, limits=limits)
        host = f"[{address.ip}]" if ":" in address.ip else address.ip
        async with self._http.stream("POST", f"http://{host}:{address.port}{PATH}", json=body) as answer:
            answer.raise_for_status()  # the body is not read: it may be of any size
