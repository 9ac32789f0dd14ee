"""The groups of controller mode: what their controllers know, and the hand-over to another master."""

import asyncio
from contextlib import suppress

from mqtrail.net import NetError
from mqtrail.wire import (
    ControllerMetadataReply,
    ElectMasterHeader,
    GroupReplicas,
    MQError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SyncStateData,
    dumps,
    refusal_for,
)

from ..core import ClientError, read_body
from .brokers import AdminBrokers

POLL_S = 0.1
BACK_S = 60.0  # for the old master to start again as slave, and to copy what it lacks


class AdminHandover(AdminBrokers):
    """Admin's methods for groups of controller mode."""

    async def replica_group(self, broker_name: str) -> GroupReplicas:
        """The master and the replicas of a group, as its controllers know them. Raises ClientError: there is none."""
        return await self._replica_group(broker_name, await self._controllers_of(broker_name))

    async def set_master(self, broker_name: str, broker_id: int | None = None) -> GroupReplicas:
        """Hand over to another in-sync replica of a group; return the group when all in-sync replicas are back.

        broker_id None: the in-sync replica with the lowest id. The old master stays, as a slave. Raises ClientError:
        that replica is not alive and in sync; Refusal: the controllers refused.
        """
        controllers = await self._controllers_of(broker_name)
        group = await self._replica_group(broker_name, controllers)
        ready = [
            one.broker_id for one in group.in_sync_replicas if one.alive and one.broker_id != group.master_broker_id
        ]
        if not ready or broker_id not in (None, *ready):
            raise ClientError(
                f"found {'no broker' if broker_id is None else f'broker {broker_id}'} to take over {broker_name}, "
                f"expected a slave that is alive and in sync: {', '.join(map(str, ready)) or 'there is none'}; look at "
                "`mqtrail cluster ha`"
            )
        cluster = (await self.cluster()).broker_addr_table[broker_name].cluster
        header = ElectMasterHeader(cluster, broker_name, min(ready) if broker_id is None else broker_id, True)
        command = RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext())
        reply = await self._client.pool.request(await self._leader(controllers), command, self._timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        return await self._when_in_sync(broker_name, controllers, {one.broker_id for one in group.in_sync_replicas})

    async def _when_in_sync(self, broker_name: str, controllers: list[str], wanted: set[int]) -> GroupReplicas:
        """Return the group when all these replicas are in sync. ClientError: they are not after BACK_S."""
        found: set[int] = set()
        try:
            async with asyncio.timeout(BACK_S):
                while True:
                    with suppress(MQError):
                        group = await self._replica_group(broker_name, controllers)
                        found = {one.broker_id for one in group.in_sync_replicas}
                        if wanted <= found:
                            return group
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClientError(
                f"found the replicas {sorted(found)} of {broker_name} in sync {BACK_S:g} s after the hand-over, "
                f"expected {sorted(wanted)}: read the logs of the others"
            ) from None

    async def _replica_group(self, broker_name: str, controllers: list[str]) -> GroupReplicas:
        command = RemotingCommand(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=dumps([broker_name]))
        reply = await self._client.pool.request(await self._leader(controllers), command, self._timeout_ms)
        found = read_body(reply, SyncStateData.decode).replicas_info_table.get(broker_name)
        if found is None:
            raise ClientError(f"found no group {broker_name} at its controllers, expected it: start its brokers")
        return found

    async def _controllers_of(self, broker_name: str) -> list[str]:
        """Return the addresses of the controllers, from the settings of a broker."""
        broker = (await self.cluster()).broker_addr_table.get(broker_name)
        if broker is None:
            raise ClientError(f"found no broker {broker_name} at the name server, expected one: `mqtrail cluster list`")
        errors: list[Exception] = []
        for _, address in sorted(broker.broker_addrs.items()):
            try:
                settings = await self.broker_config(address)
            except MQError as error:
                errors.append(error)
                continue
            if settings.get("enableControllerMode") == "true":
                return [one for one in settings.get("controllerAddr", "").split(";") if one]
        if errors:
            raise errors[0]
        raise ClientError(
            f"found no controllers of {broker_name}, expected enableControllerMode: in classic mode an operator "
            "promotes a slave (docs/how-to/high-availability.md)"
        )

    async def _leader(self, controllers: list[str]) -> str:
        """Return the address of the leading controller."""
        found: list[str] = []
        for address in controllers:
            try:
                command = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
                reply = await self._client.pool.request(address, command, self._timeout_ms)
            except NetError as error:
                found.append(str(error))
                continue
            leader = ControllerMetadataReply.from_ext(reply.ext).controller_leader_address
            if leader:
                return leader
            found.append(f"{address}: it knows no leader")
        raise ClientError(f"found no leading controller ({'; '.join(found)}), expected one: a majority must live")
