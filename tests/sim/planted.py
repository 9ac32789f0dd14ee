"""Planted bugs: a checker that misses them would miss others too.

Each is a cluster with one part replaced, and a text that the checker must report.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mqtrail.broker import Broker
from mqtrail.broker.pop.orders import PoppedQueue
from mqtrail.broker.tables.locks import LockTable
from mqtrail.store import CommitLogStore
from mqtrail.wire import MessageExt, MessageQueue, RemotingCommand
from tests.store.hard_disk import Rates

from .broadcast import BroadcastConsumer
from .cluster import CONCURRENT, Cluster
from .consumers import Consumer, Member, Work
from .ordered import OrderedConsumer
from .pop import OrderedPopConsumer, PopConsumer
from .servers import Faults, SimBroker


def plant(owner: object, method: str, replacement: Callable[..., object]) -> None:
    """Replace a method of one object."""
    assert callable(getattr(owner, method)), method
    setattr(owner, method, replacement)


class UnsyncedStore(CommitLogStore):
    """Reports the log as durable without syncing it."""

    def begin_flush(self) -> Callable[[], int]:
        end_offset = self._log.end_offset

        def sync() -> int:
            self._log.flushed_offset = max(self._log.flushed_offset, end_offset)
            return self._log.flushed_offset

        return sync


class ForgetfulStore(CommitLogStore):
    """Records with each flush that queue entries are durable too: recovery starts too late."""

    def begin_flush(self) -> Callable[[], int]:
        return self._log.begin_flush(self._log.end_offset)


class HastyBroker(Broker):
    """Halves delays."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.delays.delays_ms = [delay_ms // 2 for delay_ms in self.delays.delays_ms]


class HastyTables(Broker):
    """Replies before a created topic is durable."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plant(self.files, "after_tables", lambda sends: sends)


class CarelessBroker(Broker):
    """Loses every op message, which records that a half message is done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plant(self.transactions, "_note", lambda queue_id, queue_offset, now_ms: None)


class HastyConsumer(Consumer):
    """Counts delivered messages as processed."""

    def pulled(self, work: Work, next_offset: int) -> None:
        work.open.clear()


class LavishLocks(LockTable):
    """Grants every lock to everyone."""

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        wanted = [*queues]
        for queue in wanted:
            self._locks.get(group, {}).pop(queue, None)
        return super().lock(group, client_id, wanted, now_ms)


class LavishBroker(Broker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.locks.__class__ = LavishLocks


class ImpatientConsumer(OrderedConsumer):
    """Processes its newest message first."""

    def choose(self, work: Work) -> MessageExt:
        return work.open[max(work.open)]


class AmnesicBroker(Broker):
    """Forgets popped messages that are not acknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plant(self.pop.revive, "_copy", lambda pending, queue_id, now_ms: 0)


class DeafBroker(Broker):
    """Ignores acks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for queue in self.pop.revive.queues:
            plant(queue, "_note_ack", lambda ack: None)


class HurriedBroker(Broker):
    """Counts a check point as settled as soon as it is read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for queue in self.pop.revive.queues:
            plant(queue, "settled", queue.oldest)


class StillBroker(Broker):
    """Sometimes does not advance past popped messages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        move = self.offsets.move

        def move_mostly(group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
            if consumer_offset % 16:
                move(group, topic, queue_id, consumer_offset)

        plant(self.offsets, "move", move_mostly)


class OpenBroker(Broker):
    """Treats a queue that is popped in order as unblocked, one time in ten."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_closed = self.pop.orders.is_closed

        def is_mostly_closed(queue: PoppedQueue, attempt_id: str | None, invisible_ms: int, now_ms: int) -> bool:
            return now_ms % 10 != 0 and is_closed(queue, attempt_id, invisible_ms, now_ms)

        plant(self.pop.orders, "is_closed", is_mostly_closed)


class AbsentMember(BroadcastConsumer):
    """Jumps to the end of a queue after a while without messages from it."""

    def _pulled(self, work: Work, reply: RemotingCommand | None) -> None:
        if reply is None:
            self.offsets.pop(work.queue, None)
            self._ask_offset(work)
        else:
            super()._pulled(work, reply)


class UnsyncedMachine(SimBroker):
    STORE = UnsyncedStore


class ForgetfulMachine(SimBroker):
    STORE = ForgetfulStore


class HastyMachine(SimBroker):
    CORE = HastyBroker


class CarelessMachine(SimBroker):
    CORE = CarelessBroker


class LavishMachine(SimBroker):
    CORE = LavishBroker


class AmnesicMachine(SimBroker):
    CORE = AmnesicBroker


class DeafMachine(SimBroker):
    CORE = DeafBroker


class HurriedMachine(SimBroker):
    CORE = HurriedBroker


class StillMachine(SimBroker):
    CORE = StillBroker


class OpenMachine(SimBroker):
    CORE = OpenBroker


class UnsavedMachine(SimBroker):
    CORE = HastyTables


class Unsynced(Cluster):
    BROKER = UnsyncedMachine


class Forgetful(Cluster):
    BROKER = ForgetfulMachine


class HastyDelays(Cluster):
    BROKER = HastyMachine


class Unsaved(Cluster):
    BROKER = UnsavedMachine


class Careless(Cluster):
    BROKER = CarelessMachine

    def faults(self) -> Faults:
        """Cause no disk faults: each end of a process doubles the allowed copies of a message."""
        return replace(super().faults(), disk=Rates())


class HastyOffsets(Cluster):
    KINDS: ClassVar[Mapping[str, type[Member]]] = dict.fromkeys(CONCURRENT, HastyConsumer)


class SharedQueues(Cluster):
    BROKER = LavishMachine
    KINDS: ClassVar[Mapping[str, type[Member]]] = dict.fromkeys(("ledger", "journal"), OrderedConsumer)


class Disorder(Cluster):
    KINDS: ClassVar[Mapping[str, type[Member]]] = {"ledger": ImpatientConsumer}


class Popping(Cluster):
    KINDS: ClassVar[Mapping[str, type[Member]]] = {"parcels": PopConsumer}


class LostRevive(Popping):
    BROKER = AmnesicMachine


class LostAcks(Popping):
    BROKER = DeafMachine


class EarlyRevive(Popping):
    BROKER = HurriedMachine


class PoppedTwice(Popping):
    BROKER = StillMachine


class SkippedBroadcasts(Cluster):
    KINDS: ClassVar[Mapping[str, type[Member]]] = {"screens": AbsentMember}


class OpenQueues(Cluster):
    BROKER = OpenMachine
    KINDS: ClassVar[Mapping[str, type[Member]]] = {"crates": OrderedPopConsumer}


@dataclass(frozen=True, slots=True)
class Planted:
    """Bug name -> the cluster with the bug, and a word in the checker's report."""

    name: str
    cluster: type[Cluster]
    message: str
    first_seed: int = 0  # earlier lives do not show the bug, or take much longer


PLANTED = (
    Planted("skip the sync", Unsynced, "is lost"),
    Planted("wrong recovery point", Forgetful, "is lost"),
    Planted("answer before the table is saved", Unsaved, "and forgot it"),
    Planted("lost op message", Careless, "was committed", first_seed=5),
    Planted("offset before processing", HastyOffsets, "was not done with", first_seed=2),
    Planted("lock for two", SharedQueues, "were at work on"),
    Planted("out of order", Disorder, "before it was done with"),
    Planted("lost revive", LostRevive, "is not done with"),
    Planted("lost ack", LostAcks, "which it had acknowledged", first_seed=8),
    Planted("early revive", EarlyRevive, "before its time was up"),
    Planted("popped twice", PoppedTwice, "again at"),
    Planted("open queue", OpenQueues, " had "),
    Planted("skipped broadcast", SkippedBroadcasts, "skipped", first_seed=1),
    Planted("early delay", HastyDelays, "before its delay was over"),
)
