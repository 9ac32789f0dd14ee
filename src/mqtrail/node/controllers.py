"""A broker's requests to the controllers of its group.

Only the leader answers; the others name it (1005). It is asked for again after any failure.
Source: BrokerOuterAPI, ReplicasManager, apache/rocketmq broker/.
"""

import asyncio
from collections.abc import Sequence

from mqtrail.broker import BrokerConfig
from mqtrail.net import ConnectionPool, NetError
from mqtrail.wire import (
    ELECTION_PRIORITY_LAST,
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    BrokerIdReply,
    BrokerNameHeader,
    ControllerMetadataReply,
    MasterReply,
    MQError,
    RegisterAtControllerHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

TIMEOUT_MS = 3_000


class ControllerError(MQError):
    """A controller refused a request, or none leads. code: its answer; 0: there was none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


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
        return [one for part in self._config.controller_addresses.split(";") if (one := part.strip())]

    async def _find_leader(self) -> str:
        """Return the address of the leading controller."""
        found = []
        for address in self._addresses:
            try:
                command = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
                reply = await self._pool.request(address, command, TIMEOUT_MS)
                leader = ControllerMetadataReply.from_ext(reply.ext).controller_leader_address
            except (NetError, MQError) as error:
                found.append(f"{address}: {error}")
            else:
                if leader:
                    return leader
                found.append(f"{address}: it knows no leader")
        raise ControllerError(f"found no leading controller ({'; '.join(found)}), expected one at controllerAddr")

    async def _ask(self, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        """Send a request to the leader; return its answer of success."""
        leader = self._leader or await self._find_leader()
        self._leader = ""
        reply = await self._pool.request(leader, RemotingCommand(code, ext), TIMEOUT_MS)
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

    async def master(self) -> MasterReply:
        """Return the master of the group."""
        header = BrokerNameHeader(self._config.broker_name)
        return MasterReply.from_ext((await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, header.to_ext())).ext)

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
