"""A broker of controller mode: the controller says which broker of the group is master, and this one follows it.

    no id      -> apply for one (1012, 1013), note it in brokerIdentity
    id         -> register (1003), then heartbeats (904), and ask for the master (1004) at an interval
    a master   -> ask it for its HA port (906), start the broker as its slave, or let it follow the new one
    a tail that the master does not have -> stop the broker, start it again without the tail

Before the first master is known the broker does not listen and is in no route. Afterwards it serves without one too.
Source: ReplicasManager, apache/rocketmq broker/.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from mqtrail.broker import APPLYING_FILE, IDENTITY_FILE, Broker, Identity, decode_identity
from mqtrail.net import ConnectionPool, Log, NetError, bound_socket, join_address
from mqtrail.store import MessageStore, RealDisk, StoreError
from mqtrail.wire import (
    ExchangeHaInfoHeader,
    InvalidParameter,
    MasterReply,
    MQError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    sign,
)

from .broker_node import BrokerNode, Tail
from .clock import wall_clock_ms
from .config import NodeConfig
from .controllers import ControllerError, Controllers

START_WAIT_S = 15.0  # after which a start goes on without a master; the broker serves once there is one
TIMEOUT_MS = 3_000

log = Log()


class ControlledBroker:
    """Used like BrokerNode: `bind`, `start`, `stop`, once each. core, store: None while it does not serve."""

    def __init__(
        self, name: str, folder: Path | None, config: NodeConfig, on_failure: Callable[[BaseException], None]
    ) -> None:
        """InvalidParameter: a broker in memory cannot keep its identity."""
        if folder is None:
            raise InvalidParameter(
                "found controller_mode (enableControllerMode) without a data folder, expected one: pass --data"
            )
        self.name = name
        self._folder = folder
        self._config = config
        self._broker_config = replace(config.broker, broker_name=name)
        self._on_failure = on_failure
        self._socket: socket.socket | None = None
        self._host = self._advertised = ""
        self._namesrvs: Sequence[str] = ()
        self._own_namesrv: str | None = None
        self._node: BrokerNode | None = None
        self._pool: ConnectionPool | None = None
        self._controllers: Controllers | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._master = MasterReply()
        self._is_following = False
        self._cut_at: int | None = None
        self._serves: asyncio.Future[None] | None = None  # what `start` waits for
        self._changing = asyncio.Lock()  # while the broker is being started or stopped
        self._wake = asyncio.Event()
        self._logged = ""
        self.port = 0
        self.broker_id = 0

    @property
    def address(self) -> str:
        """host:port that is advertised to clients."""
        return join_address(self._advertised, self.port)

    @property
    def core(self) -> Broker | None:
        """The core of the broker that serves; None: it waits for a master."""
        return None if self._node is None else self._node.core

    @property
    def store(self) -> MessageStore | None:
        """The store of the broker that serves; None: it waits for a master."""
        return None if self._node is None else self._node.store

    def bind(self, host: str, port: int, advertised: str) -> None:
        """Take the port. BindError."""
        self._host, self._advertised = host, advertised
        self._socket = bound_socket(host, port)
        self.port = self._socket.getsockname()[1]

    def _release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def start(self, namesrvs: Sequence[str], own_namesrv: str | None = None) -> None:
        """Join the group, and serve once it has a master. It goes on in the background after START_WAIT_S.

        InvalidParameter: the folder is of another broker. Errors of BrokerNode, if it is started meanwhile.
        """
        self._namesrvs, self._own_namesrv = namesrvs, own_namesrv
        credentials = self._config.namesrv_credentials
        self._pool = ConnectionPool(
            sign=None if credentials is None else partial(sign, credentials=credentials),
            tls=self._config.tls.context(),
        )
        self._controllers = Controllers(self._broker_config, self.address, self._pool)
        self._identity()  # so that a wrong folder is an error now
        self._serves = serves = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._beat())]
        try:
            async with asyncio.timeout(START_WAIT_S):
                await asyncio.shield(serves)
        except TimeoutError:
            serves.cancel()
            log.warning(
                "broker.waits_for_master",
                broker=self.name,
                controllers=self._broker_config.controller_addresses,
                remedy="start the controllers and the other brokers of the group; it is retried until then",
            )

    async def stop(self) -> None:
        """Stop the broker, and leave the group to notice by the closed connections."""
        async with self._changing:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        node, self._node = self._node, None
        try:
            if node is not None:
                await node.stop()
        finally:
            self._release()
            if self._pool is not None:
                await self._pool.close()

    # The group.

    def _identity(self) -> Identity | None:
        """Return the identity in the folder; None: there is none yet. InvalidParameter: it is of another broker."""
        disk = RealDisk(self._folder)
        data = disk.read(IDENTITY_FILE) or disk.read(APPLYING_FILE)
        disk.close()
        if not data:
            return None
        return decode_identity(data, self._broker_config.cluster_name, self.name)

    async def _join(self) -> None:
        """Get an id, if there is none yet, and register with it."""
        assert self._controllers is not None
        found = self._identity()
        disk = RealDisk(self._folder)
        try:
            if found is None:
                broker_id = await self._controllers.next_id()
                check_code = f"{self.address};{wall_clock_ms()}"
                found = Identity(self._broker_config.cluster_name, self.name, broker_id, check_code)
                disk.replace(APPLYING_FILE, found.encode())
            if found.check_code:
                try:
                    await self._controllers.apply_id(found.broker_id, found.check_code)
                except ControllerError as error:
                    if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                        disk.remove(APPLYING_FILE)  # another broker was faster
                    raise
                found = found._replace(check_code="")
                disk.replace(IDENTITY_FILE, found.encode())
            disk.remove(APPLYING_FILE)
        finally:
            disk.close()
        await self._controllers.register(found.broker_id)
        self.broker_id = found.broker_id

    async def _run(self) -> None:
        serves = self._serves
        assert serves is not None
        while True:
            try:
                await self._step()
            except (NetError, MQError, StoreError, OSError) as error:
                if not serves.done() and not isinstance(error, (NetError, ControllerError)):
                    serves.set_exception(error)  # `start` raises it; later errors are logged, and tried again
                    return
                self._report(error)
            except Exception:  # a fault must not end the broker's part in the group
                log.sparse.exception("broker.group_failed", broker=self.name)
            else:
                self._logged = ""
            if self._node is not None and not serves.done():
                serves.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._broker_config.controller_poll_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()

    async def _step(self) -> None:
        """Do what is due next."""
        assert self._controllers is not None
        if not self.broker_id:
            await self._join()
        if self._cut_at is not None:
            await self._serve()
        try:
            master = await self._controllers.master()
        except ControllerError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                self.broker_id = 0  # register again
            raise
        if master.master_broker_id is None or not master.master_address:
            return  # the group has no master now
        if master.master_broker_id == self.broker_id:
            raise ControllerError(
                f"found this broker, {self.broker_id}, to be the master of {self.name} at the controller, expected "
                "another one, since it is a learner (asyncLearner): elect another one (mqadmin electMaster), and set "
                "enableElectUncleanMaster=false at the controllers"
            )
        if master != self._master:
            self._master, self._is_following = master, False
        if self._node is None:
            await self._serve()
        if not self._is_following:
            await self._follow(master.master_address)

    def _report(self, error: Exception) -> None:
        if str(error) != self._logged:
            self._logged = str(error)
            log.warning(
                "broker.not_controlled", broker=self.name, found=str(error), remedy="none needed; it is retried"
            )

    async def _beat(self) -> None:
        """Send heartbeats once there is an id."""
        assert self._controllers is not None
        while True:
            if self.broker_id:
                node = self._node
                end = 0 if node is None or node.store is None else node.store.end_offset
                epoch = -1 if node is None else node.epochs.last_number
                await self._controllers.heartbeat(self.broker_id, epoch, end, end)
            await asyncio.sleep(self._broker_config.controller_heartbeat_ms / 1000)

    # The broker.

    async def _serve(self) -> None:
        """Start the broker as a slave, or start it again without the tail that its master does not have."""
        async with self._changing:
            await self._start_slave()

    async def _start_slave(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.stop()
        broker = replace(self._broker_config, broker_role="SLAVE", broker_id=self.broker_id)
        config = replace(self._config, broker=broker, ha_master="")  # the controller knows the master
        node = BrokerNode(self.name, self._folder, config, self._on_failure, Tail(self._cut_at, self._tail_differs))
        self._release()
        node.bind(self._host, self.port, self._advertised)
        self._cut_at, self._is_following = None, False
        assert node.core is not None
        node.core.replicas.on_role_changed = self._wake.set
        try:
            await node.start(self._namesrvs, self._own_namesrv)
        except BaseException:
            await node.stop()
            raise
        self._node = node

    def _tail_differs(self, physical_offset: int) -> None:
        self._cut_at = physical_offset
        self._wake.set()

    async def _follow(self, address: str) -> None:
        """Ask the master for its HA port, and copy from there."""
        assert self._pool is not None
        assert self._node is not None
        command = RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO)
        reply = await self._pool.request(address, command, TIMEOUT_MS)
        ha_address = ExchangeHaInfoHeader.from_ext(reply.ext).master_ha_address
        if reply.code != ResponseCode.SUCCESS or not ha_address:
            raise ControllerError(f"found no HA port in the answer of {address}, expected it of the new master")
        self._node.follow(address, ha_address)
        self._is_following = True
        log.info("broker.follows", broker=self.name, broker_id=self.broker_id, master=address, ha_port=ha_address)


AnyBroker = BrokerNode | ControlledBroker


def make_broker(
    name: str, folder: Path | None, config: NodeConfig, on_failure: Callable[[BaseException], None]
) -> AnyBroker:
    """Return the broker for the settings. InvalidParameter."""
    if config.broker.controller_mode:
        return ControlledBroker(name, folder, config, on_failure)
    return BrokerNode(name, folder, config, on_failure)
