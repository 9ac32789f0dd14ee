"""Groups that elect their master, by controllers or as a DLedger group: elections, and the hand-over to another one."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from mqtrail.wire import (
    ElectMasterHeader,
    GroupReplicas,
    LedgerCode,
    LedgerStatus,
    LedgerTransfer,
    MQError,
    RemotingCommand,
    ReplicaState,
    RequestCode,
    ResponseCode,
    decode_ledger_reply,
    refusal_for,
)

from ..core import ClientError
from .ledger_groups import LedgerGroup, is_ledger
from .replicas import AdminReplicas

POLL_S = 0.1
ANY_BROKER = -1
TRANSFER_TRIES = 20
RESTART_S = 180.0  # for a broker to stop, to start again, and to copy what it lacks
BACK_S = 60.0  # for the old master to start again as slave, and to copy what it lacks


class AdminHandover(AdminReplicas):
    """Admin's methods for groups that elect their master."""

    async def set_master(self, broker_name: str, broker_id: int | None = None) -> GroupReplicas:
        """Hand over to another in-sync replica of a group; return the group when all in-sync replicas are back.

        broker_id None: the in-sync replica with the lowest id. The old master stays, as a slave. Raises ClientError:
        that replica is not alive and in sync; Refusal: the controllers refused.
        """
        group = await self.replica_group(broker_name)
        ready = [
            one.broker_id for one in group.in_sync_replicas if one.alive and one.broker_id != group.master_broker_id
        ]
        if not ready or broker_id not in (None, *ready):
            raise ClientError(
                f"found {'no broker' if broker_id is None else f'broker {broker_id}'} to take over {broker_name}, "
                f"expected a slave that is alive and in sync: {', '.join(map(str, ready)) or 'there is none'}; look at "
                "`mqtrail cluster ha`"
            )
        chosen = min(ready) if broker_id is None else broker_id
        await self._choose(broker_name, chosen)
        in_sync = {one.broker_id for one in group.in_sync_replicas}
        return await self._when_in_sync(broker_name, chosen, in_sync)

    async def elect_master(self, broker_name: str, broker_id: int | None = None) -> GroupReplicas:
        """Have the controllers elect a master now; return the group. It waits for no broker.

        In a DLedger group its leader is asked to hand over to broker_id, and this waits for that.
        broker_id None: they choose, and keep a master that is alive. Raises Refusal: the controllers refused, for
        example because no replica in sync is alive.
        """
        _, settings = await self._settings_of(broker_name)
        if broker_id is not None and is_ledger(settings):
            group = await self.replica_group(broker_name)
            return group if group.master_broker_id == broker_id else await self.set_master(broker_name, broker_id)
        await self._choose(broker_name, broker_id)
        return await self.replica_group(broker_name)

    async def restart_members(
        self,
        broker_name: str,
        restart: Callable[[ReplicaState], Awaitable[None]],
        report: Callable[[str], None] = lambda words: None,
    ) -> GroupReplicas:
        """Restart the in-sync replicas of a group one by one, slaves first; return the group when all are back.

        restart: stops one and sees to its next start, or lets its service manager do so; the next one follows when it
        is in sync again. Before the master is restarted, another one takes over. report: called with each step in
        words.
        Raises ClientError: fewer than two replicas are alive and in sync, or one did not come back.
        """
        group = await self.replica_group(broker_name)
        members = sorted(group.in_sync_replicas, key=lambda one: one.broker_id == group.master_broker_id)
        if len(members) < 2 or group.master_broker_id is None or not all(one.alive for one in members):
            raise ClientError(
                f"found {sum(one.alive for one in members)} replicas of {broker_name} alive and in sync, expected two "
                "or more, and none that is in sync and dead: look at `mqtrail cluster ha`"
            )
        for one in group.not_in_sync_replicas:
            report(f"broker {one.broker_id} ({one.broker_address}) is left out: it is not in sync")
        ids = {one.broker_id for one in members}
        for number, member in enumerate(members, 1):
            name = f"{number} of {len(members)}: broker {member.broker_id} ({member.broker_address})"
            if (await self.replica_group(broker_name)).master_broker_id == member.broker_id:
                report(f"{name} is master: handing over")
                await self.set_master(broker_name)
            boot = await self._boot_of(member.broker_address)
            report(f"{name}: restarting")
            await restart(member)
            await self._when_back(broker_name, member.broker_address, boot, ids)
            report(f"{name}: in sync again")
        return await self.replica_group(broker_name)

    async def _when_back(self, broker_name: str, address: str, boot: str, ids: set[int]) -> None:
        """Return when another process serves at the address, and the master has all replicas connected and in sync."""
        found = "its last process"
        try:
            async with asyncio.timeout(RESTART_S):
                while True:
                    with suppress(MQError):
                        if await self._boot_of(address) != boot:
                            found = "a new process that is not in sync"
                            group = await self.replica_group(broker_name)
                            state = await self._ha_state(group.master_address)
                            in_sync = {one.broker_id for one in group.in_sync_replicas if one.alive}
                            if ids <= in_sync and state.in_sync_slave_nums + 1 >= len(ids):
                                return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClientError(
                f"found {found} of the broker at {address} {RESTART_S:g} s after its restart, expected a new one in "
                "sync: read its log; the other brokers were not restarted"
            ) from None

    async def _boot_of(self, address: str) -> str:
        return (await self.runtime_info(address)).get("bootTimestamp", "")

    async def _choose(self, broker_name: str, broker_id: int | None) -> None:
        """Make a broker master, or have one elected; one that is alive may stay. Refusal; ClientError: a DLedger group
        has no master that could hand over."""
        _, settings = await self._settings_of(broker_name)
        if not is_ledger(settings):
            await self._elect(broker_name, await self._controllers_of(broker_name), broker_id)
            return
        group = await self.replica_group(broker_name)
        if group.master_broker_id is None:
            raise ClientError(
                f"found no master of the DLedger group {broker_name}, expected one that hands over: start its other "
                "brokers; they elect one as soon as a majority runs"
            )
        if broker_id not in (None, group.master_broker_id):
            ledger = LedgerGroup.of(broker_name, settings)
            leader, target = ledger.member_of(group.master_broker_id), ledger.member_of(broker_id or 0)
            await self._transfer(ledger, leader, target)

    async def _transfer(self, ledger: LedgerGroup, leader: str, target: str) -> None:
        """Ask the leader of a DLedger group to hand over. The answer to the first request names its term."""
        term, code = 0, 0
        for _ in range(TRANSFER_TRIES):
            request = LedgerTransfer(
                group=ledger.name, remote_id=leader, transfer_id=leader, transferee_id=target, term=term
            )
            command = RemotingCommand(LedgerCode.LEADERSHIP_TRANSFER, body=request.encode())
            reply = await self._client.pool.request(ledger.members[leader], command, self._timeout_ms)
            if not reply.body:
                raise refusal_for(reply.code, reply.remark)
            found = decode_ledger_reply(LedgerCode.LEADERSHIP_TRANSFER, reply.body)
            term, code = found.term, found.code
            if code == LedgerStatus.SUCCESS:
                return
            await asyncio.sleep(POLL_S)
        raise ClientError(
            f"found answer {code} of DLedger member {leader} ({ledger.members[leader]}) to a hand-over to {target}, "
            f"expected {int(LedgerStatus.SUCCESS)}: look at `mqtrail cluster ha`, and try again"
        )

    async def _elect(self, broker_name: str, controllers: list[str], broker_id: int | None) -> None:
        """Have a master elected; one that is alive may stay. Refusal."""
        cluster = (await self.cluster()).broker_addr_table[broker_name].cluster
        wanted = ANY_BROKER if broker_id is None else broker_id
        header = ElectMasterHeader(cluster, broker_name, wanted, broker_id is not None)
        command = RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext())
        reply = await self._client.pool.request(await self._leader(controllers), command, self._timeout_ms)
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            raise refusal_for(reply.code, reply.remark)

    async def _when_in_sync(self, broker_name: str, master: int, wanted: set[int]) -> GroupReplicas:
        """Return the group when all these replicas are in sync. ClientError: they are not after BACK_S.

        master: the new one. Controllers name it at once; a DLedger group when name servers know it.
        """
        found: set[int] = set()
        try:
            async with asyncio.timeout(BACK_S):
                while True:
                    with suppress(MQError):
                        group = await self.replica_group(broker_name)
                        found = {one.broker_id for one in group.in_sync_replicas}
                        if wanted <= found and group.master_broker_id == master:
                            return group
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClientError(
                f"found the replicas {sorted(found)} of {broker_name} in sync {BACK_S:g} s after the hand-over, "
                f"expected {sorted(wanted)}: read the logs of the others"
            ) from None
