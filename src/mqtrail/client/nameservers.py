"""The name servers: asks one, and the next when that one is down or talks nonsense.

The one that answered last is asked first the next time; the list starts at a random place, so that many clients do not
all lean on the first.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from mqtrail.client.errors import NoNameServer, RouteNotFound
from mqtrail.net import ConnectionPool, NetError
from mqtrail.wire import MQError, RemotingCommand, RequestCode, ResponseCode, TopicRouteData, refusal_for

T = TypeVar("T")


class NameServers:
    """Requests to whichever name server answers."""

    def __init__(self, addresses: Sequence[str], pool: ConnectionPool, timeout_ms: int) -> None:
        self.addresses = tuple(addresses)
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = random.randrange(len(self.addresses))

    async def ask(self, code: RequestCode, ext: dict[str, str], read: Callable[[RemotingCommand], T]) -> T:
        """Return what read makes of the first sensible reply; read raises a Refusal (final) or another MQError.

        Raises NoNameServer when no server gave a sensible reply.
        """
        failures: list[str] = []
        for turn in range(len(self.addresses)):
            place = (self._current + turn) % len(self.addresses)
            address = self.addresses[place]
            try:
                reply = await self._pool.request(address, RemotingCommand(code, dict(ext)), self._timeout_ms)
                value = read(reply)
            except NetError as error:
                failures.append(f"{address}: {error}")
            except NonsenseReply as error:
                failures.append(f"{address}: {error}")
            else:
                self._current = place
                return value
        raise NoNameServer(
            f"no name server answered request {code.name}; is the address right, and is a name server running there? "
            + "; ".join(failures)
        )

    async def route(self, topic: str) -> TopicRouteData:
        """Return the topic's route. Raises RouteNotFound when a name server says that there is none; NoNameServer."""

        def read(reply: RemotingCommand) -> TopicRouteData:
            if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFound(
                    f"no broker has the topic {topic!r}, say the name servers {', '.join(self.addresses)}: "
                    "create it (mqtrail topic create), or let brokers create topics (autoCreateTopicEnable)"
                )
            return read_body(reply, TopicRouteData.decode)

        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, read)


class NonsenseReply(MQError):
    """A reply that claims success and whose body cannot be read: ask another server."""


def read_body(reply: RemotingCommand, decode: Callable[[bytes], T]) -> T:
    """Return decode(body) of a successful reply; a Refusal for another code, NonsenseReply for a bad body."""
    if reply.code != ResponseCode.SUCCESS:
        raise refusal_for(reply.code, reply.remark or "")
    try:
        return decode(reply.body or b"")
    except (MQError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = bytes(reply.body or b"")[:80]
        raise NonsenseReply(f"the reply's body cannot be read ({type(error).__name__}: {error}): {text!r}") from error
