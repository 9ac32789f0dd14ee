"""How long the first waiting message of each queue has waited.

    per broker, topic, group  303: the age of the message at the group's offset, by the broker's own clock
    per queue                 a pull of one message, where 303 cannot tell

303 needs no message, so it is asked first. It names an age of half a century where the group's offset has expired, and
0 if the group has no offset or has read on meanwhile; the first message of such queues is pulled, without its group.
Source: AdminBrokerProcessor.queryConsumeTimeSpan, apache/rocketmq broker/.
"""

from collections import defaultdict
from functools import partial
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.wire import MessageQueue, RecordError, decode_head

from .asking import Asking, BrokerTopic
from .backlog import QueueLag, with_age

CLOCKS_APART_MS: Final = 1_000  # this host's clock does not date a message that seems to be stored later than this
AGE_MS_MAX: Final = 20 * 365 * 86_400_000  # a greater age means that the broker found no store time (-1)

_Place = tuple[str, MessageQueue]
"""Group and queue."""


class Ages:
    """Finds the ages of first waiting messages."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._dated: dict[_Place, QueueLag] = {}
        self._pulled: dict[tuple[MessageQueue, int], list[tuple[str, QueueLag]]] = defaultdict(list)

    async def find(self, lags: dict[str, list[QueueLag]]) -> dict[str, list[QueueLag]]:
        """Return the lags of groups with ages."""
        asked: dict[tuple[str, BrokerTopic], list[QueueLag]] = defaultdict(list)
        for group, found in lags.items():
            for lag in found:
                if lag.waits and lag.next_offset == lag.consumer_offset:
                    asked[group, BrokerTopic(lag.broker_name, lag.topic)].append(lag)
                elif lag.waits:
                    self._pull_later(group, lag)
        await self._asking.each(asked.items(), lambda one: self._ask(*one[0], one[1]))
        await self._asking.each(self._pulled.items(), lambda one: self._pull(*one[0], one[1]))
        return {
            group: [self._dated.get((group, _queue(lag)), lag) if lag.waits else lag for lag in found]
            for group, found in lags.items()
        }

    def _pull_later(self, group: str, lag: QueueLag) -> None:
        assert lag.next_offset is not None, "messages wait"
        self._pulled[_queue(lag), lag.next_offset].append((group, lag))

    async def _ask(self, group: str, of: BrokerTopic, lags: list[QueueLag]) -> None:
        ask = partial(self._asking.admin.broker_time_spans, self._asking.masters[of.broker_name], group, of.topic)
        answer = await self._asking.ask(of.broker_name, f"times of {group} in {of.topic}", ask)
        if isinstance(answer, str):
            self._dated |= {(group, _queue(lag)): with_age(lag, None, answer) for lag in lags}
            return
        ages = {span.message_queue.get("queueId"): span.delay_time for span in answer.consume_time_span_set}
        for lag in lags:
            age_ms = ages.get(lag.queue_id, 0)
            if 0 < age_ms < AGE_MS_MAX:
                self._dated[group, _queue(lag)] = with_age(lag, age_ms)
            else:
                self._pull_later(group, lag)

    async def _pull(self, queue: MessageQueue, offset: int, lags: list[tuple[str, QueueLag]]) -> None:
        age_ms, why = await self._age_of(queue, offset)
        self._dated |= {(group, queue): with_age(lag, age_ms, why) for group, lag in lags}

    async def _age_of(self, queue: MessageQueue, offset: int) -> tuple[int | None, str]:
        """Return the age of the message at an offset in ms, by this host's clock; None, and why it is unknown."""
        answer = await self._asking.pull(queue, offset, 1)
        if isinstance(answer, str):
            return None, answer
        try:
            store_ms = next(decode_head(record).store_timestamp_ms for record in answer.records)
        except (StopIteration, RecordError) as error:
            return None, f"the first waiting message, at {offset}, could not be read: {error or answer.status}"
        age_ms = now_ms() - store_ms
        if age_ms < -CLOCKS_APART_MS:
            return None, f"the clock of broker {queue.broker_name} is {-age_ms} ms ahead of this host's"
        return max(0, age_ms), ""


def _queue(lag: QueueLag) -> MessageQueue:
    return MessageQueue(lag.topic, lag.broker_name, lag.queue_id)
