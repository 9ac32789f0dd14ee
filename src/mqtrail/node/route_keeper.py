"""Fetches the routes that a broker needs to assign queues of other brokers too (request 400, QUERY_ASSIGNMENT).

Source: TopicRouteInfoManager, apache/rocketmq broker/topic/.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from mqtrail.broker import Broker
from mqtrail.net import Log
from mqtrail.wire import BodyError, RemotingCommand, RequestCode, ResponseCode, RouteHeader, Send, TopicRouteData

CHECK_S = 5.0  # interval at which routes are checked for age

log = Log()


class RouteKeeper:
    """Serves one core. ask: sends a request to the first name server that answers; None if none does."""

    def __init__(
        self,
        core: Broker,
        ask: Callable[[RemotingCommand], Awaitable[RemotingCommand | None]],
        clock: Callable[[], int],
        write: Callable[[list[Send]], None],
    ) -> None:
        self._routes = core.pop.assignments.routes
        self._learn = core.pop.assignments.learn_route
        self._ask = ask
        self._clock = clock
        self._write = write
        self._requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to fetch routes."""
        self._routes.follows = True
        self._task = asyncio.create_task(self._run())

    def fetch_new(self) -> None:
        """Fetch newly needed routes at once. Cheap if there are none."""
        if self._routes.has_new:
            self._requested.set()

    async def stop(self) -> None:
        self._routes.follows = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._requested.wait()
            self._requested.clear()
            for topic in self._routes.wanted(self._clock()):
                try:
                    route = await self._route(topic)
                    self._write(self._learn(topic, route, self._clock()))
                except Exception:
                    log.exception("broker.route_failed", topic=topic)

    async def _route(self, topic: str) -> TopicRouteData | None:
        header = RouteHeader(topic, accept_standard_json_only=True)
        reply = await self._ask(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext()))
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return None
        try:
            return TopicRouteData.decode(reply.body)
        except BodyError as error:
            log.sparse.warning("broker.route_unreadable", topic=topic, found=str(error))
            return None
