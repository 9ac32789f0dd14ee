"""The queues in a consumer's hands: pulled, handed out, settled, given up.

Source: ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService, RocketMQ 5.x client.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mqtrail.client.config import ConsumerConfig
from mqtrail.client.delivery import Delivery
from mqtrail.client.hooks import ConsumeHook
from mqtrail.client.identity import local_address, now_ms
from mqtrail.client.instance import ClientInstance
from mqtrail.client.locks import QueueLocks
from mqtrail.client.offsets import LocalOffsets, OffsetStore, RemoteOffsets
from mqtrail.client.process_queue import ProcessQueue
from mqtrail.client.puller import Puller
from mqtrail.client.routes import queue_name
from mqtrail.client.send_back import SendBack
from mqtrail.net import Log
from mqtrail.wire import (
    PROPERTY_RETRY_TOPIC,
    MessageExt,
    MessageModel,
    MessageQueue,
    MQError,
    ProcessQueueInfo,
    SubscriptionData,
    retry_topic,
)

log = Log()


class Held:
    """One queue in our hands: its unsettled messages and the task that pulls it."""

    __slots__ = ("dropping_since", "process_queue", "puller", "task")

    def __init__(self, process_queue: ProcessQueue, puller: Puller, task: asyncio.Task[None]) -> None:
        self.process_queue = process_queue
        self.puller = puller
        self.task = task
        self.dropping_since = 0.0  # loop time since which an ordered queue waits to be given up

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
            droped=queue.dropped,
            last_pull_timestamp=self.puller.last_pull_ms,
            last_consume_timestamp=queue.last_consume_ms,
        )


class HeldQueues:
    """Holds the queues that the rebalancer gives it; `ready` has what is to be handed to the application.

    A None in `ready` tells that nothing more will come.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        hooks: Sequence[ConsumeHook],
        config: ConsumerConfig,
    ) -> None:
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._hooks = hooks
        self._config = config
        self._clustering = config.model is MessageModel.CLUSTERING
        self._locked = config.ordered and self._clustering
        self._locks = QueueLocks(client, group, config)
        self._offsets = self._make_offsets()
        self._send_back = SendBack(client, group, config)
        self._held: dict[MessageQueue, Held] = {}
        self._idle = asyncio.Event()
        self.ready: asyncio.Queue[Delivery | None] = asyncio.Queue()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues held now, sorted."""
        return sorted(self._held)

    @property
    def offset_store(self) -> OffsetStore:
        """Where the group's offsets are."""
        return self._offsets

    @property
    def locks(self) -> QueueLocks | None:
        """The queue locks of an ordered consumer."""
        return self._locks if self._locked else None

    def _make_offsets(self) -> OffsetStore:
        if self._clustering:
            return RemoteOffsets(self._client, self._group, self._committed)
        # The name must outlive the process, so it is not the client id, as in Java: one consumer a group and host.
        return LocalOffsets(self._config.offset_dir, f"{local_address()}@DEFAULT", self._group, self._committed)

    def may_start(self, delivery: Delivery) -> bool:
        """Whether a delivery out of `ready` may go to the application; one whose lock is away comes again later."""
        queue, offset = delivery.process_queue, delivery.message.queue_offset
        if queue.dropped or offset not in queue:
            return False
        if self._locked and not self._locks.holds(queue):
            asyncio.get_running_loop().call_later(0.1, self.offer_again, queue, delivery.message)
            return False
        return True

    async def stop_pulling(self) -> None:
        """End all pulls; what was pulled may still be settled."""
        tasks = [held.task for held in self._held.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def wait_idle(self, wait_ms: int) -> int:
        """Wait for running handlers; return how many are still running after wait_ms."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while any(held.process_queue.running for held in self._held.values()):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass
        return sum(len(held.process_queue.running) for held in self._held.values())

    async def let_go(self) -> None:
        """Commit, unlock and forget every queue; what is settled later is ignored."""
        await self.persist()
        if self._locked:
            await self._locks.unlock(list(self._held))
        for held in self._held.values():
            held.process_queue.dropped = True
        self._held.clear()
        self.ready.put_nowait(None)

    # -- queues: what the rebalancer asks for ----------------------------------------------------------------------

    async def take_queue(self, queue: MessageQueue, offset: int) -> None:
        """Begin with a queue at an offset."""
        process_queue = ProcessQueue(queue)
        puller = Puller(
            self._client,
            self._group,
            lambda: self._subscriptions[queue.topic],
            process_queue,
            offset,
            self._offsets,
            self._on_messages,
            self._config,
            commits=self._clustering,
            may_pull=self._locks.holds if self._locked else lambda _: True,
        )
        if self._locked:
            self._locks.note(process_queue)
        self._held[queue] = Held(process_queue, puller, self._client.spawn(puller.run()))

    async def drop_queue(self, queue: MessageQueue) -> bool:
        """Give a queue up: commit what is settled, ignore what comes later."""
        held = self._held.get(queue)
        if held is None:
            return True
        if self._locked and held.process_queue.running:
            # Its handler is running: another member must not start before it is done, unless it hangs.
            now = asyncio.get_running_loop().time()
            held.dropping_since = held.dropping_since or now
            if now - held.dropping_since < self._config.lock_ms / 1000:
                return False
        held.process_queue.dropped = True
        held.task.cancel()
        del self._held[queue]
        await self._offsets.persist([queue])
        self._offsets.forget(queue)
        if self._locked:
            await self._locks.unlock([queue])
        return True

    def _on_messages(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Hand pulled messages on: all of them, or in ordered mode the first of the queue when none is out."""
        if self._config.ordered:
            if process_queue.count == len(messages):
                self._offer(process_queue, messages[0])
            return
        for message in messages:
            self._offer(process_queue, message)

    def _offer(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        origin = message.properties.get(PROPERTY_RETRY_TOPIC)
        if origin and message.topic == retry_topic(self._group):
            message = replace(message, topic=origin)
        self.ready.put_nowait(Delivery(message, process_queue, self))

    # -- settling --------------------------------------------------------------------------------------------------

    def begun(self, delivery: Delivery) -> str:
        """A handler starts: tell the hooks, return the request id."""
        request_id = ""
        for hook in self._hooks:
            request_id = hook.consume_started(delivery.message, delivery.started_ms) or request_id
        return request_id

    async def settle(self, delivery: Delivery, result: str, delay_level: int, text: str, ended_ms: int) -> None:
        """A handler is done: tell the hooks, then commit, give back, or keep for another try."""
        message, queue = delivery.message, delivery.process_queue
        late = ended_ms - delivery.started_ms >= self._config.consume_timeout_ms
        success = result == "SUCCESS"
        for hook in self._hooks:
            hook.consume_complete(
                delivery.request_id,
                message,
                "TIME_OUT" if late and result != "EXCEPTION" else result,
                delivery.started_ms,
                ended_ms,
                success=success,
                detail=text,
            )
        queue.running.pop(message.queue_offset, None)
        if not queue.dropped and message.queue_offset in queue:
            if success or not self._clustering:
                if not success:
                    log.warning(
                        "consumer.message_dropped", group=self._group, msg_id=message.msg_id, model="BROADCASTING"
                    )
                self._done(queue, message.queue_offset)
            elif self._config.ordered:
                await self._retry_in_place(queue, message)
            elif await self._send_back.give_back(message, delay_level):
                self._done(queue, message.queue_offset)
            else:
                self._retry_here(queue, message, self._config.resubmit_ms)
        self._idle.set()

    def _done(self, queue: ProcessQueue, queue_offset: int) -> None:
        commit_offset = queue.remove(queue_offset)
        if commit_offset is not None and not queue.dropped:
            self._offsets.update(queue.queue, commit_offset, only_up=not self._config.ordered)
            held = self._held.get(queue.queue)
            if held is not None:
                held.puller.wake()
            if self._config.ordered and (first := queue.first_offset) is not None:
                following = queue.message(first)
                if following is not None:
                    self._offer(queue, following)

    def _retry_here(self, queue: ProcessQueue, message: MessageExt, wait_ms: int) -> None:
        """Deliver again from memory, counted up."""
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        queue.replace(again)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self.offer_again, queue, again)

    def offer_again(self, queue: ProcessQueue, message: MessageExt) -> None:
        if not queue.dropped and message.queue_offset in queue:
            self._offer(queue, message)

    async def _retry_in_place(self, queue: ProcessQueue, message: MessageExt) -> None:
        """Ordered: the queue stands still until this message succeeds, or its attempts are used up."""
        attempts_max = self._config.attempts_max
        if attempts_max is not None and message.reconsume_times >= attempts_max:
            try:
                await self._send_back.resend(message, 3 + message.reconsume_times)
            except (MQError, OSError) as error:
                log.error("consumer.give_up_failed", group=self._group, msg_id=message.msg_id, error=str(error))
            else:
                self._done(queue, message.queue_offset)
                return
        self._retry_here(queue, message, min(30_000, max(10, self._config.suspend_ms)))

    def _committed(self, queue: MessageQueue, offset: int) -> None:
        time_ms = now_ms()
        for hook in self._hooks:
            hook.offset_committed(queue, offset, time_ms)

    # -- periodic work ---------------------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Commit what changed."""
        await self._offsets.persist(list(self._held))

    async def renew_locks(self) -> None:
        """Keep the locks of an ordered consumer."""
        await self._locks.renew([held.process_queue for held in self._held.values()])

    async def give_back_stuck(self) -> None:
        """Give back messages whose handler runs for longer than consume_timeout; the handler itself is not stopped."""
        if self._config.ordered or not self._clustering:
            return
        begun_before = asyncio.get_running_loop().time() - self._config.consume_timeout_ms / 1000
        for held in list(self._held.values()):
            queue = held.process_queue
            for offset in [offset for offset, begun in queue.running.items() if begun <= begun_before]:
                message = queue.message(offset)
                if message is not None and await self._send_back.give_back(message, 3):
                    name = queue_name(queue.queue)
                    log.warning("consumer.handler_stuck", group=self._group, msg_id=message.msg_id, queue=name)
                    self._done(queue, offset)

    def offsets(self) -> dict[MessageQueue, int]:
        """What would be committed now, queue by queue."""
        return {queue: offset for queue in self._held if (offset := self._offsets.noted(queue)) is not None}

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue."""
        return {queue: held.info(self._offsets.noted(queue)) for queue, held in self._held.items()}

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets: what is unsettled of these queues is forgotten, and the offsets are stored."""
        for queue, offset in offsets.items():
            held = self._held.get(queue)
            if held is not None:
                held.process_queue.dropped = True
                held.task.cancel()
                self._offsets.update(queue, offset, only_up=False)
                await self.take_queue(queue, offset)
        await self._offsets.persist([queue for queue in offsets if queue in self._held])
