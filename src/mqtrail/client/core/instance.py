"""The client instance: one connection pool, the routes, the heartbeat, shared by producers and consumers.

Periodic work (route refresh, heartbeat) runs in tasks of the event loop that started it; nothing runs before `start`.
Source: MQClientInstance, RocketMQ client.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from mqtrail.net import Connection, ConnectionPool, Log, parse_namesrv
from mqtrail.wire import (
    MASTER_ID,
    PROPERTY_PGROUP,
    ConsumerData,
    HeartbeatData,
    MessageExt,
    MQError,
    ProducerData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_record,
    refusal_for,
    sign,
)

from .background import keep_going, off_loop
from .config import InstanceConfig
from .endpoint import endpoint_url
from .errors import BrokerUnknown, ClientClosed, ClientError, RouteNotFound
from .identity import new_client_id
from .nameservers import NameServers
from .namespaces import EXT_NAMESPACE, EXT_NAMESPACED
from .replies import ReplyWaiters
from .routes import TopicRoute, queue_count

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


class TransactionChecker(Protocol):
    """A transaction producer as its instance sees it."""

    def serve_check(self, address: str, command: RemotingCommand, message: MessageExt) -> None:
        """Take a broker's request for the state of a transaction (39); the answer is a later one-way request."""
        ...


class ClientInstance:
    """What the producers and consumers of one client id share. Belongs to the event loop that starts it."""

    def __init__(self, namesrv: str | Sequence[str], config: InstanceConfig | None = None) -> None:
        self.config = config or InstanceConfig()
        self.client_id = new_client_id(self.config.unit_name)
        prepare = self._prepare if self.config.namespace_v2 else None
        credentials = self.config.credentials
        self.pool = ConnectionPool(
            on_request=self._on_request,
            on_connect=self._on_connect,
            prepare=prepare,
            sign=None if credentials is None else partial(sign, credentials=credentials),
            tls=self.config.tls.context(),
        )
        url = endpoint_url(namesrv, self.config)
        addresses = parse_namesrv(namesrv) if url is None else ()
        self.name_servers = NameServers(addresses, self.pool, self.config.request_timeout_ms, url)
        self.replies = ReplyWaiters()
        self._routes: dict[str, TopicRoute] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._producers: dict[str, int] = {}
        self._checkers: dict[str, TransactionChecker] = {}
        self._beating: set[str] = set()  # addresses that are being sent a heartbeat
        self._consumers: dict[str, GroupMember] = {}
        self._templates: dict[str, tuple[str, int]] = {}  # topic -> (template topic, queues): not created yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._closed = False

    async def start(self) -> None:
        """Begin the periodic work. A second call does nothing."""
        if self._closed:
            raise ClientClosed("this client was closed; create a new one")
        if not self._started:
            self._started = True
            self.spawn(self.every(self.config.route_refresh_ms, self.refresh_routes))
            self.spawn(self.every(self.config.heartbeat_ms, self.heartbeat))
            if self.name_servers.url is not None:
                self.spawn(self.every(self.config.namesrv_refresh_ms, self.name_servers.refresh))

    async def close(self) -> None:
        """End the periodic work and close the connections. Unregister the groups first."""
        self._closed = True
        self.replies.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self.pool.close()

    # -- tasks -----------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until it ends or the instance closes; an error that escapes it is logged with its traceback."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("client.task_failed", client=self.client_id, task=task.get_name(), exc_info=error)

    async def every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        """Call work every interval_ms, the first time after one interval; failures are logged."""

        async def turn() -> None:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except (MQError, OSError) as error:
                log.warning("client.periodic_failed", client=self.client_id, error=str(error))

        await keep_going(getattr(work, "__qualname__", repr(work)), turn, client=self.client_id)

    # -- routes ----------------------------------------------------------------------------------------------------

    def known_route(self, topic: str) -> TopicRoute | None:
        """The cached route; None if there is none. Sends no request."""
        return self._routes.get(topic)

    async def route(self, topic: str, template: tuple[str, int] | None = None) -> TopicRoute:
        """Return the topic's route, from a name server if it is not cached.

        template: (template topic, queue count) to use if the topic does not exist; brokers create it at the first
        send. Raises RouteNotFound, NoNameServer. Concurrent callers share one request.
        """
        route = self._routes.get(topic)
        return route if route is not None else await self.fetch_route(topic, template)

    async def fetch_route(self, topic: str, template: tuple[str, int] | None = None) -> TopicRoute:
        """Request the topic's route from a name server and cache it. Arguments and errors as `route`."""
        if self._closed:
            raise ClientClosed(f"this client was closed; the route of {topic!r} was not requested")
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._fetching[topic] = asyncio.get_running_loop().create_task(self._fetch(topic, template))
            fetching.add_done_callback(lambda task: self._fetched(topic, task))
        return await asyncio.shield(fetching)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved, in case no caller is waiting

    async def _fetch(self, topic: str, template: tuple[str, int] | None) -> TopicRoute:
        known = self._routes.get(topic)
        try:
            data = await self.name_servers.route(topic)
            route = await off_loop(queue_count(data), _built, known, TopicRoute.build, topic, data)
            self._templates.pop(topic, None)
        except RouteNotFound as missing:
            if template is None:
                raise
            try:
                data = await self.name_servers.route(template[0])
            except RouteNotFound:
                raise missing from None
            args = topic, data, template[1]
            route = await off_loop(queue_count(data), _built, known, TopicRoute.from_template_route, *args)
            self._templates[topic] = template
        if known is not route:
            self._routes[topic] = route
            if known is not None:
                log.sparse.info("client.route_changed", client=self.client_id, topic=topic)
            for consumer in list(self._consumers.values()):
                consumer.on_route_changed()
        return route

    async def refresh_routes(self) -> None:
        """Refresh the route of every topic in use. A topic that no longer exists keeps its last route."""
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
        """The address of a broker's master. Raises BrokerUnknown."""
        address = route.master(broker_name) if route is not None else None
        address = address or self.brokers().get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise BrokerUnknown(
                f"found no master of broker {broker_name!r} in any route; check that it is up and registered"
            )
        return address

    def any_address(self, broker_name: str) -> str:
        """The master's address, else a slave's. Raises BrokerUnknown."""
        addresses = self.brokers().get(broker_name, {})
        if not addresses:
            raise BrokerUnknown(
                f"found no address of broker {broker_name!r} in any route; check that it is up and registered"
            )
        return addresses.get(MASTER_ID) or next(iter(addresses.values()))

    # -- requests --------------------------------------------------------------------------------------------------

    async def call(
        self, address: str, code: RequestCode, ext: dict[str, str], body: bytes = b"", timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Send a request to address and return the successful reply. Raises another code as its Refusal; NetError."""
        command = RemotingCommand(code, ext, body)
        reply = await self.pool.request(address, command, timeout_ms or self.config.request_timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        return reply

    # -- groups ----------------------------------------------------------------------------------------------------

    def add_producer(self, group: str, checker: TransactionChecker | None = None) -> None:
        """Add a producer group to the heartbeats; several times is allowed. checker: answers its transaction checks."""
        self._producers[group] = self._producers.get(group, 0) + 1
        if checker is not None:
            self._checkers[group] = checker

    async def remove_producer(self, group: str) -> None:
        """Remove a producer group; when its last producer here is removed, unregister it at the brokers."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            self._checkers.pop(group, None)
            await self._unregister({"clientID": self.client_id, "producerGroup": group})

    def add_consumer(self, consumer: GroupMember) -> None:
        """Add a consumer to the heartbeats. Raises ClientError if its group has one in this instance."""
        if consumer.group in self._consumers:
            raise ClientError(
                f"group {consumer.group!r} already has a consumer in this client, expected one per group: "
                "use a client for each"
            )
        self._consumers[consumer.group] = consumer

    async def remove_consumer(self, group: str) -> None:
        """Remove a consumer and unregister it at the brokers, so that other members get its queues immediately."""
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
        """Send this instance's groups to all masters, and also to the slaves if there are consumers."""
        if not self._producers and not self._consumers:
            return
        body = self._heartbeat_data().encode()
        beats = [
            self._beat(address, body)
            for broker in self.brokers().values()
            for broker_id, address in broker.items()
            if broker_id == MASTER_ID or self._consumers
        ]
        await asyncio.gather(*beats)

    def _heartbeat_data(self) -> HeartbeatData:
        return HeartbeatData(
            self.client_id,
            tuple(ProducerData(group) for group in self._producers),
            tuple(consumer.heartbeat_data() for consumer in self._consumers.values()),
        )

    def _prepare(self, command: RemotingCommand) -> None:
        """Add the fields that every request of this client has."""
        if self.config.namespace_v2:
            command.ext[EXT_NAMESPACED] = "true"
            command.ext[EXT_NAMESPACE] = self.config.namespace_v2

    def _on_connect(self, address: str) -> None:
        """Send a heartbeat over a new connection immediately: checks, replies and pulls depend on it."""
        if (self._producers or self._consumers) and address not in self._beating and not self._closed:
            for broker in self.brokers().values():
                if broker.get(MASTER_ID) == address or (self._consumers and address in broker.values()):
                    self.spawn(self._beat(address, self._heartbeat_data().encode()))
                    return

    async def _beat(self, address: str, body: bytes) -> None:
        self._beating.add(address)
        try:
            await self.call(address, RequestCode.HEART_BEAT, {}, body)
        except (MQError, OSError) as error:
            log.sparse.warning("client.heartbeat_failed", client=self.client_id, address=address, error=str(error))
        finally:
            self._beating.discard(address)

    def _on_request(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Dispatch a broker's request, usually to the consumer of the group it names."""
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self.replies.serve(command)
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._hand_check(connection.address, command)
            return None
        group = command.ext.get("consumerGroup") or command.ext.get("group") or ""
        consumer = self._consumers.get(group)
        if consumer is not None:
            return consumer.serve(command)
        if command.code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            return RemotingCommand.reply_to(
                command, ResponseCode.SYSTEM_ERROR, f"no consumer of group {group!r} in client {self.client_id}"
            )
        return None

    def _hand_check(self, address: str, command: RemotingCommand) -> None:
        try:
            message, _ = decode_record(command.body)
        except MQError as error:
            log.sparse.warning("client.check_unreadable", address=address, error=str(error))
            return
        group = message.properties.get(PROPERTY_PGROUP, "")
        checker = self._checkers.get(group)
        if checker is None:
            log.sparse.warning("client.check_unserved", group=group, msg_id=message.msg_id, address=address)
            return
        checker.serve_check(address, command, message)


def _built(known: TopicRoute | None, build: Callable[..., TopicRoute], *args: Any) -> TopicRoute:
    """Return the route that build makes, or the known one if they are equal."""
    route = build(*args)
    return known if known is not None and known == route else route
