"""Reads the lag of groups from a live cluster with few requests, and changes nothing there.

    once per broker           committed offsets (43), configured groups (201), progress of delay levels (45)
    once per group            live members and subscriptions (203), from the first broker that has any
    once per broker, topic    ranges of all queues (202)
    only of what waits        ages (ages.py), copies that wait for the next attempt (delayed_copies.py)

208 has neither the first kept offset nor the difference between offset 0 and none, so it is not used. A broker that
does not answer a request in time is sent no others, and all its queues are unknown.
Source: AdminBrokerProcessor, ConsumerOffsetManager, apache/rocketmq broker/.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.wire import EXPRESSION_TAG, PROPERTY_KEYS, MessageExt, MessageQueue, SubscriptionData, retry_topic

from .access import AdminAccess
from .ages import Ages
from .asking import Asking
from .backlog import (
    ClusterLag,
    GroupLag,
    QueueLag,
    QueueReading,
    WaitingMessage,
    group_lag,
    queue_lag,
    ranked_lags,
    reasons_of,
)
from .delayed_copies import DelayedCopies
from .places import GroupPlaces

LOOKED_AT_QUEUES_MAX: Final = 64  # queues of a group whose first messages are read, those with the longest lag
OLDEST_MAX: Final = 32  # most messages that can be asked for

_Earlier = dict[tuple[str, str, int], QueueReading] | None


class LagReading:
    """One reading of a cluster's lag. group: read only this one."""

    def __init__(self, admin: AdminAccess, group: str | None = None) -> None:
        self._asking = Asking(admin)
        self._only = group
        self._places = GroupPlaces(self._asking, group)
        self._delayed = DelayedCopies(self._asking)

    async def read(self, over_ms: int | None = None, oldest_count: int = 0) -> ClusterLag:
        """Return the lag. over_ms: read twice, for a trend. oldest_count: messages of the group that is read alone."""
        await self._asking.find_masters()
        before = places = await self._places.first()
        if over_ms is not None:
            await asyncio.sleep(over_ms / 1000)
            places = await self._places.again()
        await self._places.find_routes()
        as_of_ms, groups = now_ms(), sorted(self._places.groups)
        readings = {group: self._places.readings(group, places) for group in groups}
        lags = await Ages(self._asking).find({group: list(map(queue_lag, found)) for group, found in readings.items()})
        await self._delayed.read()
        found: list[GroupLag] = []
        for group in groups:
            earlier: _Earlier = None
            if over_ms is not None:
                earlier = {one.place: one for one in self._places.readings(group, before)}
            found.append(self._group(group, lags[group], readings[group], earlier))
        idle = {one.group_name for one in found if not one.queues and one.member_count == 0 and not self._only}
        shown = tuple(ranked_lags(one for one in found if one.group_name not in idle))
        messages, looked_at_count = await self._oldest(shown, oldest_count)
        problems = self._asking.problems
        return ClusterLag(as_of_ms, shown, problems, over_ms, tuple(sorted(idle)), messages, looked_at_count)

    def _group(self, group: str, lags: list[QueueLag], readings: list[QueueReading], earlier: _Earlier) -> GroupLag:
        return group_lag(
            group,
            lags,
            readings,
            earlier,
            member_count=self._places.members[group].count,
            delayed_count=self._delayed.count(retry_topic(group)),
            why=self._why(group, lags),
        )

    def _why(self, group: str, lags: list[QueueLag]) -> Iterator[str]:
        """Yield the reasons of what is unknown or left out."""
        members, left = self._places.members[group], sorted(self._places.left[group])
        if members.why:
            yield f"its members are unknown: {members.why}"
        if left:
            yield f"not counted, because its members do not subscribe to them any more: {', '.join(left)}"
        if members.pops:
            yield "it pops: messages that are popped and not acknowledged are not counted"
        yield from reasons_of(lags)
        if self._delayed.why:
            yield f"delayed copies are unknown: {self._delayed.why[0]}"

    # -- the very messages -----------------------------------------------------------------------------------------

    async def _oldest(self, groups: Iterable[GroupLag], count: int) -> tuple[tuple[WaitingMessage, ...], int]:
        """Return the messages of the only group that have waited longest, and how many were read to find them."""
        if self._only is None or not count:
            return (), 0
        count = min(count, OLDEST_MAX)
        waiting = [lag for group in groups for lag in group.queues if lag.waits]
        waiting.sort(key=lambda lag: -(lag.lag_ms or 0))
        messages: list[WaitingMessage] = []

        async def look(lag: QueueLag) -> None:
            messages.extend(await self._first_of(lag, count))

        await self._asking.each(waiting[:LOOKED_AT_QUEUES_MAX], look)
        messages.sort(key=lambda one: (-one.lag_ms, one.topic, one.broker_name, one.queue_id, one.queue_offset))
        return tuple(messages[:count]), len(messages)

    async def _first_of(self, lag: QueueLag, count: int) -> list[WaitingMessage]:
        """Return the first waiting messages of a queue."""
        assert self._only is not None, "messages are of one group"
        assert lag.next_offset is not None, "messages wait"
        assert lag.max_offset is not None, "messages wait"
        members = self._places.members[self._only].found
        subscription = None if members is None else members.subscription_table.get(lag.topic)
        queue, offset = MessageQueue(lag.topic, lag.broker_name, lag.queue_id), lag.next_offset
        found: list[WaitingMessage] = []
        end, first_ms = min(lag.max_offset, offset + count), None
        while offset < end:
            answer = await self._asking.pull(queue, offset, end - offset)
            if isinstance(answer, str) or answer.next_offset <= offset:
                break
            for message in answer.open(queue, offset):
                first_ms = message.store_timestamp_ms if first_ms is None else first_ms
                # Ages follow that of the first message, which is by the broker's clock.
                age_ms = now_ms() - first_ms if lag.lag_ms is None else lag.lag_ms
                age_ms = max(0, age_ms - (message.store_timestamp_ms - first_ms))
                found.append(_waiting(message, queue, age_ms, subscription))
            offset = answer.next_offset
        return found


def _waiting(
    message: MessageExt, queue: MessageQueue, age_ms: int, subscription: SubscriptionData | None
) -> WaitingMessage:
    is_by_tag = subscription is not None and subscription.expression_type in (None, "", EXPRESSION_TAG)
    return WaitingMessage(
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
        message.msg_id,
        message.properties.get(PROPERTY_KEYS, ""),
        message.store_timestamp_ms,
        age_ms,
        subscription.matches_tag(message.tags) if subscription is not None and is_by_tag else None,
    )
