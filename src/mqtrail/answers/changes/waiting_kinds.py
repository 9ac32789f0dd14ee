"""Changes of what waits inside brokers: timers are recalled, half messages checked again, groups pop or pull."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from mqtrail.client import SyncAdmin
from mqtrail.wire import (
    DLQ_PREFIX,
    PROPERTY_PGROUP,
    RETRY_PREFIX,
    TRANS_CHECK_MAX_TIME_TOPIC,
    MessageExt,
    MQError,
    RecallHandle,
    RequestCode,
    is_business_group,
    is_system_topic,
    validate_group,
    validate_topic,
)

from ..masters import masters_of
from ..model import moment_text
from .model import ChangeOutcome, ChangeStep, Fate, InvalidChange, NothingToChange, Planned, raise_failure
from .stored import message_at

HALF_MESSAGES_MAX: Final = 100  # of one change
SHARED_MAX: Final = 1_000  # queues that a member pops


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessage:
    """Have a broker not deliver a timer. due_ms: when it is due, as the list of what waits says.

    Brokers cannot recall what waits at a delay level.
    """

    topic: str
    broker: str
    msg_id: str
    due_ms: int
    action: Literal["recall-message"] = "recall-message"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.RECALL_MESSAGE,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail message recall`."""
        return "mqtrail", "message", "recall", self.topic, self._handle().encode()

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the message; a warning if it was not found among those that wait. NothingToChange: it is recalled."""
        self._check(admin)
        brokers, problems = admin.delays()
        found = [
            one
            for each in brokers
            for one in each.messages
            if (one.broker_name, one.topic, one.msg_id) == (self.broker, self.topic, self.msg_id)
        ]
        if any(one.is_recalled for one in found):
            raise NothingToChange(f"{self.msg_id} is recalled already")
        if any(one.level is not None for one in found):
            raise InvalidChange(
                f"{self.msg_id} waits at a delay level, expected a timer: brokers cannot recall from delay levels"
            )
        words = "found no such message among those that wait; the broker takes its recall all the same"
        due = moment_text(self.due_ms, "%Y-%m-%d %H:%M:%S")
        step = ChangeStep(self.msg_id, f"due {due} UTC", "not delivered")
        return Planned([step], problems, [] if found else [words])

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Recall it."""
        self._check(admin)
        try:
            admin.recall_message(self._handle())
        except (MQError, OSError) as error:
            yield ChangeOutcome.of_error(self.msg_id, error)
            return
        yield ChangeOutcome(self.msg_id, Fate.DONE)

    def _check(self, admin: SyncAdmin) -> None:
        validate_topic(self.topic)
        if is_system_topic(self.topic) or self.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise InvalidChange(
                f"found the topic {self.topic!r}, expected an application's: this one is RocketMQ's own"
            )
        if not self.msg_id or " " in self.msg_id:
            raise InvalidChange(f"msg_id: found {self.msg_id!r}, expected the id of a message")
        masters_of(admin, self.broker)

    def _handle(self) -> RecallHandle:
        return RecallHandle(self.topic, self.broker, self.due_ms, self.msg_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeChecks:
    """Have brokers ask again about half messages that they gave up. places: of TRANS_CHECK_MAX_TIME_TOPIC.

    A copy is put back, and its checks are counted from 0; the half message that was given up stays where it is.
    """

    places: tuple[str, ...]
    action: Literal["resume-checks"] = "resume-checks"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.RESUME_CHECK_HALF_MESSAGE,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail transaction resume`."""
        return "mqtrail", "transaction", "resume", *self.places

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the half messages; a warning for each group of producers that is not online: it cannot answer."""
        if not 0 < len(self.places) <= HALF_MESSAGES_MAX:
            raise InvalidChange(f"places: found {len(self.places)}, expected 1 to {HALF_MESSAGES_MAX}")
        waits = {half.msg_id for one in admin.half_messages()[0] for half in one.open or ()}
        steps, groups = [], set()
        for place in self.places:
            found = _given_up_at(admin, place)
            if found.msg_id in waits:
                raise NothingToChange(f"{found.msg_id} was put back already, and waits for the end of its transaction")
            steps.append(ChangeStep(found.msg_id, "given up", "asked about again"))
            groups.add(found.properties.get(PROPERTY_PGROUP, ""))
        producers = admin.producers()
        online = {name for table in producers.values() for name, known in table.data.items() if known}
        omissions = [f"producers at {name}: {error}" for name, error in producers.failures.items()]
        warnings = [
            f"group {group!r} has no producer online: its transactions are given up again unless one comes"
            for group in sorted(groups - online)
        ]
        return Planned(steps, omissions, warnings)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Put back one after the other."""
        for place in self.places:
            try:
                found = _given_up_at(admin, place)
                admin.resume_check(found)
            except (MQError, OSError) as error:
                yield ChangeOutcome.of_error(place, error)
                continue
            yield ChangeOutcome(found.msg_id, Fate.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConsumeMode:
    """Set whether a group pops a topic or pulls it (brokers 5.x).

    share_count: number of members whose queues each shares; 0: all pop all queues. broker: only on this one; '': on
    all masters.
    """

    group: str
    topic: str
    mode: Literal["PULL", "POP"]
    share_count: int = 0
    broker: str = ""
    action: Literal["set-consume-mode"] = "set-consume-mode"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.SET_MESSAGE_REQUEST_MODE,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail group mode`."""
        where = ("--broker", self.broker) if self.broker else ()
        share = ("--share", str(self.share_count)) if self.share_count else ()
        return "mqtrail", "group", "mode", self.group, self.topic, self.mode, *share, *where

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the mode on each broker afterwards; brokers do not tell the one before."""
        validate_group(self.group)
        validate_topic(self.topic)
        if not is_business_group(self.group):
            raise InvalidChange(
                f"found the group {self.group!r}, expected an application's: this one is RocketMQ's own"
            )
        if not 0 <= self.share_count <= SHARED_MAX:
            raise InvalidChange(f"share_count: found {self.share_count}, expected 0 to {SHARED_MAX}")
        steps = [ChangeStep(name, None, self._text()) for name in masters_of(admin, self.broker or None)]
        return Planned(steps, (), ["brokers do not report the mode before"])

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Set it on one broker after the other."""
        for name, address in masters_of(admin, self.broker or None).items():
            try:
                raise_failure(
                    admin.set_consume_mode(
                        self.group, self.topic, self.mode, pop_share_queue_num=self.share_count, broker=address
                    )
                )
            except (MQError, OSError) as error:
                yield ChangeOutcome.of_error(name, error)
                continue
            yield ChangeOutcome(name, Fate.DONE, self._text())

    def _text(self) -> str:
        return f"{self.mode}, queues of {self.share_count} members shared" if self.share_count else self.mode


def _given_up_at(admin: SyncAdmin, place: str) -> MessageExt:
    """Return the half message at a place. InvalidChange: it was not given up. NoMessage."""
    found = message_at(admin, place)
    if found.topic != TRANS_CHECK_MAX_TIME_TOPIC:
        raise InvalidChange(f"found the place {place!r}, expected one of {TRANS_CHECK_MAX_TIME_TOPIC}")
    return found
