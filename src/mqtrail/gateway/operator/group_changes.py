"""Changes of groups: create, pause, resume, delete, move offsets, send dead letters again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from mqtrail.wire import (
    END_MS,
    PROPERTY_RETRY_TOPIC,
    DeleteGroupHeader,
    MessageExt,
    MQError,
    QueueOffsets,
    RequestCode,
    ResetOffsetHeader,
    SubscriptionGroupConfig,
    dlq_topic,
    is_business_group,
    is_business_topic,
    origin_topic,
    popped_topic,
    resend_target,
    resent_copy,
    validate_group,
)

from ..member_names import is_of_member, origin_of, taker_of
from ..pmq import FAILURE_TRIES, MODE, RETRY_COUNT, QueueName, failure_topic, is_broadcast, tries_of
from ..problems import Problem
from .plans import (
    ChangeContext,
    OperatedFate,
    OperatedOutcome,
    OperatedPlan,
    OperatedStep,
    outcome_of_error,
    refusal,
    wrong,
)

LETTERS_MAX: Final = 1_000  # of one change
SCANNED_MAX: Final = 20_000  # messages of a failure topic that one change looks at
PULL_COUNT: Final = 32

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


def text_of(config: SubscriptionGroupConfig) -> str:
    """Return what an operator may change of a group."""
    mode = ", broadcast" if is_broadcast(config) else ""
    return f"{'runs' if config.consume_enable else 'paused'}, retries {config.retry_max_times}{mode}"


def _check(group: str) -> None:
    validate_group(group)
    if not is_business_group(group):
        raise wrong(f"found the group {group!r}, expected an application's: this one is RocketMQ's own")
    if is_of_member(group):
        raise wrong(f"found the group {group!r} of a member, expected one without: change {origin_of(group)}")


async def _write(context: ChangeContext, config: SubscriptionGroupConfig) -> OperatedOutcome:
    """Write a group's configuration; the outcome is what the broker has then."""
    name = config.group_name
    try:
        mode = {f"+{MODE}": config.attributes[MODE]} if MODE in config.attributes else {}
        body = msgspec.structs.replace(config, attributes=mode).encode()  # the other ones stay
        await context.broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        found = await context.broker.known_group(name)
        await context.pmq.members.settings_changed(found, context.broker)
    except (MQError, TimeoutError) as error:
        return outcome_of_error(name, error)
    context.pmq.settings_changed(name)
    fate = OperatedFate.DONE if text_of(found) == text_of(config) else OperatedFate.FAILED
    return OperatedOutcome(name, fate, text_of(found))


class GroupCreation(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="create-group"):
    """Create a group, or change its number of retries. Its other settings are kept.

    mode: for pmq's own clients that register from now on: whether each message goes to one of them, or to each one;
    None: as it is, or cluster.
    """

    group: Name
    retries_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 16
    mode: Literal["cluster", "broadcast"] | None = None
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """Return it before and after."""
        _check(self.group)
        known = await context.broker.group(self.group)
        before = None if known is None else text_of(known)
        return OperatedPlan([OperatedStep(self.group, before, text_of(self._wanted(known)))])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Write it."""
        yield await _write(context, self._wanted(await context.broker.group(self.group)))

    def _wanted(self, known: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
        known = known or SubscriptionGroupConfig(self.group)
        attributes = known.attributes if self.mode is None else {**known.attributes, MODE: self.mode}
        return msgspec.structs.replace(known, retry_max_times=self.retries_max, attributes=attributes)


class GroupPause(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="pause-group"):
    """Stop or resume the delivery of messages to a group. Its offsets stay."""

    group: Name
    paused: bool
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """SubscriptionGroupNotExist."""
        _check(self.group)
        known = await context.broker.known_group(self.group)
        return OperatedPlan([OperatedStep(self.group, text_of(known), text_of(self._wanted(known)))])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Write it."""
        yield await _write(context, self._wanted(await context.broker.known_group(self.group)))

    def _wanted(self, known: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        return msgspec.structs.replace(known, consume_enable=not self.paused)


class GroupDeletion(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="delete-group"):
    """Delete a group with its offsets. force: also while members are online."""

    group: Name
    force: bool = False
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.DELETE_SUBSCRIPTIONGROUP,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """SubscriptionGroupNotExist. Problem: members are online."""
        _check(self.group)
        known = await context.broker.known_group(self.group)
        count = len((await context.broker.online(self.group)).connection_set) + context.pmq.online_of(self.group)
        if count and not self.force:
            raise refusal(f"found {count} members of {self.group} online, expected none: stop them, or set force")
        stats = (await context.broker.places()).consume_stats.get(self.group, ())
        places = [at for one in stats for at in one.offset_table.values()]
        counts: dict[str, int | None] = {
            "offsets": len(places),
            "pending": sum(max(0, at.broker_offset - at.consumer_offset) for at in places),
        }
        return OperatedPlan([OperatedStep(self.group, text_of(known), "-", counts)])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Delete it."""
        header = DeleteGroupHeader(self.group, clean_offset=True, remove_offset=True)
        try:
            await context.broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext())
        except (MQError, TimeoutError) as error:
            yield outcome_of_error(self.group, error)
            return
        for member in context.pmq.members.of(self.group):
            context.pmq.members.leave(member)
        yield OperatedOutcome(self.group, OperatedFate.DONE)


class OffsetMove(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="set-offsets"):
    """Move a group on a topic. at_ms: to the first message stored at or after a time (0: the first; -1: the end).

    offset: to this one instead, of one queue. queue: only this one; None: all.
    """

    group: Name
    topic: Name
    at_ms: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    queue: Annotated[int, msgspec.Meta(ge=0)] | None = None
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """Return the offset of each queue before and after, and how many messages are skipped or delivered again.

        TopicNotExist, SubscriptionGroupNotExist. Problem: a parameter is wrong.
        """
        if (self.at_ms is None) == (self.offset is None) or (self.offset is not None and self.queue is None):
            raise wrong("found neither or both of at_ms and offset, or offset without queue, expected one: correct it")
        await context.broker.known_topic(self.topic)
        await context.broker.known_group(self.group)
        steps = []
        for number, reach in (await context.broker.reaches(self.topic)).items():
            if self.queue not in (None, number):
                continue
            name = QueueName(self.topic, number)
            target = self.offset
            if target is None:
                target = (
                    reach.max_offset if self.at_ms == END_MS else await context.broker.offset_at(name, self.at_ms or 0)
                )
            if not reach.min_offset <= target <= reach.max_offset:
                raise wrong(
                    f"found the offset {target}, expected {reach.min_offset} to {reach.max_offset} in queue {number}"
                )
            now = await context.broker.offset_of(self.group, name)
            counts: dict[str, int | None] = {"skipped": None, "repeated": None}
            if now is not None:
                counts["skipped"] = max(0, target - max(now, reach.min_offset))
                counts["repeated"] = max(0, now - max(target, reach.min_offset))
            steps.append(OperatedStep(f"{self.topic}/{number}", None if now is None else str(now), str(target), counts))
        if not steps:
            raise wrong(
                f"found queue {self.queue}, expected one of {self.topic}: list them with `mqtrail pmq queue list`"
            )
        return OperatedPlan(steps)

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Move it; an outcome for each queue."""
        header = ResetOffsetHeader(
            self.topic, self.group, -1 if self.at_ms is None else self.at_ms, True, self.queue, self.offset
        )
        try:
            reply = await context.broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
        except (MQError, TimeoutError) as error:
            yield outcome_of_error(self.topic, error)
            return
        for queue, offset in sorted(QueueOffsets.decode(reply.body).offset_table.items()):
            yield OperatedOutcome(f"{queue.topic}/{queue.queue_id}", OperatedFate.DONE, str(offset))


class LetterResend(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="resend-messages"):
    """Send dead letters of a group again with their ids; the dead letters stay.

    ids: only these; none: the first `limit`. to: `group` alone, or the `topic` that they were first sent to, so that
    all groups get them. failed_of: instead of dead letters, the messages of pmq's failure topic of the group and this
    topic whose tries are used up.
    """

    group: Name
    ids: Annotated[tuple[Name, ...], msgspec.Meta(max_length=LETTERS_MAX)] = ()
    to: Literal["group", "topic"] = "group"
    failed_of: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=LETTERS_MAX)] = LETTERS_MAX
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.SEND_MESSAGE_V2,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """Return each message with its place and the topic that it is sent to. Problem: there is none."""
        _check(self.group)
        letters = await self._letters(context)
        missing = sorted(set(self.ids) - {one.msg_id for one in letters})
        if not letters:
            raise refusal(f"found no message in {self._source}{' with these ids' if self.ids else ''}, expected some")
        steps = [
            OperatedStep(
                one.msg_id, f"{one.topic}/{one.queue_id}@{one.queue_offset}", await self._target(context, one) or "-"
            )
            for one in letters
        ]
        return OperatedPlan(steps, [f"{self._source} has no message {one}" for one in missing])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Send one after the other."""
        for letter in await self._letters(context):
            target = await self._target(context, letter)
            if target is None or letter.undecodable is not None:
                why = letter.undecodable or "found no topic or no member with this name, expected one that exists"
                yield OperatedOutcome(letter.msg_id, OperatedFate.FAILED, why)
                continue
            copy = resent_copy(letter, self._taker(letter), target)
            if self.failed_of:
                copy = replace(copy, properties={**copy.properties, RETRY_COUNT: "1"})
            try:
                (stored,) = await context.sender.publish([copy], None, context.broker.host)
            except Problem as problem:
                is_unknown = problem.status in (503, 504)
                fate = OperatedFate.UNKNOWN if is_unknown else OperatedFate.FAILED
                yield OperatedOutcome(letter.msg_id, fate, problem.detail)
                continue
            yield OperatedOutcome(letter.msg_id, OperatedFate.DONE, f"{target}/{stored.queue}@{stored.offset}")

    @property
    def _source(self) -> str:
        return failure_topic(self.group, self.failed_of) if self.failed_of else dlq_topic(self.group)

    async def _target(self, context: ChangeContext, letter: MessageExt) -> str | None:
        """Return the topic to send to; None: there is none."""
        if self.failed_of:
            return self.failed_of if self.to == "topic" else letter.topic
        taker = self._taker(letter)
        origin = origin_topic(letter, taker) if self.to == "topic" else popped_topic(letter, taker)
        if origin is not None and not (is_business_topic(origin) and await context.broker.topic(origin) is not None):
            return None
        if self.to == "group" and taker != self.group and await context.broker.group(taker) is None:
            return None  # the member has ended
        return resend_target(letter, taker, to_topic=self.to == "topic")

    def _taker(self, letter: MessageExt) -> str:
        """Return the group that could not process it: that of a member, or the group itself."""
        return taker_of(self.group, letter.properties.get(PROPERTY_RETRY_TOPIC, ""))

    async def _letters(self, context: ChangeContext) -> list[MessageExt]:
        """Return the messages to send, each id once."""
        found: dict[str, MessageExt] = {}
        if self.ids:
            for wanted in dict.fromkeys(self.ids):
                for one in await context.broker.by_key(self._source, wanted, PULL_COUNT, is_id=True):
                    found[wanted] = one
            return list(found.values())
        seen = 0
        for number, reach in (await context.broker.reaches(self._source)).items():
            start = reach.min_offset
            while start < reach.max_offset and len(found) < self.limit and seen < SCANNED_MAX:
                batch = await context.broker.pull(QueueName(self._source, number), start, PULL_COUNT)
                if not batch:
                    break
                seen += len(batch)
                start = batch[-1].queue_offset + 1
                for one in batch:
                    if len(found) < self.limit and (not self.failed_of or tries_of(one) >= FAILURE_TRIES):
                        found.setdefault(one.msg_id, one)
        return list(found.values())
