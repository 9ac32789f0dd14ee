"""Changes of topics: create and expand, shrink, permission, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from mqtrail.wire import (
    PERMISSIONS,
    CreateTopicHeader,
    MQError,
    RequestCode,
    TopicConfig,
    TopicNotExist,
    is_business_topic,
    validate_topic,
)

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

QUEUES_MAX: Final = 1_024
_LETTERS: Final = {int(bits): letters for letters, bits in PERMISSIONS.items()}

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Queues = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)]


def text_of(config: TopicConfig) -> str:
    """Return queues and permission of a topic."""
    perm = _LETTERS.get(config.perm, f"perm {config.perm}")
    return f"read {config.read_queue_nums}, write {config.write_queue_nums}, {perm}"


def check_topic(topic: str) -> None:
    """Problem: it is none of an application."""
    validate_topic(topic)
    if not is_business_topic(topic):
        raise wrong(f"found the topic {topic!r}, expected an application's: this one is RocketMQ's own")


async def _write(context: ChangeContext, config: TopicConfig) -> OperatedOutcome:
    """Write a topic's configuration; the outcome is what the broker has then."""
    header = CreateTopicHeader(
        config.topic,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
    )
    try:
        await context.broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        found = await context.broker.known_topic(config.topic)
    except (MQError, TimeoutError) as error:
        return outcome_of_error(config.topic, error)
    fate = OperatedFate.DONE if text_of(found) == text_of(config) else OperatedFate.FAILED
    return OperatedOutcome(config.topic, fate, text_of(found))


async def left_by_groups(context: ChangeContext, topic: str, is_meant: Callable[[int], bool]) -> dict[str, int]:
    """Return how many messages each group has left in queues of a topic; groups without any are left out."""
    reaches = await context.broker.reaches(topic)
    pending: dict[str, int] = {}
    for group, stats in (await context.broker.places()).consume_stats.items():
        for one in stats:
            for queue, at in one.offset_table.items():
                if queue.topic == topic and is_meant(queue.queue_id) and queue.queue_id in reaches:
                    first = reaches[queue.queue_id].min_offset
                    left = at.broker_offset - max(at.consumer_offset, first)
                    if left > 0:
                        pending[group] = pending.get(group, 0) + left
    return pending


class TopicCreation(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="create-topic"):
    """Create a topic, or give it more queues. Its other settings are kept."""

    topic: Name
    queues: Queues = 4
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_TOPIC,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """Problem: it has more queues already."""
        check_topic(self.topic)
        known = await context.broker.topic(self.topic)
        wanted = self._wanted(known)
        before = None if known is None else text_of(known)
        return OperatedPlan([OperatedStep(self.topic, before, text_of(wanted))])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Write it."""
        yield await _write(context, self._wanted(await context.broker.topic(self.topic)))

    def _wanted(self, known: TopicConfig | None) -> TopicConfig:
        if known is None:
            return TopicConfig(self.topic, self.queues, self.queues)
        if max(known.read_queue_nums, known.write_queue_nums) > self.queues:
            raise refusal(
                f"found the topic {self.topic} with {text_of(known)}, expected at most {self.queues} queues: use "
                "`mqtrail pmq topic shrink`, which loses no message"
            )
        return msgspec.structs.replace(known, read_queue_nums=self.queues, write_queue_nums=self.queues)


class TopicShrinking(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="shrink-topic"):
    """Take queues from a topic, in two parts: publishers stop using them; when all groups have consumed them, consumers
    stop too. The second part is done by the same change, later, if groups have messages left in them."""

    topic: Name
    queues: Queues
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_TOPIC,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """TopicNotExist. Problem: it has no more queues than that."""
        check_topic(self.topic)
        known = await context.broker.known_topic(self.topic)
        if max(known.read_queue_nums, known.write_queue_nums) <= self.queues:
            raise refusal(
                f"found the topic {self.topic} with {text_of(known)}, expected more than {self.queues} queues: use "
                "`mqtrail pmq topic create` to add some"
            )
        kept, pending = await self._left(context)
        steps = []
        if known.write_queue_nums > self.queues:
            steps.append(OperatedStep("write queues", str(known.write_queue_nums), str(self.queues)))
        counts: dict[str, int | None] = {"pending": sum(pending.values()), "unreadable": kept}
        steps.append(OperatedStep("read queues", str(known.read_queue_nums), str(self.queues), counts))
        return OperatedPlan(steps, [f"waits for {name}: {count} messages" for name, count in pending.items()])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Stop publishers, then consumers unless a group has messages left."""
        known = await context.broker.known_topic(self.topic)
        wanted = msgspec.structs.replace(known, write_queue_nums=min(known.write_queue_nums, self.queues))
        if wanted != known:
            outcome = await _write(context, wanted)
            yield msgspec.structs.replace(outcome, target="write queues")
            if outcome.fate is not OperatedFate.DONE:
                return
        _, pending = await self._left(context)
        if pending:
            found = ", ".join(f"{count} messages for {name}" for name, count in pending.items())
            yield OperatedOutcome(
                "read queues", OperatedFate.WAITS, f"found {found}, expected none: repeat this when they are consumed"
            )
            return
        outcome = await _write(context, msgspec.structs.replace(wanted, read_queue_nums=self.queues))
        yield msgspec.structs.replace(outcome, target="read queues")

    async def _left(self, context: ChangeContext) -> tuple[int, dict[str, int]]:
        """Return how many messages the queues keep that the topic loses, and how many of them each group has left."""
        reaches = await context.broker.reaches(self.topic)
        kept = sum(one.max_offset - one.min_offset for number, one in reaches.items() if number >= self.queues)
        return kept, await left_by_groups(context, self.topic, lambda queue: queue >= self.queues)


class TopicPermission(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="set-topic-permission"):
    """Set whether consumers may read a topic and publishers may write to it."""

    topic: Name
    permission: Literal["r", "w", "rw"]
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_TOPIC,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """TopicNotExist."""
        check_topic(self.topic)
        known = await context.broker.known_topic(self.topic)
        return OperatedPlan([OperatedStep(self.topic, text_of(known), text_of(self._wanted(known)))])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Write it."""
        yield await _write(context, self._wanted(await context.broker.known_topic(self.topic)))

    def _wanted(self, known: TopicConfig) -> TopicConfig:
        return msgspec.structs.replace(known, perm=int(PERMISSIONS[self.permission]))


class TopicDeletion(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="delete-topic"):
    """Delete a topic with its messages. force: also while members that consume it are online."""

    topic: Name
    force: bool = False
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.DELETE_TOPIC_IN_BROKER,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """TopicNotExist. Problem: members are online."""
        check_topic(self.topic)
        known = await context.broker.known_topic(self.topic)
        groups = await context.broker.groups_of(self.topic)
        online = [name for name in groups if self.topic in (await context.broker.online(name)).subscription_table]
        online += [name for name in await context.broker.groups() if self._is_pmq(context, name)]
        if online and not self.force:
            raise refusal(
                f"found members of {', '.join(sorted(set(online)))} online, which consume {self.topic}, expected none: "
                "stop them, or set force"
            )
        kept = sum(one.max_offset - one.min_offset for one in (await context.broker.reaches(self.topic)).values())
        step = OperatedStep(self.topic, text_of(known), "-", {"deleted": kept})
        return OperatedPlan([step], [f"group {name} consumes it" for name in groups])

    def _is_pmq(self, context: ChangeContext, group: str) -> bool:
        return bool(context.pmq.members_of(group)) and self.topic in context.pmq.topics_of(group)

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Delete it."""
        try:
            await context.broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic})
            is_gone = await context.broker.topic(self.topic) is None
        except TopicNotExist:
            is_gone = True
        except (MQError, TimeoutError) as error:
            yield outcome_of_error(self.topic, error)
            return
        yield OperatedOutcome(self.topic, OperatedFate.DONE if is_gone else OperatedFate.FAILED)
