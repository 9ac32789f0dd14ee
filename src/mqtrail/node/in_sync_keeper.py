"""Asks the controller to change the SyncStateSet of a group (mqtrail.broker.ha decides what it should be)."""

import asyncio
from contextlib import suppress

from mqtrail.net import ControllerError, Log, NetError
from mqtrail.wire import MQError, ResponseCode

from .broker_node import BrokerNode
from .controllers import Controllers, GroupState

CHECK_S = 1.0  # interval at which slaves that fall behind are looked for
RETRY_S = 0.2  # pause after a change that the controller refused, or did not answer
UNKNOWN_CODES = (0, ResponseCode.CONTROLLER_NOT_LEADER)  # after which the change may happen all the same
STRANGER_CODES = (ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)

log = Log()


class InSyncKeeper:
    """`run` as a task. node: the broker while it is master. wake: call it when slaves moved."""

    def __init__(self, name: str, controllers: Controllers) -> None:
        self._name = name
        self._controllers = controllers
        self._due = asyncio.Event()
        self.wake = self._due.set
        self.node: BrokerNode | None = None

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._due.wait()
            self._due.clear()
            if (node := self.node) is None:
                continue
            try:
                await self._change(node)
            except (NetError, MQError) as error:
                log.sparse.warning(
                    "broker.in_sync_not_changed",
                    broker=self._name,
                    found=str(error),
                    remedy="none needed; it is retried",
                )
                self.wake()
                await asyncio.sleep(RETRY_S)
            except Exception:  # a fault must not end the task
                log.sparse.exception("broker.in_sync_failed", broker=self._name)

    async def _change(self, node: BrokerNode) -> None:
        """Ask for the change that is due, if any. NetError, MQError: it is not known to be done."""
        assert node.core is not None
        wanted, in_sync = node.wanted_in_sync(), node.core.replicas.in_sync
        if wanted is None or in_sync is None:
            return
        in_sync.ask(wanted)
        try:
            ids, number = await self._controllers.alter(in_sync.term, wanted, in_sync.number)
        except ControllerError as error:
            if error.code not in UNKNOWN_CODES:
                found = await self._controllers.group()
                in_sync.refused(found.number, bars=error.code in STRANGER_CODES)
                self.settle(node, found)
            raise
        self._settle(node, ids, number)

    def settle(self, node: BrokerNode, found: GroupState) -> None:
        """Take the set that the controller holds, if it still is the one of this master, which may have stopped."""
        in_sync = None if node.core is None else node.core.replicas.in_sync
        if in_sync is not None and (found.master_id, found.epoch) == (in_sync.term.broker_id, in_sync.term.epoch):
            self._settle(node, found.ids, found.number)

    def _settle(self, node: BrokerNode, ids: frozenset[int], number: int) -> None:
        in_sync = None if node.core is None else node.core.replicas.in_sync
        if in_sync is not None and in_sync.settle(ids, number):
            log.info("broker.in_sync_changed", broker=self._name, in_sync=sorted(ids), number=number)
            node.slaves_moved()
