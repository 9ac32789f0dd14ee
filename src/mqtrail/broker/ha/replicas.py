"""What a master knows of its slaves: who is connected, how far each is, and up to where sends are replicated.

SYNC_MASTER, by the rule of 4.9 (in_sync_replicas is not set): a send waits for the fastest slave. If no slave is
connected and near the log's end, it is answered at once with SLAVE_NOT_AVAILABLE. By the rule of 5.x (in_sync_replicas
is set): it waits until so many replicas have it, this broker included; with 1 it does not wait.
Source: GroupTransferService, CommitLog.handleHA, apache/rocketmq store/; 4.9 CommitLog.submitReplicaRequest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ..config import SYNC_MASTER, BrokerConfig
from .epochs import Epochs
from .sender import LogSender

EVERYTHING: Final = 1 << 62  # a position behind every log


class LogEnd(Protocol):
    """What replicas need of a store."""

    @property
    def end_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Replica:
    """A connected slave, for reports. address: of its connection. offsets: -1 before its first report. rate: bytes
    sent in the last second."""

    address: str
    acked_offset: int
    next_offset: int
    is_in_sync: bool
    rate: int


@dataclass(slots=True)
class Following:
    """What a slave reports of its connection. master: address of its HA port. is_connected: it gets the log. Times are
    epoch ms, 0 before the first bytes."""

    master: str = ""
    is_connected: bool = False
    read_ms: int = 0
    reported_ms: int = 0


class Replicas:
    """The connected slaves of one master, by the address of their connections.

    following: on a slave. epochs, on_role_changed: in controller mode; the latter is called when the master may have
    changed.
    """

    def __init__(self, config: BrokerConfig, store: LogEnd) -> None:
        self.config = config
        self._store = store
        self._senders: dict[str, LogSender] = {}
        self.following = Following()
        self.epochs = Epochs()
        self.on_role_changed: Callable[[], None] = lambda: None

    def add(self, address: str, sender: LogSender) -> None:
        """Note a new connection."""
        self._senders[address] = sender

    def remove(self, address: str) -> None:
        """Note a closed connection."""
        self._senders.pop(address, None)

    def __len__(self) -> int:
        return len(self._senders)

    def all(self, now_ms: int) -> list[Replica]:
        """Return the connected slaves."""
        return [
            Replica(address, one.acked_offset, one.next_offset, self._is_near(one), one.rate(now_ms))
            for address, one in self._senders.items()
        ]

    def _is_near(self, sender: LogSender) -> bool:
        return sender.acked_offset >= 0 and self._store.end_offset - sender.acked_offset < self.config.ha_gap_max

    @property
    def in_sync_count(self) -> int:
        """How many replicas are near the log's end, this broker included."""
        return 1 + sum(map(self._is_near, self._senders.values()))

    # SYNC_MASTER.

    @property
    def waits(self) -> bool:
        """Whether the answer of a send waits for slaves."""
        return self.config.broker_role == SYNC_MASTER and self.config.in_sync_replicas != 1

    @property
    def is_missing(self) -> bool:
        """Whether sends are answered with SLAVE_NOT_AVAILABLE now, instead of waiting."""
        return self.config.in_sync_replicas is None and self.in_sync_count == 1

    @property
    def replicated_offset(self) -> int:
        """The physical offset up to which enough slaves have the log; -1: there are too few slaves."""
        needed = self._needed_count
        if needed < 1:
            return EVERYTHING
        acked = sorted((one.acked_offset for one in self._senders.values()), reverse=True)
        return acked[needed - 1] if needed <= len(acked) else -1

    @property
    def _needed_count(self) -> int:
        """How many slaves must have a message before its send is answered."""
        needed = self.config.in_sync_replicas
        if needed is None:
            return 1
        if self.config.auto_in_sync_replicas:
            needed = min(needed, self.in_sync_count)
        return needed - 1
