"""The history: everything that clients and operators observed; the checker uses nothing else.

Messages are identified by the number in their body. Times are virtual ms. A place is (broker, topic, queue id, offset).
"""

from dataclasses import dataclass, field
from math import inf
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
    is_timer: bool = False  # its delay is arbitrary, with a precision of a second
    in_transaction: bool = False
    acked_ms: float | None = None
    acked_by: str = ""
    place: Place | None = None  # the acknowledged position; None for a delayed message
    decided: str = ""  # commit, rollback
    decided_ms: float | None = None
    waits: bool = True  # whether the reply waits for the flush
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """A record that was delivered. reader: a group, or "audit" at the very end."""

    at_ms: float
    reader: str
    place: Place
    body: bytes
    number: int | None  # None: no client sent this body
    physical: int
    reconsume_times: int
    stored_ms: int = 0  # by the broker's clock, relative like all times here


@dataclass(frozen=True, slots=True)
class Handled:
    """The result of a record in a group.

    as_: "done"; "asked back": a send-back was requested; "sent back": the broker acknowledged it.
    """

    at_ms: float
    group: str
    place: Place
    number: int
    as_: str
    due_ms: float = 0.0  # of a send-back: the earliest time of its return
    member: str = ""


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """A group's offset, as the broker returned it."""

    at_ms: float
    group: str
    broker: str
    topic: str
    queue_id: int
    offset: int


@dataclass(slots=True, eq=False)
class Worked:
    """One processing of a message by a member that keeps the order of its queue. to_ms: infinite while it runs."""

    group: str
    member: str
    place: Place
    number: int
    from_ms: float
    to_ms: float = inf


@dataclass(slots=True, eq=False)
class Locked:
    """A lock of a queue as the member knows it: when requested, when granted, and until when trusted."""

    group: str
    member: str
    broker: str
    topic: str
    queue_id: int
    asked_ms: float
    from_ms: float
    until_ms: float


@dataclass(slots=True, eq=False)
class Claim:
    """One handle of a popped message. at_ms: when it was received; None: requested, and whether it exists is unknown.

    visible_ms: when the message returns, by the broker's clock; the earliest possible time if that is unknown.
    """

    asked_ms: float
    at_ms: float | None
    visible_ms: float
    given_up_ms: float | None = None  # when an ack, or a change that makes another handle, was sent
    ended_ms: float | None = None  # when the broker confirmed that


@dataclass(slots=True, eq=False)
class Popped:
    """A message that a member got from a pop. in_order: the queue is blocked until it is acknowledged."""

    group: str
    member: str
    place: Place
    number: int
    reconsume_times: int
    in_order: bool
    at_ms: float
    pop_ms: float  # by the broker's clock
    claims: list[Claim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Begun:
    """The position at which a broadcasting member starts in a queue: queried at first, later from its disk."""

    member: str
    broker: str
    topic: str
    queue_id: int
    offset: int
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """A successful flush: messages acknowledged before began_ms are durable."""

    began_ms: float
    at_ms: float
    broker: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A power cut."""

    at_ms: float
    broker: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a broker's process, for any reason."""

    at_ms: float
    broker: str


@dataclass(frozen=True, slots=True)
class Jump:
    """A change of a broker's clock, in ms."""

    at_ms: float
    broker: str
    by_ms: int


@dataclass(slots=True)
class History:
    """See the module. sync_flush: what the brokers promise. groups: subscriber groups that share queues, by topic; and
    poppers, those that pop.

    broadcasts: members of broadcasting groups that lived to the end, with their topics. lock_ttl_ms: how long a lock
    of a queue lasts at a broker.
    """

    sync_flush: bool
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    poppers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sent: dict[int, Sent] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    offsets: list[OffsetSeen] = field(default_factory=list)
    flushed: list[Flushed] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    worked: list[Worked] = field(default_factory=list)
    locked: list[Locked] = field(default_factory=list)
    lock_ttl_ms: float = 0.0
    popped: list[Popped] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    broadcasts: dict[str, str] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)  # reported damage
    made: dict[str, dict[str, None]] = field(
        default_factory=dict
    )  # topics whose creation a broker acknowledged, by its name
    forgotten: list[str] = field(default_factory=list)  # sentences: topics that were missing after a start
