"""What happened, as clients and operators saw it: all that the checker knows.

Messages are known by the number in their body. Times are virtual ms. A place is (broker, topic, queue id, offset).
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    broker: str
    topic: str
    queue_id: int
    offset: int


@dataclass(slots=True, eq=False)
class Sent:
    """A message that a producer sent, once or several times until it was acknowledged."""

    number: int
    producer: str
    topic: str
    at_ms: float
    delay_ms: int = 0
    is_timer: bool = False  # its delay is any time, and known to the second
    in_transaction: bool = False
    acked_ms: float | None = None
    acked_by: str = ""
    place: Place | None = None  # where the acknowledgement says it is; None for what waits
    decided: str = ""  # commit, rollback
    decided_ms: float | None = None
    waits: bool = True  # whether the answer waits for the flush
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """A record that somebody was given. reader: a group, or "audit" at the very end."""

    at_ms: float
    reader: str
    place: Place
    body: bytes
    number: int | None  # None: the body is none that anybody sent
    physical: int
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class Handled:
    """What a group did with a record. as_: "done"; "asked back" when the broker was asked to take it back, "sent back"
    once it has."""

    at_ms: float
    group: str
    place: Place
    number: int
    as_: str
    due_ms: float = 0.0  # of what was asked back: not to be seen again before


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """A group's offset as the broker told it."""

    at_ms: float
    group: str
    broker: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """A flush that succeeded: what was acknowledged before began_ms is on the disk."""

    began_ms: float
    at_ms: float
    broker: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A power cut."""

    at_ms: float
    broker: str


@dataclass(frozen=True, slots=True)
class Jump:
    """A broker's clock that was set, by so many ms."""

    at_ms: float
    broker: str
    by_ms: int


@dataclass(slots=True)
class History:
    """See the module. sync_flush: what the brokers promise. groups: subscriber groups, by topic."""

    sync_flush: bool
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sent: dict[int, Sent] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    offsets: list[OffsetSeen] = field(default_factory=list)
    flushed: list[Flushed] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)  # of processes, by broker
    jumps: list[Jump] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # damage that was told of
