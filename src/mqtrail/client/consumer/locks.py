"""Queue locks: an ordered consumer processes a queue only while the broker keeps it locked for this client.

A lock is valid for 60 s at the broker and for 30 s here, so that it expires here first.
Source: RebalanceImpl.lock and unlock, RocketMQ client; LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import LockBatchBody, LockedQueues, MessageQueue, MQError, RequestCode

from ..core import ClientInstance, ConsumerConfig
from ..delivery import ProcessQueue

log = Log()

LOCKED_AT_ONCE: Final = 1_000  # queues in one request; a broker of mqtrail refuses more than 5 000


class QueueLocks:
    """Locks of one ordered consumer."""

    def __init__(self, client: ClientInstance, group: str, config: ConsumerConfig) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._locked_until: dict[MessageQueue, float] = {}

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues at their masters; return those that were locked."""
        answers = await asyncio.gather(*(self._lock(name, some) for name, some in _requests(queues)))
        return set().union(*answers)

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        asked_at = asyncio.get_running_loop().time()
        try:
            address = self._client.master(broker_name)
            reply = await self._client.call(address, RequestCode.LOCK_BATCH_MQ, {}, self._body(queues), 1_000)
            locked = set(LockedQueues.decode(reply.body).locked) & set(queues)  # ignore queues not asked for
        except (MQError, OSError) as error:
            log.sparse.warning("consumer.lock_failed", group=self._group, broker=broker_name, error=str(error))
            return set()
        until = asked_at + self._config.lock_valid_ms / 1000
        self._locked_until.update(dict.fromkeys(locked, until))
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues, so that another member can lock them now. Failures are only logged: locks expire."""
        given_up = list(queues)
        for queue in given_up:
            self._locked_until.pop(queue, None)
        for name, given in _requests(given_up):
            try:
                address = self._client.master(name)
                await self._client.call(address, RequestCode.UNLOCK_BATCH_MQ, {}, self._body(given), 1_000)
            except (MQError, OSError) as error:
                log.sparse.warning("consumer.unlock_failed", group=self._group, broker=name, error=str(error))

    async def renew(self, held: Iterable[ProcessQueue]) -> None:
        """Lock the held queues again; a refused queue is not processed after its lock expires."""
        queues = [process_queue.queue for process_queue in held]
        locked = await self.lock(queues)
        for process_queue in held:
            if process_queue.queue in locked:
                self.note(process_queue)

    def note(self, process_queue: ProcessQueue) -> None:
        """Store the time at which the lock expires in the process queue."""
        process_queue.locked_until = self._locked_until.get(process_queue.queue, 0.0)
        process_queue.last_lock_ms = now_ms()

    def holds(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue may be processed now."""
        return asyncio.get_running_loop().time() < process_queue.locked_until

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchBody(self._group, self._client.client_id, tuple(queues)).encode()


def _requests(queues: Iterable[MessageQueue]) -> Iterator[tuple[str, list[MessageQueue]]]:
    """Yield broker names with the queues of one request each."""
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    for name, own in by_broker.items():
        for first in range(0, len(own), LOCKED_AT_ONCE):
            yield name, own[first : first + LOCKED_AT_ONCE]
