"""The queues assigned to a consumer: taken, pulled, locked, committed, released.

Source: RebalancePushImpl, ConsumeMessageOrderlyService.lockMQPeriodically, RocketMQ 5.x client.
"""

import asyncio
from collections.abc import Callable, Mapping

from mqtrail.net import Log
from mqtrail.wire import MessageModel, MessageQueue, ProcessQueueInfo, SubscriptionData

from ..core import ClientInstance, ConsumerConfig, Names, queue_name
from ..delivery import ConsumerStats, Flow, ProcessQueue, Ready, RunningHandlers
from .consume_service import ConsumeService
from .locks import QueueLocks
from .offsets import OffsetStore
from .puller import Puller, PullerParts

log = Log()

RELOCK_MS = 10  # ConsumeMessageOrderlyService.tryLockLaterAndReconsume


class Held:
    """One assigned queue: its unsettled messages and the task that pulls it."""

    __slots__ = ("dropping_since", "process_queue", "puller", "task")

    def __init__(self, process_queue: ProcessQueue, puller: Puller, task: asyncio.Task[None]) -> None:
        self.process_queue = process_queue
        self.puller = puller
        self.task = task
        self.dropping_since = 0.0  # loop time since when an ordered queue waits to be released

    def info(self, noted: int | None) -> ProcessQueueInfo:
        """The queue's state, as admin tools show it."""
        queue = self.process_queue
        return ProcessQueueInfo(
            commit_offset=-1 if noted is None else noted,
            cached_msg_min_offset=queue.first_offset or 0,
            cached_msg_max_offset=queue.last_offset or 0,
            cached_msg_count=queue.count,
            cached_msg_size_in_mib=queue.size >> 20,
            locked=queue.locked_until > 0,
            last_lock_timestamp=queue.last_lock_ms,
            droped=queue.dropped,
            last_pull_timestamp=self.puller.last_pull_ms,
            last_consume_timestamp=queue.last_consume_ms,
        )


class HeldQueues:
    """Holds the assigned queues. on_lost: called when another member has taken an ordered queue's lock."""

    def __init__(
        self,
        client: ClientInstance,
        names: Names,
        subscriptions: Mapping[str, SubscriptionData],
        ready: Ready,
        running_handlers: RunningHandlers,
        offsets: OffsetStore,
        flow: Flow,
        stats: ConsumerStats,
        config: ConsumerConfig,
        on_lost: Callable[[], None],
    ) -> None:
        self._client = client
        self._group = names.group
        self._ready = ready
        self._config = config
        self._offsets = offsets
        self._on_lost = on_lost
        clustering = config.model is MessageModel.CLUSTERING
        self._locked = config.ordered and clustering
        self._locks = QueueLocks(client, names.group, config)
        may_work = self._locks.holds if self._locked else lambda _: True
        self._service = ConsumeService(
            client, names, ready, offsets, running_handlers, config, may_work=may_work, on_unlocked=self._on_unlocked
        )
        self._work = PullerParts(
            client,
            names,
            subscriptions,
            offsets,
            flow,
            stats,
            config,
            commits=clustering,
            may_pull=may_work,
            room=self._room,
            on_messages=self._service.offer,
            on_moved=self._on_moved,
        )
        self._held: dict[MessageQueue, Held] = {}

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues held now, sorted."""
        return sorted(self._held)

    @property
    def locks(self) -> QueueLocks | None:
        """The queue locks of an ordered consumer."""
        return self._locks if self._locked else None

    # -- for the rebalancer ----------------------------------------------------------------------------------------

    async def take_queue(self, queue: MessageQueue, offset: int) -> None:
        """Start to consume a queue at an offset."""
        self._begin(queue, offset)

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        process_queue = ProcessQueue(queue, offset)
        puller = Puller(self._work, process_queue, offset)
        process_queue.on_room = puller.wake
        if self._locked:
            self._locks.note(process_queue)
        self._held[queue] = Held(process_queue, puller, self._client.spawn(puller.run()))

    async def drop_queue(self, queue: MessageQueue) -> bool:
        """Release a queue: commit what is settled, ignore later results. False while an ordered handler runs."""
        held = self._held.get(queue)
        if held is None:
            return True
        if self._locked and held.process_queue.running:
            # Another member must not start before this handler ends, unless the handler hangs.
            now = asyncio.get_running_loop().time()
            held.dropping_since = held.dropping_since or now
            held.process_queue.closing = True
            held.task.cancel()
            if now - held.dropping_since < self._config.lock_ms / 1000:
                return False
        self._forget(held)
        await self._offsets.persist([queue])
        self._offsets.forget(queue)
        if self._locked:
            await self._locks.unlock([queue])
        return True

    def _room(self) -> int:
        """Bytes that further decompressed bodies may take."""
        return self._config.expanded_size_max - sum(held.process_queue.expanded_size for held in self._held.values())

    def _forget(self, held: Held) -> None:
        held.process_queue.dropped = True
        self._ready.discard(held.process_queue)
        held.task.cancel()
        self._held.pop(held.process_queue.queue, None)
        self._work.answers.pop(held.process_queue.queue, None)

    def repair(self, queue: MessageQueue) -> None:
        """Restart the puller of a queue whose release was cancelled."""
        held = self._held.get(queue)
        if held is None or not held.task.done():
            return
        log.sparse.warning("consumer.queue_taken_again", group=self._group, queue=queue_name(queue))
        held.process_queue.closing, held.dropping_since = False, 0.0
        self._restart_pulls(held)
        if self._config.ordered:
            self._service.offer_head(held.process_queue)

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic: its subscription changed, and pulls in flight have the old one."""
        for held in self._held.values():
            if held.process_queue.queue.topic == topic and not held.process_queue.closing:
                held.task.cancel()
                self._restart_pulls(held)

    def _restart_pulls(self, held: Held) -> None:
        process_queue = held.process_queue
        held.puller = Puller(self._work, process_queue, process_queue.next_offset)
        process_queue.on_room = held.puller.wake
        held.task = self._client.spawn(held.puller.run())

    def _on_moved(self, process_queue: ProcessQueue, offset: int) -> None:
        """The requested offset is outside the queue: drop unsettled messages and restart inside it."""
        held = self._held.get(process_queue.queue)
        if held is not None and held.process_queue is process_queue:
            self._restart(held, offset)
            self._client.spawn(self._offsets.persist([process_queue.queue]))

    def _restart(self, held: Held, offset: int) -> None:
        queue = held.process_queue.queue
        held.process_queue.dropped = True  # results of its handlers are ignored from here on
        self._ready.discard(held.process_queue)
        if held.task is not asyncio.current_task():
            held.task.cancel()
        self._offsets.update(queue, offset, only_up=False)
        self._begin(queue, offset)

    # -- locks of an ordered consumer ------------------------------------------------------------------------------

    def _on_unlocked(self, process_queue: ProcessQueue) -> None:
        self._client.spawn(self._relock(process_queue))

    async def _relock(self, process_queue: ProcessQueue) -> None:
        """Lock a queue whose lock expired and continue, or release it if another member has the lock."""
        await asyncio.sleep(RELOCK_MS / 1000)
        if not process_queue.dropped and await self._locks.lock([process_queue.queue]):
            self._locks.note(process_queue)
            self._service.offer_head(process_queue)
        else:
            self._lose(process_queue)

    def _lose(self, process_queue: ProcessQueue) -> None:
        """Drop a queue without a commit: another member may have committed a higher offset."""
        held = self._held.get(process_queue.queue)
        if held is not None and held.process_queue is process_queue:
            log.sparse.warning("consumer.lock_lost", group=self._group, queue=queue_name(process_queue.queue))
            self._forget(held)
            self._offsets.forget(process_queue.queue)
            self._on_lost()

    async def renew_locks(self) -> None:
        """Renew the locks of an ordered consumer; a queue whose lock expired and is refused is lost."""
        held = [held.process_queue for held in self._held.values()]
        await self._locks.renew(held)
        gone = [one.queue for one in held if one.dropped and one.queue not in self._held]
        if gone:  # released during the renewal, which may have locked them again
            await self._locks.unlock(gone)
        for process_queue in held:
            if not self._locks.holds(process_queue) and not process_queue.running:
                self._lose(process_queue)

    # -- periodic work, and the end --------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Commit the offsets that changed."""
        await self._offsets.persist(list(self._held))

    async def give_back_expired(self) -> None:
        """Send back messages whose handlers run longer than consume_timeout."""
        await self._service.give_back_expired([held.process_queue for held in self._held.values()])

    async def stop_pulling(self) -> None:
        """End all pulls and deliveries; messages already delivered may still be settled."""
        tasks = [held.task for held in self._held.values()]
        for held in self._held.values():
            held.process_queue.closing = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def let_go(self) -> None:
        """Commit, unlock and drop all queues; later results are ignored."""
        await self.persist()
        if self._locked:
            await self._locks.unlock(list(self._held))
        for held in self._held.values():
            held.process_queue.dropped = True
        self._held.clear()

    # -- for operators ---------------------------------------------------------------------------------------------

    def offsets(self) -> dict[MessageQueue, int]:
        """The offset of each queue that would be committed now."""
        return {queue: offset for queue in self._held if (offset := self._offsets.noted(queue)) is not None}

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue."""
        return {queue: held.info(self._offsets.noted(queue)) for queue, held in self._held.items()}

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets and continue there; unsettled messages of these queues are dropped."""
        for queue, offset in offsets.items():
            if (held := self._held.get(queue)) is not None:
                self._restart(held, offset)
        await self._offsets.persist([queue for queue in offsets if queue in self._held])
