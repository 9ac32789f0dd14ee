"""Keeps one broker known to its name servers: 103 every 30 s and when its topics change, 104 when it stops.

Source: BrokerOuterAPI, BrokerController.registerBrokerAll, apache/rocketmq broker/.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mqtrail.net import ConnectionPool, Log, NetError
from mqtrail.wire import (
    MASTER_ID,
    BodyError,
    ClusterInfo,
    InvalidParameter,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

RETRY_S = 2.0  # after a name server did not answer
UNREGISTER_TIMEOUT_MS = 1_000
NAME_TIMEOUT_MS = 1_000  # for a name server, and a broker of our name, to answer
TOLD_WAIT_S = 1.0  # how long `when_told` waits for name servers; less than clients wait for a reply

log = Log()


class Registrar:
    """Registers one broker with every address of `namesrvs`. registration, unregistration: what to send now.

    sign: called with every request before it is encoded. tls: address -> what its connection shakes hands with.
    """

    def __init__(
        self,
        broker_name: str,
        namesrvs: Iterable[str],
        registration: Callable[[], RemotingCommand],
        unregistration: Callable[[], RemotingCommand],
        *,
        interval_ms: int,
        timeout_ms: int,
        sign: Callable[[RemotingCommand], None] | None = None,
        tls: Mapping[str, ssl.SSLContext] | None = None,
        on_registered: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        """on_registered: told what a name server answered to a registration."""
        self._broker_name = broker_name
        self._unregistration = unregistration
        self._timeout_ms = timeout_ms
        self._sign = sign
        self._tls = tls or {}
        self._is_known = False  # to any name server: else there is nothing to take back
        self._pools = {
            address: ConnectionPool(connect_timeout_ms=min(3_000, timeout_ms), sign=sign, tls=self._tls.get(address))
            for address in dict.fromkeys(namesrvs)
        }
        self._keepers = [
            _Keeper(broker_name, address, pool, registration, interval_ms / 1000, timeout_ms, on_registered)
            for address, pool in self._pools.items()
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: set[asyncio.Task[Any]] = set()  # of `when_told`, each for TOLD_WAIT_S at most

    async def start(self) -> None:
        """Register once with all, then go on in the background. A name server that is down is tried again."""
        self._is_known = True
        await asyncio.gather(*(keeper.register() for keeper in self._keepers))
        self._tasks = [asyncio.create_task(keeper.run()) for keeper in self._keepers]

    async def check_name(self, own_address: str) -> None:
        """Return unless another broker that lives has our name at one of the name servers. InvalidParameter.

        Two brokers of one name would take each other's place in the routes at every registration: messages in the one
        that is not named just then are not found.
        """
        for namesrv, pool in self._pools.items():
            held = await self._holder(namesrv, pool)
            if held and held != own_address and await self._lives(held, self._tls.get(namesrv)):
                raise InvalidParameter(
                    f"found broker name {self._broker_name!r} in use by {held} at name server {namesrv}, expected "
                    "one of its own: choose another (--broker-name, brokerName), or stop that broker"
                )

    async def _holder(self, namesrv: str, pool: ConnectionPool) -> str:
        """Return the address that a name server has for our name, '' where it has none or does not tell."""
        try:
            command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            reply = await pool.request(namesrv, command, NAME_TIMEOUT_MS)
            if reply.code != ResponseCode.SUCCESS:
                return ""
            data = ClusterInfo.decode(reply.body).broker_addr_table.get(self._broker_name)
        except (NetError, BodyError):
            return ""
        return "" if data is None else data.broker_addrs.get(MASTER_ID, "")

    async def _lives(self, address: str, tls: ssl.SSLContext | None) -> bool:
        """Tell whether a broker of our name answers there: a name server remembers a dead one for a while."""
        pool = ConnectionPool(connect_timeout_ms=NAME_TIMEOUT_MS, sign=self._sign, tls=tls)
        try:
            reply = await pool.request(address, RemotingCommand(RequestCode.GET_BROKER_CONFIG), NAME_TIMEOUT_MS)
        except NetError:
            return False
        finally:
            await pool.close()
        lines = reply.body.decode("utf-8", "replace").splitlines()
        return reply.code != ResponseCode.SUCCESS or f"brokerName={self._broker_name}" in lines

    def topics_changed(self) -> None:
        """Register again at once."""
        for keeper in self._keepers:
            keeper.changed.set()

    def when_told(self, release: Callable[[], None]) -> None:
        """Call release once every name server that answers knows the topics as they are now, or after TOLD_WAIT_S."""
        told = [keeper.told() for keeper in self._keepers if not keeper.is_down]
        if not told:
            release()
            return
        waiting = asyncio.create_task(asyncio.wait(told, timeout=TOLD_WAIT_S))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        waiting.add_done_callback(lambda _: release())

    async def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """Return what the first name server that can be reached answers, None where none can."""
        for address, pool in self._pools.items():
            with suppress(NetError):
                return await pool.request(address, replace(command), self._timeout_ms)
        return None

    async def stop(self) -> None:
        """Unregister, close the connections. Whoever waits to hear that name servers were told waits no longer."""
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
                if self._is_known and pool.connected(address)
            ),
            return_exceptions=True,
        )
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))


class _Keeper:
    """Keeps the broker known to one name server, so that one that hangs does not keep news from the others."""

    def __init__(
        self,
        broker_name: str,
        address: str,
        pool: ConnectionPool,
        registration: Callable[[], RemotingCommand],
        interval_s: float,
        timeout_ms: int,
        on_registered: Callable[[RemotingCommand], None] | None,
    ) -> None:
        self._broker_name = broker_name
        self._address = address
        self._pool = pool
        self._registration = registration
        self._interval_s = interval_s
        self._timeout_ms = timeout_ms
        self._on_registered = on_registered
        self._told: list[asyncio.Future[None]] = []
        self.changed = asyncio.Event()
        self.is_down = False

    def told(self) -> asyncio.Future[None]:
        """Return what ends with the next registration that begins, whatever becomes of it."""
        future = asyncio.get_running_loop().create_future()
        self._told.append(future)
        return future

    def leave(self) -> None:
        """Tell the name server nothing more: nobody is to wait for it."""
        self.is_down = True
        told, self._told = self._told, []
        _end(told)

    async def run(self) -> None:
        """Register every interval, whenever the topics changed, and soon after it failed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._interval_s, RETRY_S) if self.is_down else self._interval_s):
                    await self.changed.wait()
            try:
                await self.register()
            except Exception:
                log.exception("broker.registration_failed", broker=self._broker_name)

    async def register(self) -> None:
        """Tell the name server the topics as they are now. Each trouble is told once, and once that it is over."""
        self.changed.clear()
        told, self._told = self._told, []
        try:
            await self._register()
        finally:
            _end(told)

    async def _register(self) -> None:
        remedy = "start it or correct the address"
        try:
            reply = await self._pool.request(self._address, self._registration(), self._timeout_ms)
            if reply.code == ResponseCode.NO_PERMISSION:
                remedy = "set inner_credentials here to an account of that name server"
            trouble = None if reply.code == ResponseCode.SUCCESS else f"answered {reply.code}: {reply.remark}"
            if trouble is None and self._on_registered is not None:
                self._on_registered(reply)
        except NetError as error:
            trouble = str(error)
        if trouble is not None and not self.is_down:
            log.warning(
                "broker.not_registered",
                broker=self._broker_name,
                namesrv=self._address,
                found=trouble,
                remedy=f"clients do not find this broker: {remedy}; tried every {RETRY_S:g} s",
            )
        elif trouble is None and self.is_down:
            log.info("broker.registered_again", broker=self._broker_name, namesrv=self._address)
        self.is_down = trouble is not None


def _end(told: Iterable[asyncio.Future[None]]) -> None:
    for future in told:
        if not future.done():
            future.set_result(None)
