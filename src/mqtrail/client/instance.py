"""The client instance: one pool of connections, the routes, the heartbeat. Producers and consumers work through it.

Periodic work (route refresh, heartbeat) runs in tasks of the event loop that started it; nothing runs before `start`.
Source: MQClientInstance, RocketMQ client.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from mqtrail.client.config import InstanceConfig, parse_namesrv
from mqtrail.client.errors import BrokerUnknown, ClientClosed, ClientError, RouteNotFound
from mqtrail.client.identity import new_client_id
from mqtrail.client.nameservers import NameServers
from mqtrail.client.routes import TopicRoute
from mqtrail.net import Connection, ConnectionPool, Log
from mqtrail.wire import (
    MASTER_ID,
    ConsumerData,
    HeartbeatData,
    MQError,
    ProducerData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    refusal_for,
)

log = Log()


class GroupMember(Protocol):
    """A consumer as its instance sees it."""

    group: str

    def heartbeat_data(self) -> ConsumerData: ...

    def topics(self) -> Sequence[str]: ...

    def on_route_changed(self) -> None: ...

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Answer a broker's request that names this group (codes 40, 220, 221, 307, 309)."""
        ...


class ClientInstance:
    """Shared ground of the producers and consumers of one client id. Belongs to the event loop that starts it."""

    def __init__(self, namesrv: str | Sequence[str], config: InstanceConfig | None = None) -> None:
        self.config = config or InstanceConfig()
        self.client_id = new_client_id(self.config.unit_name)
        self.pool = ConnectionPool(on_request=self._on_request)
        self.name_servers = NameServers(parse_namesrv(namesrv), self.pool, self.config.request_timeout_ms)
        self._routes: dict[str, TopicRoute] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, GroupMember] = {}
        self._templates: dict[str, tuple[str, int]] = {}  # topic -> (template topic, queues): not created yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._closed = False

    async def start(self) -> None:
        """Begin the periodic work. A second call does nothing."""
        if self._closed:
            raise ClientClosed("this client was closed; make a new one")
        if not self._started:
            self._started = True
            self.spawn(self.every(self.config.route_refresh_ms, self.refresh_routes))
            self.spawn(self.every(self.config.heartbeat_ms, self.heartbeat))

    async def close(self) -> None:
        """End the periodic work and close the connections. Groups must have left before."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self.pool.close()

    # -- tasks -----------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until it ends or the instance closes; an error that escapes it is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("client.task_failed", client=self.client_id, error=repr(error))

    async def every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        """Call work every interval_ms, the first time after one interval; failures of the cluster are logged."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except (MQError, OSError) as error:
                log.warning("client.periodic_failed", client=self.client_id, error=str(error))

    # -- routes ----------------------------------------------------------------------------------------------------

    def known_route(self, topic: str) -> TopicRoute | None:
        """The route as known now, without asking."""
        return self._routes.get(topic)

    async def route(self, topic: str, template: tuple[str, int] | None = None) -> TopicRoute:
        """Return the topic's route, asking a name server when it is not known.

        template: (template topic, queues) to fall back to when the topic does not exist; brokers create it at the
        first send. Raises RouteNotFound, NoNameServer. Callers at the same time share one request.
        """
        route = self._routes.get(topic)
        return route if route is not None else await self.fetch_route(topic, template)

    async def fetch_route(self, topic: str, template: tuple[str, int] | None = None) -> TopicRoute:
        """Ask a name server for the topic's route now, and keep it."""
        if self._closed:
            raise ClientClosed(f"this client was closed; the route of {topic!r} was not asked for")
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._fetching[topic] = asyncio.get_running_loop().create_task(self._fetch(topic, template))
            fetching.add_done_callback(lambda task: self._fetched(topic, task))
        return await asyncio.shield(fetching)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # seen, should nobody wait for it any more

    async def _fetch(self, topic: str, template: tuple[str, int] | None) -> TopicRoute:
        try:
            route = TopicRoute.build(topic, await self.name_servers.route(topic))
            self._templates.pop(topic, None)
        except RouteNotFound as missing:
            if template is None:
                raise
            try:
                data = await self.name_servers.route(template[0])
            except RouteNotFound:
                raise missing from None
            route = TopicRoute.from_template_route(topic, data, template[1])
            self._templates[topic] = template
        known = self._routes.get(topic)
        if known != route:
            self._routes[topic] = route
            if known is not None:
                log.info("client.route_changed", client=self.client_id, topic=topic)
            for consumer in list(self._consumers.values()):
                consumer.on_route_changed()
        return route

    async def refresh_routes(self) -> None:
        """Ask anew for every topic in use. A topic that vanished keeps its last route."""
        topics = dict.fromkeys(self._routes)
        for consumer in self._consumers.values():
            topics.update(dict.fromkeys(consumer.topics()))
        for topic in topics:
            with contextlib.suppress(RouteNotFound):
                await self.fetch_route(topic, self._templates.get(topic))

    def brokers(self) -> dict[str, dict[int, str]]:
        """All brokers of the known routes: name -> id -> address."""
        found: dict[str, dict[int, str]] = {}
        for route in self._routes.values():
            for name, addresses in route.brokers.items():
                found.setdefault(name, {}).update(addresses)
        return found

    def master(self, broker_name: str, route: TopicRoute | None = None) -> str:
        """The address that takes writes for a broker. Raises BrokerUnknown."""
        address = route.master(broker_name) if route is not None else None
        address = address or self.brokers().get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise BrokerUnknown(f"no route names a master of broker {broker_name!r}; is it up and registered?")
        return address

    def any_address(self, broker_name: str) -> str:
        """The master's address, else a slave's. Raises BrokerUnknown."""
        addresses = self.brokers().get(broker_name, {})
        if not addresses:
            raise BrokerUnknown(f"no route names an address of broker {broker_name!r}; is it up and registered?")
        return addresses.get(MASTER_ID) or next(iter(addresses.values()))

    # -- requests --------------------------------------------------------------------------------------------------

    async def call(
        self, address: str, code: RequestCode, ext: dict[str, str], body: bytes = b"", timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Return the successful reply; any other code is raised as its Refusal."""
        command = RemotingCommand(code, ext, body)
        reply = await self.pool.request(address, command, timeout_ms or self.config.request_timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        return reply

    # -- groups ----------------------------------------------------------------------------------------------------

    def add_producer(self, group: str) -> None:
        """Name a producer group in heartbeats; groups may be added several times."""
        self._producers[group] = self._producers.get(group, 0) + 1

    async def remove_producer(self, group: str) -> None:
        """Leave a producer group; brokers are told when its last producer of this instance is gone."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._unregister({"clientID": self.client_id, "producerGroup": group})

    def add_consumer(self, consumer: GroupMember) -> None:
        """Name a consumer in heartbeats. A group may be in an instance once. Raises ClientError."""
        if consumer.group in self._consumers:
            raise ClientError(
                f"group {consumer.group!r} has a consumer in this client already: one group, one consumer"
            )
        self._consumers[consumer.group] = consumer

    async def remove_consumer(self, group: str) -> None:
        """Leave a consumer group and tell the brokers, so that its queues go to the others at once."""
        if self._consumers.pop(group, None) is not None:
            await self._unregister({"clientID": self.client_id, "consumerGroup": group})

    async def _unregister(self, ext: dict[str, str]) -> None:
        addresses = [address for broker in self.brokers().values() for address in broker.values()]
        calls = [
            self.call(address, RequestCode.UNREGISTER_CLIENT, dict(ext))
            for address in dict.fromkeys(addresses)
            if self.pool.connected(address)
        ]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, Exception):
                log.debug("client.unregister_failed", client=self.client_id, error=str(result))

    async def heartbeat(self) -> None:
        """Tell the brokers which groups live here: masters all of them, slaves where there are consumers."""
        if not self._producers and not self._consumers:
            return
        data = HeartbeatData(
            self.client_id,
            tuple(ProducerData(group) for group in self._producers),
            tuple(consumer.heartbeat_data() for consumer in self._consumers.values()),
        )
        body = data.encode()
        beats = [
            self._beat(address, body)
            for broker in self.brokers().values()
            for broker_id, address in broker.items()
            if broker_id == MASTER_ID or self._consumers
        ]
        await asyncio.gather(*beats)

    async def _beat(self, address: str, body: bytes) -> None:
        try:
            await self.call(address, RequestCode.HEART_BEAT, {}, body)
        except (MQError, OSError) as error:
            log.warning("client.heartbeat_failed", client=self.client_id, address=address, error=str(error))

    def _on_request(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Hand a broker's request to the consumer whose group it names."""
        group = command.ext.get("consumerGroup") or command.ext.get("group") or ""
        consumer = self._consumers.get(group)
        if consumer is not None:
            return consumer.serve(command)
        if command.code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            return RemotingCommand.reply_to(
                command, ResponseCode.SYSTEM_ERROR, f"no consumer of group {group!r} in client {self.client_id}"
            )
        return None
