"""Keeps one broker known to its name servers: 103 every 30 s and when all its topics may have changed, 217 for each
topic that was made or changed, 104 when it stops.

A name server before 5.0 leaves 217 without an answer: its answer to 103 tells its version, and it is told all topics
each time. So is one that answers 217 with an error, or lost its connection, and with it what it knew. After 217 a whole
registration follows as soon as topics are at rest: it brings the data version into line, and topics in static order.
Source: BrokerOuterAPI, BrokerController.registerBrokerAll, registerSingleTopicAll, apache/rocketmq broker/.
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
    version_of,
)

QUIET_S = 1.0  # without a change, after topics were told one by one: then all are told
SINGLE_TOPICS_MAX = 200  # told one by one; more are told with all others
SINGLE_TOPICS_VERSION = version_of(5, 0, 0)
RETRY_S = 2.0  # after a name server did not answer
UNREGISTER_TIMEOUT_MS = 1_000
NAME_TIMEOUT_MS = 1_000  # for a name server, and a broker of our name, to answer
TOLD_WAIT_S = 1.0  # how long `when_told` waits for name servers; less than clients wait for a reply

log = Log()


class Registrar:
    """Registers one broker with every address of `namesrvs`. registration, unregistration: what to send now.
    topic_registration: what to send of one topic; None: there is none of that name.

    sign: called with every request before it is encoded. tls: address -> what its connection shakes hands with.
    """

    def __init__(
        self,
        broker_name: str,
        namesrvs: Iterable[str],
        registration: Callable[[], RemotingCommand],
        unregistration: Callable[[], RemotingCommand],
        topic_registration: Callable[[str], RemotingCommand | None],
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
            _Keeper(
                broker_name,
                address,
                pool,
                registration,
                topic_registration,
                interval_ms / 1000,
                timeout_ms,
                on_registered,
            )
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
                    "a unique name: choose another (--broker-name, brokerName), or stop that broker"
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

    def topics_changed(self, names: Iterable[str] | None) -> None:
        """Tell name servers of these topics at once; None: of all."""
        for keeper in self._keepers:
            keeper.topics_changed(names)

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
        topic_registration: Callable[[str], RemotingCommand | None],
        interval_s: float,
        timeout_ms: int,
        on_registered: Callable[[RemotingCommand], None] | None,
    ) -> None:
        self._broker_name = broker_name
        self._address = address
        self._pool = pool
        self._registration = registration
        self._topic_registration = topic_registration
        self._interval_s = interval_s
        self._timeout_ms = timeout_ms
        self._on_registered = on_registered
        self._told: list[asyncio.Future[None]] = []
        self._changed = asyncio.Event()
        self._names: dict[str, None] | None = {}  # topics to be told of; None: all
        self._loop = asyncio.get_running_loop()
        self._whole_due_s = 0.0  # when all topics are told again
        self._owes_whole = False  # topics were told one by one since: it does not know this state's version
        self._takes_single = False  # what it answered last: whether it knows 217
        self.is_down = False

    def topics_changed(self, names: Iterable[str] | None) -> None:
        """Tell the name server of these topics soon; None: of all."""
        if names is None or self._names is None:
            self._names = None
        else:
            self._names.update(dict.fromkeys(names))
            if len(self._names) > SINGLE_TOPICS_MAX:
                self._names = None
        self._changed.set()

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
                async with asyncio.timeout(self._wait_s()):
                    await self._changed.wait()
            try:
                is_due = self._loop.time() >= self._whole_due_s
                if not is_due and self._changed.is_set() and await self._tell_single():
                    continue
                await self.register()
            except Exception:
                log.exception("broker.registration_failed", broker=self._broker_name)

    def _wait_s(self) -> float:
        """Return after how long to register without a change."""
        if self.is_down:
            return min(self._interval_s, RETRY_S)
        rest_s = max(0.0, self._whole_due_s - self._loop.time())
        return min(QUIET_S, rest_s) if self._owes_whole else rest_s

    async def register(self) -> None:
        """Tell the name server the topics as they are now. Each trouble is told once, and once that it is over."""
        self._changed.clear()
        self._names = {}
        self._owes_whole = False
        self._whole_due_s = self._loop.time() + self._interval_s
        told, self._told = self._told, []
        try:
            await self._register()
        finally:
            _end(told)

    async def _tell_single(self) -> bool:
        """Tell the name server of the topics that changed, where it can be told so; return whether it was."""
        names = self._names
        if names is None or not self._takes_single or self.is_down or not self._pool.connected(self._address):
            return False
        commands = [command for name in names if (command := self._topic_registration(name)) is not None]
        told, self._told = self._told, []
        self._changed.clear()
        self._names = {}
        try:
            replies = await asyncio.gather(
                *(self._pool.request(self._address, command, self._timeout_ms) for command in commands),
                return_exceptions=True,
            )
        finally:
            # Those that wait are answered by `register`, if it has to be called.
            self._told[:0] = told
        for reply in replies:
            if isinstance(reply, NetError) or (isinstance(reply, RemotingCommand) and reply.code):
                self._takes_single = False  # until it has answered a registration
                return False
            if isinstance(reply, BaseException):
                raise reply
        self._told = self._told[len(told) :]
        self._owes_whole = True
        _end(told)
        return True

    async def _register(self) -> None:
        remedy = "start that name server or correct its address"
        try:
            reply = await self._pool.request(self._address, self._registration(), self._timeout_ms)
            if reply.code == ResponseCode.NO_PERMISSION:
                remedy = "set inner_credentials of this broker to an account of that name server"
            trouble = None if reply.code == ResponseCode.SUCCESS else f"answered {reply.code}: {reply.remark}"
            self._takes_single = reply.version >= SINGLE_TOPICS_VERSION
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
                remedy=f"{remedy}; until then clients do not find this broker; retried every {RETRY_S:g} s",
            )
        elif trouble is None and self.is_down:
            log.info("broker.registered_again", broker=self._broker_name, namesrv=self._address)
        self.is_down = trouble is not None


def _end(told: Iterable[asyncio.Future[None]]) -> None:
    for future in told:
        if not future.done():
            future.set_result(None)
