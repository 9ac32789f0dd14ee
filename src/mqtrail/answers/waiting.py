"""Answers about what waits inside brokers: messages for their time, transactions for their end, popped messages for
their acknowledgement; how many copies a group's retry and dead-letter topics store. Read-only.

What a broker does not report, and what was not read, is an omission of the answer's scope, and unknown in its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mqtrail.client import BrokerHalfMessages, DelayedMessage, HalfMessage, RouteNotFound, SyncAdmin
from mqtrail.clock import now_ms
from mqtrail.wire import MQError, dlq_topic, place_text, retry_topic

from .model import Scope
from .operations import cluster_scope

ROWS_DEFAULT: Final = 100  # messages of one list of an answer
_DUE_BOUNDS_MS: Final = (60_000, 600_000, 3_600_000, 43_200_000, 86_400_000)


@dataclass(frozen=True, slots=True)
class DueCount:
    """How many of the messages that were read are due within a time from now, and after the one before it.

    within_ms None: later.
    """

    within_ms: int | None
    message_count: int


@dataclass(frozen=True, slots=True)
class DelayLevelRow:
    """The messages that wait at a delay level of a broker."""

    broker: str
    level: int
    delay_ms: int
    message_count: int


@dataclass(frozen=True, slots=True)
class TimerCountRow:
    """The timers of a topic on a broker, as the broker counts them."""

    broker: str
    topic: str
    message_count: int


@dataclass(frozen=True, slots=True)
class DelayedAnswer:
    """Messages that wait for their time. messages: those due next, first; read_count: how many were read.

    waiting_count: of all; None: unknown of every broker. is_lower_bound: unknown of some.
    """

    scope: Scope
    waiting_count: int | None
    is_lower_bound: bool
    read_count: int
    due: tuple[DueCount, ...]
    levels: tuple[DelayLevelRow, ...]
    timers: tuple[TimerCountRow, ...]
    messages: tuple[DelayedMessage, ...]


@dataclass(frozen=True, slots=True)
class HalfRow:
    """A half message. place: of this copy. checks_left: how often its producer is asked again; None: unknown.

    is_waiting: its transaction is open; None: unknown.
    """

    broker: str
    msg_id: str
    topic: str
    producer_group: str
    keys: str
    born_ms: int
    check_count: int
    checks_left: int | None
    place: str
    is_waiting: bool | None


@dataclass(frozen=True, slots=True)
class TransactionsRow:
    """The transactions of a master. None: unknown. oldest_ms: when its oldest open half message was born.

    given_up_count: half messages that the broker gave up asking about and still keeps, also those put back since.
    """

    broker: str
    open_count: int | None
    oldest_ms: int | None
    given_up_count: int | None
    check_count_max: int | None
    check_interval_ms: int | None
    timeout_ms: int | None
    why: str


@dataclass(frozen=True, slots=True)
class TransactionsAnswer:
    """Half messages without an end: the oldest first. given_up: those that brokers gave up, the latest first."""

    scope: Scope
    brokers: tuple[TransactionsRow, ...]
    open: tuple[HalfRow, ...]
    given_up: tuple[HalfRow, ...]


@dataclass(frozen=True, slots=True)
class PopsRow:
    """The pops on a master. None: unknown. handed_out_count: messages that are not acknowledged.

    behind_count, behind_ms: records that are due, and since when: such messages become visible late.
    """

    broker: str
    handed_out_count: int | None
    behind_count: int | None
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class PoppedGroupRow:
    """What members of a group hold of a topic. first_popped_ms: the oldest pop; next_visible_ms: the next to return."""

    group: str
    topic: str
    message_count: int
    first_popped_ms: int
    next_visible_ms: int


@dataclass(frozen=True, slots=True)
class PoppedRow:
    """A message that a pop handed out. visible_ms: when another member gets it, unless it is acknowledged before."""

    group: str
    topic: str
    place: str
    popped_ms: int
    visible_ms: int


@dataclass(frozen=True, slots=True)
class PopsAnswer:
    """Popped messages that are not acknowledged. messages: those that return next, first."""

    scope: Scope
    brokers: tuple[PopsRow, ...]
    groups: tuple[PoppedGroupRow, ...]
    messages: tuple[PoppedRow, ...]


def delayed(admin: SyncAdmin, namesrv: str, row_count: int = ROWS_DEFAULT) -> DelayedAnswer:
    """Return the messages that wait for their time. MQError: no name server answers, or none knows a master."""
    admin.targets()
    brokers, problems = admin.delays()
    at_ms = now_ms()
    messages = sorted(
        (one for broker in brokers for one in broker.messages), key=lambda one: (one.due_ms, one.topic, one.msg_id)
    )
    levels = [
        DelayLevelRow(one.broker_name, level.level, level.delay_ms, level.message_count)
        for one in brokers
        for level in one.levels or ()
    ]
    timers = [
        TimerCountRow(one.broker_name, topic, count) for one in brokers for topic, count in (one.timers or {}).items()
    ]
    counts = [*(one.message_count for one in levels), *(one.message_count for one in timers)]
    is_known = [known is not None for one in brokers for known in (one.levels, one.timers)]
    return DelayedAnswer(
        cluster_scope(namesrv, problems, at_ms),
        sum(counts) if any(is_known) else None,
        not all(is_known),
        len(messages),
        _due(messages, at_ms),
        tuple(levels),
        tuple(timers),
        tuple(messages[:row_count]),
    )


def _due(messages: Iterable[DelayedMessage], at_ms: int) -> tuple[DueCount, ...]:
    counts = Counter(
        next((bound for bound in _DUE_BOUNDS_MS if one.due_ms - at_ms <= bound), None)
        for one in messages
        if not one.is_recalled
    )
    return tuple(DueCount(bound, counts[bound]) for bound in (*_DUE_BOUNDS_MS, None))


def transactions(admin: SyncAdmin, namesrv: str, row_count: int = ROWS_DEFAULT) -> TransactionsAnswer:
    """Return the half messages that wait for the end of their transaction. MQError as of `delayed`."""
    admin.targets()
    brokers, problems = admin.half_messages()
    found = sorted((_half(one, half) for one in brokers for half in one.open or ()), key=lambda row: row.born_ms)
    given_up = [(half.stored_ms, _given_up(one, half)) for one in brokers for half in one.given_up or ()]
    given_up.sort(key=lambda each: -each[0])
    return TransactionsAnswer(
        cluster_scope(namesrv, problems),
        tuple(_transactions_row(one) for one in brokers),
        tuple(found[:row_count]),
        tuple(row for _, row in given_up[:row_count]),
    )


def _transactions_row(one: BrokerHalfMessages) -> TransactionsRow:
    return TransactionsRow(
        one.broker_name,
        None if one.open is None else len(one.open),
        min((half.born_ms for half in one.open or ()), default=None),
        one.given_up_count,
        one.check_count_max,
        one.check_interval_ms,
        one.timeout_ms,
        one.why,
    )


def _half(broker: BrokerHalfMessages, half: HalfMessage) -> HalfRow:
    left = None if broker.check_count_max is None else max(0, broker.check_count_max - half.check_count)
    return HalfRow(
        broker.broker_name,
        half.msg_id,
        half.topic,
        half.producer_group,
        half.keys,
        half.born_ms,
        half.check_count,
        left,
        place_text(half.queue, half.queue_offset),
        True,
    )


def _given_up(broker: BrokerHalfMessages, half: HalfMessage) -> HalfRow:
    waits = None if broker.open is None else half.msg_id in {one.msg_id for one in broker.open}
    return replace(_half(broker, half), checks_left=0, is_waiting=waits)


def pops(admin: SyncAdmin, namesrv: str, row_count: int = ROWS_DEFAULT) -> PopsAnswer:
    """Return the popped messages that are not acknowledged. MQError as of `delayed`."""
    admin.targets()
    brokers, problems = admin.pops()
    messages: list[PoppedRow] = []
    rows = []
    for one in brokers:
        held = [(pop, offset) for pop in one.handed_out or () for offset in pop.offsets]
        rows.append(
            PopsRow(one.broker_name, None if one.handed_out is None else len(held), one.behind_count, one.behind_ms)
        )
        for pop, offset in held:
            place = f"{pop.broker_name}/{pop.topic}/{pop.queue_id}@{offset}"
            messages.append(PoppedRow(pop.group, pop.topic, place, pop.popped_ms, pop.visible_ms))
    messages.sort(key=lambda row: (row.visible_ms, row.place))
    return PopsAnswer(
        cluster_scope(namesrv, problems), tuple(rows), _popped_groups(messages), tuple(messages[:row_count])
    )


def _popped_groups(messages: Sequence[PoppedRow]) -> tuple[PoppedGroupRow, ...]:
    held: dict[tuple[str, str], list[PoppedRow]] = {}
    for one in messages:
        held.setdefault((one.group, one.topic), []).append(one)
    rows = [
        PoppedGroupRow(*of, len(found), min(one.popped_ms for one in found), min(one.visible_ms for one in found))
        for of, found in held.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.message_count, row.group, row.topic)))


@dataclass(frozen=True, slots=True)
class GroupCopies:
    """How many copies the retry and the dead-letter topic of a group store on the registered brokers.

    None: unknown. 0: none, or there is no such topic.
    """

    retry_count: int | None
    dead_letter_count: int | None


def group_copies(admin: SyncAdmin, group: str, omissions: list[str]) -> GroupCopies:
    """Return the counts of a group; what is not known is a sentence more among the omissions."""
    return GroupCopies(*(_stored_count(admin, topic, omissions) for topic in (retry_topic(group), dlq_topic(group))))


def _stored_count(admin: SyncAdmin, topic: str, omissions: list[str]) -> int | None:
    try:
        queues = admin.queues(topic)
        if queues:
            return sum(max(0, admin.max_offset(one) - max(0, admin.min_offset(one))) for one in queues)
        why = "no broker lets it be read"
    except RouteNotFound:
        return 0
    except (MQError, OSError) as error:
        why = str(error)
    omissions.append(f"messages of {topic} are not counted: {why}")
    return None
