"""Broadcasting consumers: each member reads every queue and keeps its own offsets.

A member starts at a queue's end or start, and saves its position every second on its own disk. The successor of a
killed member has its name and its disk, and continues from there.
"""

from functools import partial

from mqtrail.wire import (
    GetMaxOffsetHeader,
    MessageExt,
    MessageModel,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

from .clients import PAUSE_MS, Queue
from .consumers import Consumer, Work
from .engine import Engine
from .history import Begun, History
from .network import Network


class BroadcastConsumer(Consumer):
    """One member of a broadcasting group. offsets: saved on its disk."""

    MODEL = MessageModel.BROADCASTING
    TAKES_RETRIES = False
    PULL_FLAGS = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION

    def __init__(
        self, engine: Engine, network: Network, history: History, name: str, namesrv: str, group: str, topic: str
    ) -> None:
        super().__init__(engine, network, history, name, namesrv, group, topic)
        self.reader = name
        self.offsets: dict[Queue, int] = {}

    def _rebalance(self) -> None:
        """Take all queues."""
        for topic in self.topics:
            for queue in self.queues.get(topic, ()):
                if queue not in self._works:
                    self._works[queue] = work = Work(queue)
                    self.taken(work)

    def _ask_offset(self, work: Work) -> None:
        topic, broker, queue_id = work.queue
        known = self.offsets.get(work.queue)
        if known is not None:
            self._begin_at(work, known, self.engine.now_ms)
        elif self.engine.happens(0.3):
            self._begin_at(work, 0, self.engine.now_ms)
        else:
            command = RemotingCommand(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue_id).to_ext())
            self.request(self.addresses[broker], command, partial(self._end_reported, work, self.engine.now_ms))

    def _end_reported(self, work: Work, asked_ms: float, reply: RemotingCommand | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self._begin_at(work, int(reply.ext["offset"]), asked_ms)
        else:
            self.later(PAUSE_MS, lambda: self._ask_offset(work))

    def _begin_at(self, work: Work, offset: int, asked_ms: float) -> None:
        topic, broker, queue_id = work.queue
        self.history.begun.append(Begun(self.name, broker, topic, queue_id, offset, asked_ms, self.engine.now_ms))
        self.offsets[work.queue] = work.next_offset = offset
        self._pull(work)

    def _commit(self, work: Work) -> None:
        if work.next_offset >= 0:
            self.offsets[work.queue] = work.committable()

    def _processed(self, work: Work, message: MessageExt) -> None:
        """Do not retry: a broadcast message is delivered once, whatever its result."""
        self._done(work, message, "done")
