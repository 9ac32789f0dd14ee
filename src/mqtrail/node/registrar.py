"""Keeps one broker registered with its name servers.

    103    every 30 s, and when any topic may have changed: all topics
    217    for each topic that was created or changed
    104    when the broker stops

A name server before 5.0 does not answer 217. Its reply to 103 carries its version, so it gets 103 for every change. The
same applies to one that answers 217 with an error or whose connection is lost. After 217, a 103 follows as soon as no
topic has changed for a second: it updates the data version, and topics in static order.
Source: BrokerOuterAPI, BrokerController.registerBrokerAll, registerSingleTopicAll, apache/rocketmq broker/.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mqtrail.net import ConnectionPool, Log, NetError
from mqtrail.wire import (
    BodyError,
    ClusterInfo,
    InvalidParameter,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    version_of,
)

QUIET_S = 1.0  # time without a change after 217, until 103 follows
SINGLE_TOPICS_MAX = 200  # registered one by one by 217; more go in one 103
SINGLE_TOPICS_VERSION = version_of(5, 0, 0)
RETRY_S = 2.0  # pause before the retry if a name server does not reply
UNREGISTER_TIMEOUT_MS = 1_000
NAME_TIMEOUT_MS = 1_000  # for a reply of a name server, and of a broker with our name
REGISTERED_WAIT_S = 1.0  # limit of `when_registered`; less than clients wait for a reply

log = Log()


@dataclass(frozen=True, slots=True)
class Commands:
    """Functions that make the requests from the broker's present state. topic: returns None for an unknown topic."""

    registration: Callable[[], RemotingCommand]  # 103
    unregistration: Callable[[], RemotingCommand]  # 104
    topic_registration: Callable[[str], RemotingCommand | None]  # 217


class Registrar:
    """Registers one broker with every address of `namesrvs`.

    sign: called with every request before it is encoded. tls: address -> TLS context of its connection.
    """

    def __init__(
        self,
        broker_name: str,
        namesrvs: Iterable[str],
        commands: Commands,
        *,
        interval_ms: int,
        timeout_ms: int,
        sign: Callable[[RemotingCommand], None] | None = None,
        tls: Mapping[str, ssl.SSLContext] | None = None,
        on_registered: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        """on_registered: called with each successful reply to a registration."""
        self._broker_name = broker_name
        self._unregistration = commands.unregistration
        self._timeout_ms = timeout_ms
        self._sign = sign
        self._tls = tls or {}
        self._is_known = False  # to any name server; otherwise stop sends no 104
        self._pools = {
            address: ConnectionPool(connect_timeout_ms=min(3_000, timeout_ms), sign=sign, tls=self._tls.get(address))
            for address in dict.fromkeys(namesrvs)
        }
        self._keepers = [
            _Keeper(broker_name, address, pool, commands, interval_ms / 1000, timeout_ms, on_registered)
            for address, pool in self._pools.items()
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: set[asyncio.Task[Any]] = set()  # of `when_registered`, each for REGISTERED_WAIT_S at most

    async def start(self) -> None:
        """Register once with all name servers, then continue in the background. Retries those that are down."""
        self._is_known = True
        await asyncio.gather(*(keeper.register() for keeper in self._keepers))
        self._tasks = [asyncio.create_task(keeper.run()) for keeper in self._keepers]

    async def check_name(self, own_address: str, broker_id: int) -> None:
        """Check that no name server knows another running broker of our name and id. InvalidParameter: one does.

        Two brokers with one name and id would replace each other in the routes at every registration, and clients
        would not find the messages of the one that registered earlier.
        """
        for namesrv, pool in self._pools.items():
            held = await self._registered_address(namesrv, pool, broker_id)
            if held and held != own_address and await self._is_running(held, self._tls.get(namesrv)):
                raise InvalidParameter(
                    f"found broker name {self._broker_name!r} in use by {held} with id {broker_id} at name server "
                    f"{namesrv}, expected a unique name and id: choose another (--broker-name, brokerName, brokerId), "
                    "or stop that broker"
                )

    async def _registered_address(self, namesrv: str, pool: ConnectionPool, broker_id: int) -> str:
        """Return the address registered under our name and id at a name server, '' if none or if it does not answer."""
        try:
            command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            reply = await pool.request(namesrv, command, NAME_TIMEOUT_MS)
            if reply.code != ResponseCode.SUCCESS:
                return ""
            data = ClusterInfo.decode(reply.body).broker_addr_table.get(self._broker_name)
        except (NetError, BodyError):
            return ""
        return "" if data is None else data.broker_addrs.get(broker_id, "")

    async def _is_running(self, address: str, tls: ssl.SSLContext | None) -> bool:
        """Return whether a broker of our name answers there. A name server keeps a dead broker for a while."""
        pool = ConnectionPool(connect_timeout_ms=NAME_TIMEOUT_MS, sign=self._sign, tls=tls)
        try:
            reply = await pool.request(address, RemotingCommand(RequestCode.GET_BROKER_CONFIG), NAME_TIMEOUT_MS)
        except NetError:
            return False
        finally:
            await pool.close()
        lines = reply.body.decode("utf-8", "replace").splitlines()
        return reply.code != ResponseCode.SUCCESS or f"brokerName={self._broker_name}" in lines

    def topics_changed(self, names: Iterable[str] | None) -> None:
        """Register these topics soon; None: all topics."""
        for keeper in self._keepers:
            keeper.topics_changed(names)

    def when_registered(self, release: Callable[[], None]) -> None:
        """Call release once all reachable name servers know the present topics, or after REGISTERED_WAIT_S."""
        registered = [keeper.registered() for keeper in self._keepers if not keeper.is_down]
        if not registered:
            release()
            return
        waiting = asyncio.create_task(asyncio.wait(registered, timeout=REGISTERED_WAIT_S))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        waiting.add_done_callback(lambda _: release())

    async def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """Return the reply of the first reachable name server, None if none is reachable."""
        for address, pool in self._pools.items():
            with suppress(NetError):
                return await pool.request(address, replace(command), self._timeout_ms)
        return None

    async def stop(self, *, leaves: bool = True) -> None:
        """Unregister if leaves, and close the connections. Releases everything that waits in `when_registered`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for keeper in self._keepers:
            keeper.leave()
        await asyncio.gather(*self._waiting)
        await asyncio.gather(
            *(
                pool.request(address, self._unregistration(), UNREGISTER_TIMEOUT_MS)
                for address, pool in self._pools.items()
                if leaves and self._is_known and pool.connected(address)
            ),
            return_exceptions=True,
        )
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))


class _Keeper:
    """Keeps the broker registered with one name server: each has a task, so none delays the others when it hangs."""

    def __init__(
        self,
        broker_name: str,
        address: str,
        pool: ConnectionPool,
        commands: Commands,
        interval_s: float,
        timeout_ms: int,
        on_registered: Callable[[RemotingCommand], None] | None,
    ) -> None:
        self._broker_name = broker_name
        self._address = address
        self._pool = pool
        self._commands = commands
        self._interval_s = interval_s
        self._timeout_ms = timeout_ms
        self._on_registered = on_registered
        self._futures: list[asyncio.Future[None]] = []
        self._changed = asyncio.Event()
        self._names: dict[str, None] | None = {}  # topics to register; None: all
        self._loop = asyncio.get_running_loop()
        self._whole_due_s = 0.0  # when the next 103 is due
        self._owes_full_registration = False  # 217 was sent since the last 103: the name server has an old data version
        self._takes_single = False  # whether it supports 217, from its last reply
        self.is_down = False

    def topics_changed(self, names: Iterable[str] | None) -> None:
        """Register these topics soon; None: all topics."""
        if names is None or self._names is None:
            self._names = None
        else:
            self._names.update(dict.fromkeys(names))
            if len(self._names) > SINGLE_TOPICS_MAX:
                self._names = None
        self._changed.set()

    def registered(self) -> asyncio.Future[None]:
        """Return a future that ends with the next registration, whether it succeeds or fails."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        return future

    def leave(self) -> None:
        """Register nothing more; release everything that waits."""
        self.is_down = True
        futures, self._futures = self._futures, []
        _end(futures)

    async def run(self) -> None:
        """Register every interval, after each change of topics, and soon after a failure."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._changed.wait()
            try:
                is_due = self._loop.time() >= self._whole_due_s
                if not is_due and self._changed.is_set() and await self._register_single():
                    continue
                await self.register()
            except Exception:
                log.exception("broker.registration_failed", broker=self._broker_name)

    def _wait_s(self) -> float:
        """Return how long to wait for a change before the next registration."""
        if self.is_down:
            return min(self._interval_s, RETRY_S)
        rest_s = max(0.0, self._whole_due_s - self._loop.time())
        return min(QUIET_S, rest_s) if self._owes_full_registration else rest_s

    async def register(self) -> None:
        """Register all topics (103). Log a failure once, and log its end once."""
        self._changed.clear()
        self._names = {}
        self._owes_full_registration = False
        self._whole_due_s = self._loop.time() + self._interval_s
        futures, self._futures = self._futures, []
        try:
            await self._register()
        finally:
            _end(futures)

    async def _register_single(self) -> bool:
        """Register the changed topics by 217 if the name server supports that; return whether it worked."""
        names = self._names
        if names is None or not self._takes_single or self.is_down or not self._pool.connected(self._address):
            return False
        commands = [command for name in names if (command := self._commands.topic_registration(name)) is not None]
        futures, self._futures = self._futures, []
        self._changed.clear()
        self._names = {}
        try:
            replies = await asyncio.gather(
                *(self._pool.request(self._address, command, self._timeout_ms) for command in commands),
                return_exceptions=True,
            )
        finally:
            # If 217 fails, `register` releases those that wait.
            self._futures[:0] = futures
        for reply in replies:
            if isinstance(reply, NetError) or (isinstance(reply, RemotingCommand) and reply.code):
                self._takes_single = False  # until its next reply to 103
                return False
            if isinstance(reply, BaseException):
                raise reply
        self._futures = self._futures[len(futures) :]
        self._owes_full_registration = True
        _end(futures)
        return True

    async def _register(self) -> None:
        remedy = "start that name server or correct its address"
        try:
            reply = await self._pool.request(self._address, self._commands.registration(), self._timeout_ms)
            if reply.code == ResponseCode.NO_PERMISSION:
                remedy = "set inner_credentials of this broker to an account of that name server"
            failure = None if reply.code == ResponseCode.SUCCESS else f"answered {reply.code}: {reply.remark}"
            self._takes_single = reply.version >= SINGLE_TOPICS_VERSION
            if failure is None and self._on_registered is not None:
                self._on_registered(reply)
        except NetError as error:
            failure = str(error)
        if failure is not None and not self.is_down:
            log.warning(
                "broker.not_registered",
                broker=self._broker_name,
                namesrv=self._address,
                found=failure,
                remedy=f"{remedy}; until then clients do not find this broker; retried every {RETRY_S:g} s",
            )
        elif failure is None and self.is_down:
            log.info("broker.registered_again", broker=self._broker_name, namesrv=self._address)
        self.is_down = failure is not None


def _end(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
