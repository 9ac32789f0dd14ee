"""Ordered consumers: a queue's messages one after the other, by the one member that the broker keeps it locked for.

A member locks the queues that it takes, renews the locks every second, and trusts a lock for a third of the time that
the broker keeps it. A message that fails is retried after a pause; the queue waits meanwhile. A queue that now belongs
to another member is unlocked once its present message is finished and the offset committed.
"""

from functools import partial

from mqtrail.wire import (
    LockBatchBody,
    LockedQueues,
    MessageExt,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

from .clients import Queue, number_of, place_of
from .consumers import Consumer, Work
from .engine import Engine
from .history import History, Locked, Worked
from .network import Network
from .servers import LOCK_TTL_MS

LOCK_VALID_MS = LOCK_TTL_MS / 3
LOCK_MS = 1_000.0
UNLOCKED_MS = 200.0  # pause before the next attempt to lock a queue
WORK_MS, LONG_WORK_MS = (1.0, 40.0), (500.0, 5_000.0)  # the long one may outlive the lock
SUSPEND_MS = (20.0, 400.0)
OPEN_MAX = 64  # pulled messages of a queue that wait here


class OrderedWork(Work):
    """A queue and its lock. at_work: a message is being processed, or the queue is suspended after a failure."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self.locked_until_ms = 0.0
        self.began = False
        self.at_work: Worked | None = None
        self.suspended = False
        self.locks: list[Locked] = []


class OrderedConsumer(Consumer):
    """One member of a group that consumes in order."""

    def __init__(
        self, engine: Engine, network: Network, history: History, name: str, namesrv: str, group: str, topic: str
    ) -> None:
        super().__init__(engine, network, history, name, namesrv, group, topic)
        self._every(LOCK_MS, self._lock_all)

    def work_on(self, queue: Queue) -> Work:
        return OrderedWork(queue)

    def kill(self) -> None:
        super().kill()
        for work in self._works.values():
            self._stop(work)

    def _stop(self, work: Work) -> None:
        """Stop all work on the queue."""
        assert isinstance(work, OrderedWork)
        if work.at_work is not None:
            work.at_work.to_ms = self.engine.now_ms
        for lock in work.locks:
            lock.until_ms = min(lock.until_ms, self.engine.now_ms)

    # Locks.

    def taken(self, work: Work) -> None:
        self._lock(work.queue[1], [work])

    def let_go(self, work: Work) -> None:
        assert isinstance(work, OrderedWork)
        if work.at_work is None:
            self._leave(work)

    def _leave(self, work: OrderedWork) -> None:
        """Hand the queue over to its present owner."""
        self._commit(work)
        self._stop(work)
        command = RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, {}, self._body([work]))
        self.request(self.addresses[work.queue[1]], command, lambda reply: None)

    def _lock_all(self) -> None:
        for broker in self.addresses:
            works = [work for work in self._works.values() if work.queue[1] == broker]
            if works:
                self._lock(broker, works)

    def _lock(self, broker: str, works: list[Work]) -> None:
        command = RemotingCommand(RequestCode.LOCK_BATCH_MQ, {}, self._body(works))
        self.request(self.addresses[broker], command, partial(self._locked, works, self.engine.now_ms))

    def _body(self, works: list[Work] | list[OrderedWork]) -> bytes:
        queues = tuple(MessageQueue(*work.queue) for work in works)
        return LockBatchBody(self.group, self.name, queues).encode()

    def _locked(self, works: list[Work], asked_ms: float, reply: RemotingCommand | None) -> None:
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        held = set(LockedQueues.decode(reply.body).locked)
        for work in works:
            assert isinstance(work, OrderedWork)
            topic, broker, queue_id = work.queue
            if not work.live or MessageQueue(*work.queue) not in held:
                continue
            until_ms = asked_ms + LOCK_VALID_MS
            lock = Locked(self.group, self.name, broker, topic, queue_id, asked_ms, self.engine.now_ms, until_ms)
            work.locks.append(lock)
            self.history.locked.append(lock)
            work.locked_until_ms = max(work.locked_until_ms, until_ms)
            if not work.began:
                work.began = True
                self._ask_offset(work)

    def _is_ours(self, work: Work) -> bool:
        assert isinstance(work, OrderedWork)
        return self.engine.now_ms < work.locked_until_ms

    # Messages.

    def _pull(self, work: Work) -> None:
        if self._is_ours(work) and len(work.open) < OPEN_MAX:
            super()._pull(work)
        elif work.live:
            self.later(UNLOCKED_MS, lambda: self._pull(work))

    def _process(self, work: Work, message: MessageExt) -> None:
        self._next(work)

    def _next(self, work: Work) -> None:
        """Start the first unfinished message, if the queue is ours and no other one is running."""
        assert isinstance(work, OrderedWork)
        if not work.live or work.at_work is not None or work.suspended or not work.open:
            return
        if not self._is_ours(work):
            self._suspend(work, UNLOCKED_MS)
            return
        message = self.choose(work)
        number = number_of(message.body)
        place = place_of(work.queue[1], message)
        work.at_work = Worked(self.group, self.name, place, -1 if number is None else number, self.engine.now_ms)
        self.history.worked.append(work.at_work)
        duration = WORK_MS if not self.engine.happens(0.01) else LONG_WORK_MS
        self.later(self.engine.between(*duration), lambda: self._worked(work, message))

    def choose(self, work: Work) -> MessageExt:
        """Return the next message. A hook for the planted bug that does not keep the order."""
        return work.open[min(work.open)]

    def _worked(self, work: OrderedWork, message: MessageExt) -> None:
        assert work.at_work is not None
        work.at_work.to_ms = self.engine.now_ms
        work.at_work = None
        failed = self.engine.happens(0.08)
        if not failed:
            self._done(work, message, "done")
        if not work.live:
            self._leave(work)
        elif failed:
            self._suspend(work, self.engine.between(*SUSPEND_MS))
        else:
            self._next(work)

    def _suspend(self, work: OrderedWork, pause_ms: float) -> None:
        """Suspend the queue, whatever happens meanwhile."""

        def go_on() -> None:
            work.suspended = False
            self._next(work)

        work.suspended = True
        self.later(pause_ms, go_on)
