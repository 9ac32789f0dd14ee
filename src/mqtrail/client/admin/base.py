"""The base of Admin: selects the brokers for a request, sends several requests at once, and collects failures."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from mqtrail.net import NAMESRV_DEFAULT
from mqtrail.wire import MASTER_ID, ClusterInfo, MessageQueue, MQError, RemotingCommand, RequestCode

from ..core import ClientError, ClientInstance, InstanceConfig, read_body, reply_number

T = TypeVar("T")
LISTED_MAX: Final = 500  # topics or groups in one request; brokers accept 1 000

REQUESTS_AT_ONCE_MAX: Final = 64  # requests of one call that wait for their replies


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """Answers by broker name, and the errors of the brokers that gave none."""

    found: Mapping[str, T]
    failures: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all requested brokers answered."""
        return not self.failures

    def values(self) -> list[T]:
        """The answers without the broker names."""
        return list(self.found.values())


class AdminBase:
    """The connections of an Admin, and its requests to several servers."""

    def __init__(
        self,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        *,
        config: InstanceConfig | None = None,
        client: ClientInstance | None = None,
    ) -> None:
        self._own_client = client is None
        self._client = client or ClientInstance(namesrv, config)
        self._timeout_ms = self._client.config.request_timeout_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Do nothing: connections are opened when needed."""

    async def close(self) -> None:
        """Close the connections."""
        if self._own_client:
            await self._client.close()

    async def cluster(self) -> ClusterInfo:
        """All brokers and clusters that the name server knows. Raises NoNameServer."""
        return await self._client.name_servers.ask(
            RequestCode.GET_BROKER_CLUSTER_INFO, {}, lambda reply: read_body(reply, ClusterInfo.decode)
        )

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """The addresses of the masters of a cluster (None: of all clusters), by broker name."""
        info = await self.cluster()
        return {
            name: broker.broker_addrs[MASTER_ID]
            for name, broker in sorted(info.broker_addr_table.items())
            if MASTER_ID in broker.broker_addrs and (cluster is None or broker.cluster == cluster)
        }

    async def targets(self, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """The addresses that a change is sent to, by broker name: one broker, or the masters of a cluster or of all.

        broker: name or address (host:port). Raises ClientError if no master matches.
        """
        if broker is not None and ":" in broker:
            return {broker: broker}
        masters = await self.masters(cluster)
        if broker is None:
            if not masters:
                where = f" in cluster {cluster!r}" if cluster else ""
                raise ClientError(f"found no master broker{where}; check that one is registered with the name server")
            return masters
        if broker not in masters:
            known = ", ".join(masters) or "none"
            raise ClientError(f"found no master of broker {broker!r}, expected an address host:port, or one of {known}")
        return {broker: masters[broker]}

    async def broker_config(self, broker_address: str) -> dict[str, str]:
        """A broker's settings."""
        return await self._ask(broker_address, RequestCode.GET_BROKER_CONFIG, {}, read_settings)

    async def _call(self, address: str, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> str:
        await self._client.call(address, code, ext, body)
        return address

    async def _call_in_parts(self, address: str, code: RequestCode, bodies: Iterable[bytes]) -> str:
        for body in bodies:
            await self._call(address, code, {}, body)
        return address

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, str],
        decode: Callable[[bytes], T],
        *,
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> T:
        command = RemotingCommand(code, dict(ext), body)
        return read_body(await self._client.pool.request(address, command, timeout_ms or self._timeout_ms), decode)

    async def _offset(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> int:
        address = await self._address_of(queue)
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name} | ext
        reply = await self._client.call(address, code, ext)
        return reply_number(reply, "offset")

    async def _address_of(self, queue: MessageQueue) -> str:
        route = await self._client.route(queue.topic)
        return route.address(queue.broker_name) or self._client.any_address(queue.broker_name)

    async def _on_topic(
        self,
        topic: str,
        code: RequestCode,
        ext: dict[str, str],
        decode: Callable[[bytes], T],
        *,
        without: Collection[str] = (),
    ) -> Gathered[T]:
        route = await self._client.fetch_route(topic)
        calls = {
            name: self._ask(address, code, ext, decode)
            for name in route.brokers
            if name not in without and (address := route.address(name)) is not None
        }
        return await self._gather(calls)

    async def _on_targets(
        self, cluster: str | None, broker: str | None, call: Callable[[str], Coroutine[Any, Any, T]]
    ) -> Gathered[T]:
        """Call each broker of `targets`; return answers and failures by broker name."""
        targets = await self.targets(cluster, broker)
        return await self._gather({name: call(address) for name, address in targets.items()})

    async def _on_name_servers(self, call: Callable[[str], Coroutine[Any, Any, T]]) -> Gathered[T]:
        """Call each name server, because a change must reach all of them; return answers and failures by address."""
        addresses = await self._client.name_servers.known()
        return await self._gather({address: call(address) for address in addresses})

    async def _gather(self, calls: Mapping[str, Awaitable[T]]) -> Gathered[T]:
        """Await all calls, REQUESTS_AT_ONCE_MAX at a time."""
        found: dict[str, T] = {}
        failures: dict[str, Exception] = {}

        async def answer(one: tuple[str, Awaitable[T]]) -> None:
            name, call = one
            try:
                found[name] = await call
            except (MQError, OSError) as error:
                failures[name] = error

        try:
            await for_each(calls.items(), answer)
        finally:
            for call in calls.values():  # after a bug or a cancellation some are not awaited
                if inspect.iscoroutine(call):
                    call.close()
        ordered = {name: found[name] for name in calls if name in found}
        return Gathered(ordered, {name: failures[name] for name in calls if name in failures})


async def for_each(items: Collection[T], call: Callable[[T], Awaitable[None]]) -> None:
    """Call for every item, REQUESTS_AT_ONCE_MAX at a time: their number often comes from a server.

    Raises the first error.
    """
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await call(item)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(REQUESTS_AT_ONCE_MAX, len(items))):
                workers.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def read_settings(body: bytes) -> dict[str, str]:
    """Read `name=value` lines. Apache's servers write them without Java's escapes."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").split("\n"))
    return {name.strip(): value.strip() for name, equals, value in lines if equals and not name.startswith("#")}


def in_parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in parts of LISTED_MAX, one per request; without values, one empty part."""
    for first in range(0, max(1, len(values)), LISTED_MAX):
        yield values[first : first + LISTED_MAX]
