"""The name servers: a request goes to one of them, and to the next if that one is down or its answer is invalid.

The next request goes first to the server that answered last. Each client starts at a random place in the list, so that
clients spread over all servers. The list is configured, or fetched and refreshed from an HTTP endpoint.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from mqtrail.net import ConnectionPool, Log, NetError
from mqtrail.wire import MQError, RemotingCommand, RequestCode, ResponseCode, TopicRouteData, refusal_for

from .endpoint import fetch_addresses
from .errors import NoNameServer, RouteNotFound
from .routes import read_route

log = Log()

T = TypeVar("T")


class NameServers:
    """Sends requests to the first name server that answers. url: endpoint that lists the addresses, or None."""

    def __init__(self, addresses: Sequence[str], pool: ConnectionPool, timeout_ms: int, url: str | None = None) -> None:
        self.addresses = tuple(addresses)
        self.url = url
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = random.randrange(len(self.addresses)) if self.addresses else 0
        self._fetching = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """What identifies the cluster permanently: the endpoint, else the addresses."""
        return self.addresses if self.url is None else (self.url,)

    async def known(self) -> tuple[str, ...]:
        """Return the addresses; the first call fetches them. Raises NoNameServer."""
        if not self.addresses:
            async with self._fetching:
                if not self.addresses:
                    await self._fetch()
        return self.addresses

    async def refresh(self) -> None:
        """Fetch the addresses again; if that fails, keep the known ones."""
        try:
            await self._fetch()
        except NoNameServer as error:
            log.warning("client.endpoint_failed", url=self.url, error=str(error))

    async def _fetch(self) -> None:
        assert self.url is not None
        found = await fetch_addresses(self.url)
        if found != self.addresses:
            log.info("client.name_servers", url=self.url, addresses=found)
            self.addresses, self._current = found, random.randrange(len(found))

    async def ask(self, code: RequestCode, ext: dict[str, str], read: Callable[[RemotingCommand], T]) -> T:
        """Return read(reply) of the first valid reply; read raises a Refusal (final) or another MQError.

        Raises NoNameServer if no server sent a valid reply.
        """
        failures: list[str] = []
        addresses = self.addresses or await self.known()
        first = self._current
        for turn in range(len(addresses)):
            place = (first + turn) % len(addresses)
            address = addresses[place]
            try:
                reply = await self._pool.request(address, RemotingCommand(code, dict(ext)), self._timeout_ms)
                value = read(reply)
            except NetError as error:
                failures.append(f"{address}: {error}")
            except InvalidReply as error:
                failures.append(f"{address}: {error}")
            else:
                if addresses is self.addresses:
                    self._current = place
                return value
        raise NoNameServer(
            f"no name server answered request {code.name}; check the address, and that a name server is running there. "
            + "; ".join(failures)
        )

    async def route(self, topic: str) -> TopicRouteData:
        """Return the topic's route. RouteNotFound: a name server has no route. NoNameServer: none answered."""

        def read(reply: RemotingCommand) -> TopicRouteData:
            if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFound(
                    f"no broker has the topic {topic!r}, according to the name servers {', '.join(self.addresses)}: "
                    "create it (mqtrail topic create), or let brokers create topics (autoCreateTopicEnable)"
                )
            return read_body(reply, read_route)

        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, read)


class InvalidReply(MQError):
    """A successful reply with an unreadable body: ask another server."""


def read_body(reply: RemotingCommand, decode: Callable[[bytes], T]) -> T:
    """Return decode(body) of a successful reply. Raises a Refusal for another code, InvalidReply for a bad body."""
    if reply.code != ResponseCode.SUCCESS:
        raise refusal_for(reply.code, reply.remark or "")
    try:
        return decode(reply.body or b"")
    except (MQError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = bytes(reply.body or b"")[:80]
        raise InvalidReply(f"the reply's body cannot be read ({type(error).__name__}: {error}): {text!r}") from error
