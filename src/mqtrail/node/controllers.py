"""A broker's requests to the controllers of its group.

Only the leader answers; the others name it (1005). It is asked for again after any failure.
Source: BrokerOuterAPI, ReplicasManager, apache/rocketmq broker/.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from mqtrail.broker import BrokerConfig, MasterTerm
from mqtrail.net import ConnectionPool, ControllerError, NetError, address_list, leading_controller
from mqtrail.wire import (
    ELECTION_PRIORITY_LAST,
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    BrokerIdReply,
    BrokerNameHeader,
    ElectMasterHeader,
    MasterReply,
    MQError,
    RegisterAtControllerHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SyncStateData,
    SyncStateSet,
    dumps,
)

TIMEOUT_MS = 3_000


class GroupState(NamedTuple):
    """What the controllers know of a group. master_id None: it has no master now. ids, number: its SyncStateSet."""

    master_id: int | None
    master_address: str
    epoch: int
    ids: frozenset[int]
    number: int


def _state_of(reply: RemotingCommand) -> GroupState:
    header = MasterReply.from_ext(reply.ext)
    found = SyncStateSet.decode(reply.body) if reply.body else SyncStateSet()
    number = header.sync_state_set_epoch
    return GroupState(
        header.master_broker_id if header.master_address else None,
        header.master_address or "",
        header.master_epoch or 0,
        frozenset(found.sync_state_set),
        found.sync_state_set_epoch if number is None else number,
    )


class Controllers:
    """The controllers of one broker. address: of the broker, for clients. Errors: NetError, ControllerError, others of
    MQError for an answer that cannot be read."""

    def __init__(self, config: BrokerConfig, address: str, pool: ConnectionPool) -> None:
        self._config = config
        self._address = address
        self._pool = pool
        self._leader = ""

    @property
    def _addresses(self) -> Sequence[str]:
        return address_list(self._config.controller_addresses)

    async def _ask(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request to the leader; return its answer of success."""
        leader = self._leader or await leading_controller(self._pool, self._addresses, TIMEOUT_MS)
        self._leader = ""
        reply = await self._pool.request(leader, RemotingCommand(code, ext, body=body), TIMEOUT_MS)
        if reply.code != ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = leader
        if reply.code != ResponseCode.SUCCESS:
            raise ControllerError(
                f"found answer {reply.code} of controller {leader} to request {int(code)} ({reply.remark}), expected "
                "success",
                reply.code,
            )
        return reply

    @property
    def _me(self) -> tuple[str, str]:
        return self._config.cluster_name, self._config.broker_name

    async def next_id(self) -> int:
        """Return the id that the next new broker of the group gets."""
        header = BrokerIdReply(*self._me)
        reply = await self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header.to_ext())
        broker_id = BrokerIdReply.from_ext(reply.ext).next_broker_id
        if broker_id is None:
            raise ControllerError("found no nextBrokerId in a controller's answer, expected the id of a new broker")
        return broker_id

    async def apply_id(self, broker_id: int, check_code: str) -> None:
        """Take an id. ControllerError with CONTROLLER_BROKER_ID_INVALID: another broker has it."""
        header = ApplyBrokerIdHeader(*self._me, broker_id, check_code)
        await self._ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header.to_ext())

    async def register(self, broker_id: int) -> None:
        """Tell the address of the broker with this id."""
        header = RegisterAtControllerHeader(*self._me, broker_id, self._address)
        await self._ask(RequestCode.CONTROLLER_REGISTER_BROKER, header.to_ext())

    async def group(self) -> GroupState:
        """Return the master of the group and its SyncStateSet."""
        header = BrokerNameHeader(self._config.broker_name)
        return _state_of(await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, header.to_ext()))

    async def election_reason(self) -> str:
        """Return why the group has its present master: a word of ElectionReason; "" if that cannot be found out.

        Apache's controllers do not say it.
        """
        try:
            reply = await self._ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, dumps([self._config.broker_name]))
            found = SyncStateData.decode(reply.body).replicas_info_table.get(self._config.broker_name)
        except (NetError, MQError):
            return ""
        return "" if found is None or found.last_election is None else found.last_election.reason

    async def elect(self, broker_id: int) -> GroupState:
        """Ask for a master, because there is none; the first broker of a new group becomes it. ControllerError: no."""
        header = ElectMasterHeader(*self._me, broker_id)
        return _state_of(await self._ask(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext()))

    async def alter(self, term: MasterTerm, ids: frozenset[int], number: int) -> tuple[frozenset[int], int]:
        """Replace the SyncStateSet, of which number is known; return the new set and its number.

        ControllerError: it was refused; with code 0 or CONTROLLER_NOT_LEADER, and after a NetError, it may have been
        replaced.
        """
        header = AlterSyncStateSetHeader(self._config.broker_name, term.broker_id, term.epoch)
        body = SyncStateSet(tuple(sorted(ids)), number).encode()
        reply = await self._ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header.to_ext(), body)
        found = SyncStateSet.decode(reply.body)
        return frozenset(found.sync_state_set), found.sync_state_set_epoch

    async def heartbeat(self, broker_id: int, epoch: int, end_offset: int, confirm_offset: int) -> None:
        """Tell every controller that this broker is alive. One that cannot be reached is left out."""
        header = BrokerHeartbeatHeader(
            self._config.cluster_name,
            self._address,
            self._config.broker_name,
            broker_id,
            self._config.controller_silence_ms,
            epoch,
            end_offset,
            confirm_offset,
            ELECTION_PRIORITY_LAST,
        )
        command = RemotingCommand(RequestCode.BROKER_HEARTBEAT, header.to_ext())
        await asyncio.gather(
            *(self._pool.oneway(address, command, TIMEOUT_MS) for address in self._addresses), return_exceptions=True
        )
