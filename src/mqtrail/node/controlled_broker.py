"""A broker of controller mode: the controller says which broker of the group is master.

    no id          -> apply for one (1012, 1013), note it in brokerIdentity
    id             -> register (1003), then heartbeats (904), and ask for the master (1004) at an interval
    no master      -> ask for an election (1002); a learner does not
    another master -> ask it for its HA port (906), start the broker as its slave, or let it follow the new one
    this broker    -> start the broker as master of this epoch, and keep its SyncStateSet (1001)
    a tail that the master does not have -> stop the broker, start it again without the tail

A change of the role, and a tail to cut off, end one BrokerNode and begin the next one in this process: so all that
belongs to a role ends with it. Their clients connect again. Before the first master is known the broker does not listen
and is in no route. Afterwards it serves without one too.
Source: ReplicasManager, apache/rocketmq broker/.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from mqtrail.broker import (
    APPLYING_FILE,
    IDENTITY_FILE,
    SLAVE,
    SYNC_MASTER,
    Identity,
    MasterTerm,
    decode_identity,
)
from mqtrail.net import ConnectionPool, ControllerError, Log, NetError
from mqtrail.store import MessageStore, RealDisk, StoreError
from mqtrail.wire import (
    ExchangeHaInfoHeader,
    InvalidParameter,
    MQError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    sign,
)

from .broker_node import BrokerNode, GroupPart
from .clock import wall_clock_ms
from .config import NodeConfig
from .controllers import Controllers, GroupState
from .group_broker import GroupBroker
from .in_sync_keeper import InSyncKeeper
from .role_history import RoleHistory

START_WAIT_S = 15.0  # after which a start goes on without a master; the broker serves once there is one
TIMEOUT_MS = 3_000
REASON_WAIT_S = 1.0  # how long a new master waits for the reason of its election
RETRY_S = 0.2  # pause after a failure, for example because the new master does not serve yet

log = Log()


class ControlledBroker(GroupBroker):
    """Used like BrokerNode: `bind`, `start`, `stop`, once each. core, store: None while it does not serve."""

    def __init__(
        self, name: str, folder: Path | None, config: NodeConfig, on_failure: Callable[[BaseException], None]
    ) -> None:
        """InvalidParameter: a broker in memory cannot keep its identity."""
        if folder is None:
            raise InvalidParameter(
                "found controller_mode (enableControllerMode) without a data folder, expected one: pass --data"
            )
        super().__init__(name, folder, config, on_failure)
        self._pool: ConnectionPool | None = None
        self._controllers: Controllers | None = None
        self._keeper: InSyncKeeper | None = None
        self._epoch = 0  # the highest one that was heard of
        self._term: MasterTerm | None = None  # of this broker as master
        self._master: tuple[int | None, str, int] = (None, "", 0)  # that this broker follows: id, address, epoch
        self._is_following = False
        self._ha_port = config.ha_port
        self._progress = (-1, 0, 0)  # of the last heartbeat: epoch, end of the log, confirm offset
        self._cut_at: int | None = None
        self._history = RoleHistory()
        self._logged = ""
        self.broker_id = 0

    @property
    def store(self) -> MessageStore | None:
        """The store of the broker that serves; None: it waits for a master."""
        return None if self._node is None else self._node.store

    def bind(self, host: str, port: int, advertised: str) -> None:
        """Take the port. BindError."""
        self._take_port(host, port, advertised)

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
        self._keeper = InSyncKeeper(self.name, self._controllers)
        self._tasks = [asyncio.create_task(one) for one in (self._run(), self._beat(), self._keeper.run())]
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
        await self._end_tasks()
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
        await self._send_heartbeat()  # an election needs it

    async def _run(self) -> None:
        serves = self._serves
        assert serves is not None
        while True:
            wait_s = self._broker_config.controller_poll_ms / 1000
            try:
                await self._step()
            except (NetError, MQError, StoreError, OSError) as error:
                if not serves.done() and not isinstance(error, (NetError, ControllerError)):
                    serves.set_exception(error)  # `start` raises it; later errors are logged, and tried again
                    return
                self._report(error)
                wait_s = min(wait_s, RETRY_S)
            except Exception:  # a fault must not end the broker's part in the group
                log.sparse.exception("broker.group_failed", broker=self.name)
            else:
                self._logged = ""
            if self._node is not None and not serves.done():
                serves.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _step(self) -> None:
        """Do what is due next."""
        assert self._controllers is not None
        if not self.broker_id:
            await self._join()
        if self._cut_at is not None:
            await self._serve(None)
        try:
            group = await self._controllers.group()
        except ControllerError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                self.broker_id = 0  # register again
            raise
        if group.master_id is None and not self._broker_config.async_learner:
            with suppress(ControllerError):  # another broker is to be elected, or none can be now
                group = await self._controllers.elect(self.broker_id)
        if group.epoch < self._epoch:
            return  # an answer that was on its way for long
        self._epoch = group.epoch
        if group.master_id == self.broker_id:
            await self._lead(group)
        elif group.master_id is not None:
            await self._be_slave(group)
        elif self._term is not None and self._term.epoch < group.epoch:
            await self._serve(None)  # this broker is deposed, and there is no other master yet

    async def _lead(self, group: GroupState) -> None:
        """Be the master of this epoch."""
        assert self._keeper is not None
        if self._broker_config.async_learner:
            raise ControllerError(
                f"found this broker, {self.broker_id}, to be the master of {self.name} at the controller, expected "
                "another one, since it is a learner (asyncLearner): elect another one (mqadmin electMaster), and set "
                "enableElectUncleanMaster=false at the controllers"
            )
        if self._node is None or self._term is None or self._term.epoch < group.epoch:
            await self._serve(MasterTerm(self.broker_id, group.epoch, group.ids, group.number))
        elif self._node is not None:
            self._keeper.settle(self._node, group)

    async def _be_slave(self, group: GroupState) -> None:
        """Follow the master."""
        master = group.master_id, group.master_address, group.epoch
        if master != self._master:
            self._master, self._is_following = master, False
        self._history.saw(str(group.master_id), group.master_address, group.epoch)
        if self._node is None or self._term is not None:
            await self._serve(None)
        if not self._is_following:
            await self._follow(group.master_address)

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
                await self._send_heartbeat()
            await asyncio.sleep(self._broker_config.controller_heartbeat_ms / 1000)

    async def _send_heartbeat(self) -> None:
        assert self._controllers is not None
        node = self._node
        if node is not None and node.core is not None:
            end, replicas = node.core.store.end_offset, node.core.replicas
            confirmed = replicas.following.confirm_offset if self._term is None else replicas.confirm_offset
            self._progress = node.epochs.last_number, end, min(end, confirmed)
        await self._controllers.heartbeat(self.broker_id, *self._progress)

    # The broker.

    async def _serve(self, term: MasterTerm | None) -> None:
        """Start the broker as master of a term or as slave, or again without the tail that its master does not have."""
        async with self._changing:
            await self._start(term)

    async def _start(self, term: MasterTerm | None) -> None:
        assert self._keeper is not None
        began_s = asyncio.get_running_loop().time()
        node, self._node, self._keeper.node = self._node, None, None
        if node is not None:
            core = node.core
            await node.stop(leaves=False)
            if core is not None:
                self._history.leave(core)
        closed_s = asyncio.get_running_loop().time()
        role, broker_id = (SLAVE, self.broker_id) if term is None else (SYNC_MASTER, 0)
        broker = replace(self._broker_config, broker_role=role, broker_id=broker_id)
        # the controller knows the master, and the other brokers this one's HA port
        config = replace(self._config, broker=broker, ha_master="", ha_port=self._ha_port)
        part = GroupPart(term, self._cut_at, self._tail_differs, self._keeper.wake)
        node = BrokerNode(self.name, self._folder, config, self._on_failure, part)
        self._release()
        await asyncio.to_thread(node.bind, self._host, self.port, self._advertised)
        opened_s = asyncio.get_running_loop().time()
        self._cut_at, self._is_following, self._term, self._ha_port = None, False, term, node.ha_port
        assert node.core is not None
        node.core.replicas.on_role_changed = self._wake.set
        node.core.replicas.role_changes = self._role_changes.begin(is_master=term is not None)
        try:
            await node.start(self._namesrvs, self._own_namesrv)
        except BaseException:
            await node.stop()
            raise
        self._node = node
        if term is not None:
            self._keeper.node = node
        if node.truncated is not None:
            self._history.note(node.truncated)
        await self._write_role(node, term)
        log.info(
            "broker.role_changed",
            broker=self.name,
            broker_id=self.broker_id,
            role="slave" if term is None else "master",
            epoch=self._epoch if term is None else term.epoch,
            duration_ms=round((asyncio.get_running_loop().time() - began_s) * 1000),
            close_ms=round((closed_s - began_s) * 1000),
            open_ms=round((opened_s - closed_s) * 1000),
        )

    async def _write_role(self, node: BrokerNode, term: MasterTerm | None) -> None:
        """Write to the trace which role began, and why."""
        assert self._controllers is not None
        reason, began_ms = "", wall_clock_ms()
        if term is not None and node.core is not None and node.core.events is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(REASON_WAIT_S):
                    reason = await self._controllers.election_reason()
        if node.core is not None:
            self._history.begin(
                node.core,
                broker_id=str(self.broker_id),
                epoch=None if term is None else term.epoch,
                reason=reason,
                at_ms=began_ms,
            )
            node.events_wait()

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
            raise ControllerError(f"found no HA port in the answer of {address}, expected that of the new master")
        self._node.follow(address, ha_address)
        self._is_following = True
        log.info("broker.follows", broker=self.name, broker_id=self.broker_id, master=address, ha_port=ha_address)
