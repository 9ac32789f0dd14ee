"""The state of replication in a group, as its brokers and controllers know it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from mqtrail.clock import now_ms
from mqtrail.net import ControllerError, address_list, leading_controller
from mqtrail.wire import (
    EpochCache,
    GroupReplicas,
    HaRuntimeInfo,
    LedgerCode,
    LedgerMetadata,
    LedgerMetadataReply,
    LedgerStatus,
    MQError,
    RemotingCommand,
    ReplicaState,
    RequestCode,
    SyncStateData,
    SystemError_,
    decode_ledger_reply,
    dumps,
    read_records,
    refusal_for,
)

from ..core import ClientError, NoControllers, read_body
from .base import Gathered
from .brokers import AdminBrokers
from .ledger_groups import LedgerGroup, LedgerReport, is_ledger

END_WAIT_MS = 1_000  # for the record at the end of a slave's log; a master may keep it back until it is replicated


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A broker's part in its group. broker_id: in controller mode the controllers' number of it, else the id in routes.

    end_offset: of its log. epoch: of the last master that wrote it, None outside of controller mode. in_sync: whether
    it may become master, in controller mode. in_sync_count: at a master, the replicas in sync, itself included.
    lag_bytes, lag_ms: how far a slave is behind its master, in its log and in time. None: not known; if the broker did
    not answer, error says why.
    """

    name: str
    broker_id: int
    address: str
    is_master: bool | None = None
    end_offset: int | None = None
    epoch: int | None = None
    in_sync: bool | None = None
    in_sync_count: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """replicas: one for each broker. groups: what their controllers know, of groups in controller mode.

    ledgers: what the members of DLedger groups answer. Both by the name of their brokers.
    """

    replicas: list[ReplicaInfo]
    groups: Gathered[GroupReplicas]
    ledgers: Mapping[str, LedgerReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Answers:
    """What brokers answered, by address."""

    states: Gathered[HaRuntimeInfo]
    epochs: Mapping[str, EpochCache | None]


class AdminReplicas(AdminBrokers):
    """Admin's methods that show groups of replicas."""

    async def replicas(self, cluster: str | None = None) -> ReplicaReport:
        """The replication of all brokers of a cluster (None: of all)."""
        info = await self.cluster()
        brokers = {
            name: broker.broker_addrs
            for name, broker in sorted(info.broker_addr_table.items())
            if cluster is None or broker.cluster == cluster
        }
        states = await self._gather({one: self._ha_state(one) for addrs in brokers.values() for one in addrs.values()})
        epochs = (await self._gather({one: self._epochs(one) for one in states.found})).found
        controlled = [name for name, addrs in brokers.items() if any(epochs.get(one) for one in addrs.values())]
        groups = await self._gather({name: self.replica_group(name) for name in controlled})
        answers = _Answers(states, epochs)
        others = {name: addrs for name, addrs in brokers.items() if name not in controlled}
        ledgers = (await self._gather({name: self._ledger_of(name, addrs) for name, addrs in others.items()})).found
        found: list[ReplicaInfo] = []
        for name, addrs in brokers.items():
            found += await self._of_group(name, addrs, answers, groups.found.get(name))
        reports = {name: await self._ledger_report(one) for name, one in ledgers.items() if one is not None}
        return ReplicaReport(found, groups, reports)

    async def _ledger_of(self, broker_name: str, addrs: Mapping[int, str]) -> LedgerGroup | None:
        """Return the DLedger group of a broker; None: it has none, or none of its brokers shows its settings."""
        for _, address in sorted(addrs.items()):
            with suppress(MQError):
                settings = await self.broker_config(address)
                return LedgerGroup.of(broker_name, settings) if is_ledger(settings) else None
        return None

    async def _ledger_report(self, ledger: LedgerGroup) -> LedgerReport:
        answers = await self._gather({name: self._ledger_metadata(ledger, name) for name in ledger.members})
        return LedgerReport.of(ledger, answers)

    async def _ledger_metadata(self, ledger: LedgerGroup, member: str) -> LedgerMetadataReply:
        """Ask a member of a DLedger group. MQError: it does not answer."""
        request = LedgerMetadata(group=ledger.name, remote_id=member)
        command = RemotingCommand(LedgerCode.METADATA, body=request.encode())
        reply = await self._client.pool.request(ledger.members[member], command, self._timeout_ms)
        found = decode_ledger_reply(LedgerCode.METADATA, reply.body) if reply.body else None
        if not isinstance(found, LedgerMetadataReply):
            raise refusal_for(reply.code, reply.remark)
        if found.code != LedgerStatus.SUCCESS:
            raise ClientError(
                f"found answer {found.code} of DLedger member {member} ({ledger.members[member]}), expected "
                f"{int(LedgerStatus.SUCCESS)}: correct dLegerGroup or dLegerPeers there"
            )
        return found

    async def _of_group(
        self, name: str, addrs: Mapping[int, str], answers: _Answers, group: GroupReplicas | None
    ) -> Iterable[ReplicaInfo]:
        """Return the brokers of one name: those in routes, and those that only the controllers know."""
        states, epochs = answers.states, answers.epochs
        master = next((one for one in addrs.values() if one in states.found and states.found[one].master), None)
        in_sync = set() if group is None else {one.broker_id for one in group.in_sync_replicas}
        found = []
        for route_id, address in sorted(addrs.items()):
            state, known = states.found.get(address), epochs.get(address)
            broker_id = route_id if known is None else known.broker_id
            if state is None:
                found.append(ReplicaInfo(name, broker_id, address, error=states.failures.get(address)))
                continue
            end = state.master_commit_log_max_offset if state.master else state.ha_client_runtime_info.max_offset
            lag_bytes, lag_ms = await self._lag(broker_id, end, master, states.found)
            found.append(
                ReplicaInfo(
                    name,
                    broker_id,
                    address,
                    is_master=state.master,
                    end_offset=end,
                    epoch=known.epoch_list[-1].epoch if known is not None and known.epoch_list else None,
                    in_sync=None if group is None else broker_id in in_sync,
                    in_sync_count=state.in_sync_slave_nums + 1 if state.master else None,
                    lag_bytes=lag_bytes,
                    lag_ms=lag_ms,
                )
            )
        for one in () if group is None else (*group.in_sync_replicas, *group.not_in_sync_replicas):
            if one.broker_address not in addrs.values():
                missing = ClientError(f"found {one.broker_address} at no name server: the broker does not serve")
                found.append(
                    ReplicaInfo(
                        name, one.broker_id, one.broker_address, in_sync=one.broker_id in in_sync, error=missing
                    )
                )
        return found

    async def _lag(
        self, broker_id: int, end: int, master: str | None, states: Mapping[str, HaRuntimeInfo]
    ) -> tuple[int | None, int | None]:
        """Return how far a log that ends at end is behind its master's, in bytes and in ms; None: unknown.

        A master of mqtrail in controller mode reports the time. Else it is the age of the first missing message.
        """
        if master is None:
            return None, None
        lag_bytes = max(0, states[master].master_commit_log_max_offset - end)
        if not lag_bytes:
            return 0, 0
        connection = next((one for one in states[master].ha_connection_info if one.get("brokerId") == broker_id), {})
        if isinstance(lag_ms := connection.get("lagMs"), int):
            return lag_bytes, lag_ms
        command = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(end)})
        with suppress(MQError):
            reply = await self._client.pool.request(master, command, END_WAIT_MS)
            if first := read_records(reply.body, count_max=1):
                return lag_bytes, max(0, now_ms() - first[0].store_timestamp_ms)
        return lag_bytes, None

    async def _ha_state(self, broker_address: str) -> HaRuntimeInfo:
        return await self._ask(broker_address, RequestCode.GET_BROKER_HA_STATUS, {}, HaRuntimeInfo.decode)

    async def master_epoch(self, broker_address: str) -> int | None:
        """The epoch in which a master writes; None: it is not in controller mode."""
        found = await self._epochs(broker_address)
        return found.epoch_list[-1].epoch if found is not None and found.epoch_list else None

    async def _epochs(self, broker_address: str) -> EpochCache | None:
        """The epochs of a broker's log; None: it is not in controller mode."""
        try:
            return await self._ask(broker_address, RequestCode.GET_BROKER_EPOCH_CACHE, {}, EpochCache.decode)
        except SystemError_:  # the answer without a controller
            return None

    async def replica_group(self, broker_name: str) -> GroupReplicas:
        """The master and the replicas of a group, as its controllers know them; of a DLedger group, as its brokers do.

        Raises ClientError: there is none. NoControllers: an operator chooses the master.
        """
        addrs, settings = await self._settings_of(broker_name)
        if is_ledger(settings):
            return await self._ledger_replicas(broker_name, addrs, LedgerGroup.of(broker_name, settings))
        return await self._replica_group(broker_name, _controllers_in(broker_name, settings))

    async def _ledger_replicas(self, broker_name: str, addrs: Mapping[int, str], ledger: LedgerGroup) -> GroupReplicas:
        """Return what the brokers of a DLedger group report. Ids are those of brokers that do not lead."""
        states = (await self._gather({address: self._ha_state(address) for address in addrs.values()})).found
        master = addrs.get(0, "")
        leads = master in states and states[master].master
        connections = states[master].ha_connection_info if leads else ()
        behind = {one.get("addr") for one in connections if not one.get("inSync")}
        in_sync: list[ReplicaState] = []
        others: list[ReplicaState] = []
        master_id = ledger.leader_id(route_id for route_id in addrs if route_id)
        for route_id, address in addrs.items():
            broker_id = route_id or master_id
            one = ReplicaState(address in states, address, broker_id, broker_name)
            is_behind = not one.alive or not leads or ledger.member_address(broker_id) in behind
            (others if is_behind else in_sync).append(one)
        return GroupReplicas(
            in_sync_replicas=tuple(in_sync),
            master_address=master if leads else "",
            master_broker_id=master_id if leads else None,
            not_in_sync_replicas=tuple(others),
        )

    async def _replica_group(self, broker_name: str, controllers: list[str]) -> GroupReplicas:
        command = RemotingCommand(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=dumps([broker_name]))
        reply = await self._client.pool.request(await self._leader(controllers), command, self._timeout_ms)
        found = read_body(reply, SyncStateData.decode).replicas_info_table.get(broker_name)
        if found is None:
            raise ClientError(f"found no group {broker_name} at its controllers, expected it: start its brokers")
        return found

    async def _controllers_of(self, broker_name: str) -> list[str]:
        """Return the addresses of the controllers, from the settings of a broker. Raises NoControllers."""
        _, settings = await self._settings_of(broker_name)
        return _controllers_in(broker_name, settings)

    async def _settings_of(self, broker_name: str) -> tuple[Mapping[int, str], Mapping[str, str]]:
        """Return the addresses of a group's brokers, by id, and the settings of the first one that tells its mode; of
        another one, if none does."""
        broker = (await self.cluster()).broker_addr_table.get(broker_name)
        if broker is None:
            raise ClientError(f"found no broker {broker_name} at the name server, expected one: `mqtrail cluster list`")
        errors: list[Exception] = []
        found: Mapping[str, str] = {}
        for _, address in sorted(broker.broker_addrs.items()):
            try:
                found = await self.broker_config(address)
            except MQError as error:
                errors.append(error)
                continue
            if found.get("enableControllerMode") == "true" or is_ledger(found):
                return broker.broker_addrs, found
        if errors:
            raise errors[0]
        return broker.broker_addrs, found

    async def _leader(self, controllers: list[str]) -> str:
        """Return the address of the leading controller. Raises ClientError: none leads."""
        try:
            return await leading_controller(self._client.pool, controllers, self._timeout_ms)
        except ControllerError as error:
            raise ClientError(str(error)) from error


def _controllers_in(broker_name: str, settings: Mapping[str, str]) -> list[str]:
    """Return the addresses of the controllers in a broker's settings. Raises NoControllers."""
    if settings.get("enableControllerMode") != "true":
        raise NoControllers(
            f"found no controllers of {broker_name}, expected enableControllerMode: in classic mode an operator "
            "promotes a slave (docs/how-to/high-availability.md)"
        )
    return address_list(settings.get("controllerAddr", ""))
