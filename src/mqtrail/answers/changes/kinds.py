"""The changes of messages and offsets, and the type of all changes.

Each says what it would do (`plan`) and does it part by part (`perform`). Its fields are parameters of pages, of the
HTTP API and of the audit log. The field `action` distinguishes changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

from mqtrail.client import END_MS_MAX, Gathered, SyncAdmin
from mqtrail.wire import (
    END_MS,
    FIRST_MS,
    MessageExt,
    MessageQueue,
    QueueOffsets,
    RequestCode,
    place_text,
    resend_target,
)

from .edited_kinds import ResendEdited
from .group_kinds import DeleteGroup, SetGroup
from .model import ChangeOutcome, ChangeStep, Fate, InvalidChange, NothingToChange, Planned
from .offset_kinds import CloneOffsets, SetOffset, step_of
from .setting_kinds import SetBrokerSettings
from .stored import message_at, outcome_of
from .topic_kinds import DeleteTopic, SetTopic
from .waiting_kinds import RecallMessage, ResumeChecks, SetConsumeMode

LETTERS_MAX: Final = 1_000  # of one change


class Plannable(Protocol):
    """A change. plan and perform raise MQError if the cluster cannot be asked, InvalidChange for a wrong field."""

    @property
    def action(self) -> str: ...

    @property
    def requests(self) -> tuple[RequestCode, ...]:
        """The requests that make the change on the cluster."""

    @property
    def is_moving(self) -> bool:
        """Whether the values before and after move by themselves, so that a plan cannot bind to them."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command that does the same, without --namesrv; () where there is none."""

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the parts. Nothing is changed."""

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Perform the change; yield the outcome of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsets:
    """Move a group on a topic to the first message stored at or after a time (0: the first; -1: the end).

    is_backward_only: move no queue forward. queue_id: only this queue of each broker (brokers 5.x).
    """

    group: str
    topic: str
    at_ms: int
    is_backward_only: bool = False
    queue_id: int | None = None
    action: Literal["reset-offsets"] = "reset-offsets"
    # 15 goes to brokers before 5.0 if no member is online.
    requests: ClassVar[tuple[RequestCode, ...]] = (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    )
    is_moving: ClassVar[bool] = True  # members commit, and queues grow

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail offset reset`."""
        to = {FIRST_MS: "first", END_MS: "end"}.get(self.at_ms, f"{self.at_ms:012d}")
        options = [*(["--no-skip"] if self.is_backward_only else [])]
        options += ["--queue", str(self.queue_id)] if self.queue_id is not None else []
        return "mqtrail", "offset", "reset", self.group, self.topic, "--to", to, *options

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the offset of each queue before and after, and how many messages are skipped or repeated."""
        if not END_MS <= self.at_ms <= END_MS_MAX:
            raise InvalidChange(
                f"at_ms: found {self.at_ms}, expected epoch ms, 0 for the first message or -1 for the end"
            )
        planned = admin.plan_reset(
            self.group, self.topic, self.at_ms, force=not self.is_backward_only, queue_id=self.queue_id
        )
        moves = sorted(planned.values(), key=lambda move: (move.queue.broker_name, move.queue.queue_id))
        return Planned([step_of(move) for move in moves], _failures(planned))

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Move it; an outcome for each broker, with the new offsets that it answers."""
        done = admin.reset_offset(
            self.group, self.topic, self.at_ms, force=not self.is_backward_only, queue_id=self.queue_id
        )
        yield from _by_broker(done)


def _by_broker(done: Gathered[QueueOffsets]) -> Iterator[ChangeOutcome]:
    for name, found in done.found.items():
        offsets = sorted((queue.queue_id, offset) for queue, offset in found.offset_table.items())
        yield ChangeOutcome(name, Fate.DONE, ", ".join(f"{queue_id}: {offset}" for queue_id, offset in offsets))
    for name, error in done.failures.items():
        yield ChangeOutcome.of_error(name, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDeadLetters:
    """Send dead letters of a group again with their ids, each id once. Nothing is removed from the dead-letter queue.

    msg_ids: only these; none: the first count_max. is_to_topic: to the topics that they were first sent to, so that
    all groups get them; else to the group alone.
    """

    group: str
    msg_ids: tuple[str, ...] = ()
    is_to_topic: bool = False
    count_max: int = LETTERS_MAX
    action: Literal["resend-dead-letters"] = "resend-dead-letters"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.SEND_MESSAGE_V2,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail message resend`."""
        options = [word for msg_id in self.msg_ids for word in ("--id", msg_id)]
        options += [] if self.msg_ids else ["--limit", str(self.count_max)]
        return "mqtrail", "message", "resend", self.group, *options, *(["--to-topic"] if self.is_to_topic else [])

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return each letter with its place and the topic that it is sent to. NothingToChange: there is none."""
        wanted = self._wanted()
        letters = list(admin.dead_letters(self.group, msg_ids=wanted, count_max=self.count_max))
        missing = sorted((wanted or frozenset()) - {one.msg_id for one in letters})
        if not letters:
            raise NothingToChange(f"found no dead letter of group {self.group!r}{' with these ids' if wanted else ''}")
        steps = [
            ChangeStep(one.msg_id, place_of(one), resend_target(one, self.group, to_topic=self.is_to_topic))
            for one in letters
        ]
        return Planned(steps, [f"{msg_id}: group {self.group!r} has no such dead letter" for msg_id in missing])

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Send one after the other."""
        for one in admin.resend_dead_letters(
            self.group, msg_ids=self._wanted(), to_topic=self.is_to_topic, count_max=self.count_max
        ):
            yield outcome_of(one)

    def _wanted(self) -> frozenset[str] | None:
        if not 0 < self.count_max <= LETTERS_MAX or len(self.msg_ids) > LETTERS_MAX:
            raise InvalidChange(f"found more than {LETTERS_MAX} dead letters, or none, expected 1 to {LETTERS_MAX}")
        return frozenset(self.msg_ids) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendMessage:
    """Send a copy of a stored message again with its id. place: broker/topic/queue@offset of the stored message.

    is_to_topic: to the topic that it was first sent to, so that all groups get it; else to the group alone.
    """

    place: str
    group: str
    is_to_topic: bool = False
    action: Literal["resend-message"] = "resend-message"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.SEND_MESSAGE_V2,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """(): no command sends a message of a place again."""
        return ()

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the message with its place and the topic that it is sent to."""
        found = message_at(admin, self.place)
        target = resend_target(found, self.group, to_topic=self.is_to_topic)
        admin.route(target)
        return Planned([ChangeStep(found.msg_id, self.place, target)])

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Send it."""
        yield outcome_of(admin.resend_message(message_at(admin, self.place), self.group, to_topic=self.is_to_topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeDirectly:
    """Have one live member of a group consume a stored message now; no offset is committed.

    place: broker/topic/queue@offset of the stored message.
    """

    place: str
    group: str
    client_id: str
    action: Literal["consume-directly"] = "consume-directly"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.CONSUME_MESSAGE_DIRECTLY,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """(): the command takes an id."""
        return ()

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the member and the message. NothingToChange: the member is not online."""
        found = message_at(admin, self.place)
        gathered = admin.group_connections(self.group)
        online = {one.client_id for known in gathered.values() for one in known.connection_set}
        if self.client_id not in online and not gathered.failures:
            known = ", ".join(sorted(online)) or "none is online"
            raise NothingToChange(
                f"found no member {self.client_id!r} of group {self.group!r}, expected one of: {known}"
            )
        return Planned([ChangeStep(self.client_id, None, f"{found.msg_id} {self.place}")], _failures(gathered))

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Make the client consume the message; its result is in the detail."""
        done = admin.consume_directly(message_at(admin, self.place), self.group, client_id=self.client_id)
        for name, found in done.found.items():
            fate = Fate.DONE if found.consume_result == "CR_SUCCESS" else Fate.FAILED
            remark = f": {found.remark}" if found.remark else ""
            yield ChangeOutcome(name, fate, f"{found.consume_result} after {found.spent_time_mills} ms{remark}")
        for name, error in done.failures.items():
            yield ChangeOutcome.of_error(name, error)


Change: TypeAlias = (
    ResetOffsets
    | CloneOffsets
    | SetOffset
    | ResendDeadLetters
    | ResendMessage
    | ResendEdited
    | ConsumeDirectly
    | SetTopic
    | DeleteTopic
    | SetGroup
    | DeleteGroup
    | SetBrokerSettings
    | SetConsumeMode
    | RecallMessage
    | ResumeChecks
)
"""Every change. `action` distinguishes them."""


def place_of(message: MessageExt) -> str:
    """Return broker/topic/queue@offset of a stored message."""
    return place_text(MessageQueue(message.topic, message.broker_name, message.queue_id), message.queue_offset)


def _failures(gathered: Gathered[Any]) -> list[str]:
    return [f"{name}: {error}" for name, error in gathered.failures.items()]
