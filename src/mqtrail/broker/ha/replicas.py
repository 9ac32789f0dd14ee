"""What a master knows of its slaves: who is connected, how far each is, and up to where sends are replicated.

SYNC_MASTER, by the rule of 4.9 (in_sync_replicas is not set): a send waits for the fastest slave. If no slave is
connected and near the log's end, it is answered at once with SLAVE_NOT_AVAILABLE. By the rule of 5.x (in_sync_replicas
is set): it waits until so many replicas have it, this broker included; with 1 it does not wait.

Controller mode: with all_in_sync a send waits for all in-sync replicas (`in_sync`), else by the rule of 5.x for so many
of them. A slave shows what all in-sync replicas have, as far as its master has said.

DLedger group: a send waits until its entry is committed. Consumers can read only committed entries.
Source: GroupTransferService, CommitLog.handleHA, apache/rocketmq store/; 4.9 CommitLog.submitReplicaRequest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ..config import SYNC_MASTER, BrokerConfig
from .epoch_sender import EpochSender
from .epochs import Epochs
from .in_sync import InSyncSet
from .sender import LogSender, LogSource

EVERYTHING: Final = 1 << 62  # a position behind every log


class LogEnd(Protocol):
    """What replicas need of a store."""

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Replica:
    """A connected slave, for reports. address: of its connection. offsets: -1 before its first report. rate: bytes
    sent in the last second. broker_id, caught_up_ms: in controller mode, else None; the latter is the last time at
    which it had the whole log."""

    address: str
    acked_offset: int
    next_offset: int
    is_in_sync: bool
    rate: int
    broker_id: int | None = None
    caught_up_ms: int | None = None


@dataclass(slots=True)
class Following:
    """What a slave reports of its connection. master: address of its HA port. is_connected: it gets the log. Times are
    epoch ms, 0 before the first bytes. confirm_offset: in controller mode, up to there all in-sync replicas have the
    log; -1: the master has not said yet."""

    master: str = ""
    is_connected: bool = False
    read_ms: int = 0
    reported_ms: int = 0
    confirm_offset: int = -1


@dataclass(frozen=True, slots=True)
class LedgerState:
    """A member of a DLedger group, for metrics. election_count: how often it was elected since the start.

    uncommitted_size: bytes at the end of its log that it does not know to be committed.
    """

    term: int
    election_count: int
    uncommitted_size: int


class Replicas:
    """The connected slaves of one master, by the address of their connections.

    following: on a slave. epochs, on_role_changed: in controller mode; the latter is called when the master may have
    changed. in_sync: of a master in controller mode. committed_offset, ledger: in a DLedger group; members: the others,
    of its leader. role_changes: between master and slave since the process started.
    """

    def __init__(self, config: BrokerConfig, store: LogEnd) -> None:
        self.config = config
        self._store = store
        self._senders: dict[str, LogSender] = {}
        self.following = Following()
        self.epochs = Epochs()
        self.on_role_changed: Callable[[], None] = lambda: None
        self.in_sync: InSyncSet | None = None
        self.committed_offset: Callable[[], int] = lambda: 0
        self.members: Callable[[], list[Replica]] | None = None
        self.ledger: Callable[[], LedgerState] | None = None
        self.role_changes = 0
        self._confirmed = 0

    def sender(self, store: LogSource, now_ms: int) -> LogSender:
        """Return the master's end of a new connection."""
        if not self.config.controller_mode:
            return LogSender(store, self.config, now_ms)
        return EpochSender(store, self.config, now_ms, epochs=self.epochs, confirm_offset=lambda: self.confirm_offset)

    def add(self, address: str, sender: LogSender) -> None:
        """Note a new connection."""
        self._senders[address] = sender

    def remove(self, address: str) -> None:
        """Note a closed connection."""
        self._senders.pop(address, None)

    def __len__(self) -> int:
        return len(self._senders)

    def all(self, now_ms: int) -> list[Replica]:
        """Return the connected slaves, or the members that follow this leader."""
        if self.members is not None:
            return self.members()
        return [
            Replica(
                address,
                one.acked_offset,
                one.next_offset,
                self._is_near(one),
                one.rate(now_ms),
                *((one.broker_id, one.caught_up_ms) if isinstance(one, EpochSender) else ()),
            )
            for address, one in self._senders.items()
        ]

    def _is_near(self, sender: LogSender) -> bool:
        """Whether a slave counts as in sync: near the log's end; in controller mode one of the SyncStateSet."""
        if self.in_sync is not None:
            return isinstance(sender, EpochSender) and sender.broker_id in self.in_sync.ids
        return sender.acked_offset >= 0 and self._store.end_offset - sender.acked_offset < self.config.ha_gap_max

    @property
    def in_sync_count(self) -> int:
        """How many replicas are in sync and connected, this broker included."""
        if self.members is not None:
            return 1 + sum(one.is_in_sync for one in self.members())
        return 1 + sum(map(self._is_near, self._senders.values()))

    # SYNC_MASTER.

    @property
    def waits(self) -> bool:
        """Whether the answer of a send waits for slaves, or that of a read for what they have."""
        config = self.config
        if config.ledger_mode:
            return True
        if not config.controller_mode:
            return config.broker_role == SYNC_MASTER and config.in_sync_replicas != 1
        return not config.async_learner and (config.is_slave or config.all_in_sync or self._wanted_count > 1)

    @property
    def hides_unconfirmed(self) -> bool:
        """Whether no one may read what is not replicated, however long that takes."""
        config = self.config
        return config.controller_mode and (config.is_slave or config.all_in_sync)

    @property
    def is_missing(self) -> bool:
        """Whether sends are answered with SLAVE_NOT_AVAILABLE now, instead of waiting."""
        config = self.config
        has_classic_slaves = not config.controller_mode and not config.ledger_mode
        return has_classic_slaves and config.in_sync_replicas is None and self.in_sync_count == 1

    @property
    def replicated_offset(self) -> int:
        """The physical offset up to which enough slaves have the log; -1: there are too few slaves."""
        if self.config.ledger_mode:
            return self.committed_offset()
        if self.hides_unconfirmed:
            return self.following.confirm_offset if self.config.is_slave else self.confirm_offset
        needed = self._needed_count
        if needed < 1:
            return EVERYTHING
        ends = (one.acked_offset for one in self._senders.values()) if self.in_sync is None else self._in_sync_ends()
        acked = sorted(ends, reverse=True)
        return acked[needed - 1] if needed <= len(acked) else -1

    @property
    def _needed_count(self) -> int:
        """How many slaves must have a message before its send is answered."""
        needed = self._wanted_count
        if self.config.auto_in_sync_replicas:
            needed = min(needed, self.in_sync_count)
        return needed - 1

    @property
    def _wanted_count(self) -> int:
        """How many replicas must have a message, this broker included, by the settings."""
        needed = self.config.in_sync_replicas
        if needed is None:
            return 1 if self.config.controller_mode else 2
        return needed

    # Controller mode.

    @property
    def confirm_offset(self) -> int:
        """The physical offset up to which all in-sync replicas have the log. It never goes back.

        Under SYNC_FLUSH it is durable at this broker too: slaves show their readers what is below it.
        """
        own = self._store.flushed_offset if self.config.sync_flush else self._store.end_offset
        self._confirmed = max(self._confirmed, min([own, *self._in_sync_ends()]))
        return self._confirmed

    @property
    def has_enough(self) -> bool:
        """Whether the in-sync replicas are enough to take sends."""
        return self.in_sync is None or len(self.in_sync.ids) >= self.config.min_in_sync_replicas

    def review(self, now_ms: int) -> frozenset[int] | None:
        """Return the in-sync replicas to ask the controller for; None: the present ones are right."""
        if self.in_sync is None:
            return None
        slaves = self._slaves_by_id().values()
        return self.in_sync.review(slaves, self._store.end_offset, self.confirm_offset, now_ms)

    def _slaves_by_id(self) -> dict[int, EpochSender]:
        """Return the connected slaves of controller mode: of several connections of one the newest."""
        return {one.broker_id: one for one in self._senders.values() if isinstance(one, EpochSender)}

    def _in_sync_ends(self) -> list[int]:
        """Return how far each slave is that sends wait for; -1: it is not connected."""
        if self.in_sync is None:
            return []
        slaves = self._slaves_by_id()
        return [slaves[one].acked_offset if one in slaves else -1 for one in self.in_sync.counted]
