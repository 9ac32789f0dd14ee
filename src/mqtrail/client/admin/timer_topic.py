"""The timer topic of a broker of 5.x: messages that wait for their second, in the order of arrival.

The topic keeps delivered ones too. Those from the timers' progress (60) on wait. The latest READ_MAX stored are read.
Check points of pops and their acknowledgements wait there as well.

Source: TimerMessageStore, TimerCheckpoint, apache/rocketmq store/timer.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Self

from mqtrail.clock import now_ms
from mqtrail.wire import (
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
    REVIVE_TOPIC_PREFIX,
    TIMER_TOPIC,
    Host,
    MessageQueue,
    MQError,
    RecordHead,
    decode_head,
    decode_properties,
    number_of,
    offset_msg_id,
)

from .asking import Asking, BrokerTopic

READ_MAX: Final = 10_000  # records of one broker
PRECISION_MS: Final = 1_000  # a timer is delivered at the end of its second


class DelayedRecord(NamedTuple):
    """A record that waits in a delay topic for its real topic."""

    head: RecordHead
    properties: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, record: bytes) -> Self | None:
        """Return the parts of a record; None: it is damaged."""
        try:
            head = decode_head(record)
        except MQError:
            return None
        properties = decode_properties(bytes(record[head.properties_start : head.properties_end]))
        return cls(head, properties, bytes(record[head.body_start : head.body_end]))

    @property
    def topic(self) -> str:
        """The topic to which it will be delivered; '': it names none."""
        return self.properties.get(PROPERTY_REAL_TOPIC, "")

    @property
    def is_of_pop(self) -> bool:
        """Whether it is a check point or an acknowledgement."""
        return self.topic.startswith(REVIVE_TOPIC_PREFIX)

    @property
    def msg_id(self) -> str:
        """The client's id, or the broker's."""
        of_broker = offset_msg_id(Host.unpack(self.head.store_host), self.head.physical_offset)
        return self.properties.get(PROPERTY_UNIQ_KEY) or of_broker

    @property
    def keys(self) -> str:
        """Its keys, separated by blanks."""
        return self.properties.get(PROPERTY_KEYS, "")


class TimerTopic:
    """Reads the timer topics of a cluster."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def is_used(self, name: str) -> bool | None:
        """Return whether a broker has had timers; None: unknown."""
        ranges = await self._asking.ranges(BrokerTopic(name, TIMER_TOPIC))
        return None if isinstance(ranges, str) else any(end > 0 for _, end in (ranges or {}).values())

    async def read(self, name: str, see: Callable[[DelayedRecord, int], None]) -> bool:
        """Call `see` with each record that waits, and its second in ms; return whether all that are stored were
        read."""
        ranges = await self._asking.ranges(BrokerTopic(name, TIMER_TOPIC))
        if isinstance(ranges, str):
            return False
        next_ms = await self._next_ms(name)

        def see_record(record: bytes) -> None:
            one = DelayedRecord.of(record)
            if one is not None:
                out_ms = number_of(one.properties.get(PROPERTY_TIMER_OUT_MS))
                if out_ms is not None and out_ms >= next_ms:
                    see(one, out_ms)

        is_whole = True
        for queue_id, (first, end) in (ranges or {}).items():
            begin = max(first, end - READ_MAX)
            why = await self._asking.walk(MessageQueue(TIMER_TOPIC, name, queue_id), begin, end, see_record)
            is_whole = is_whole and begin == first and not why
            if why:
                self._asking.note(why)
        return is_whole

    async def _next_ms(self, name: str) -> int:
        """Return the second that a broker delivers next; by this host's clock if the broker does not report it."""
        ask = partial(self._asking.admin.timer_progress_ms, self._asking.masters[name])
        answer = await self._asking.ask(name, "progress of timers", ask)
        return now_ms() - PRECISION_MS if isinstance(answer, str) or answer <= 0 else answer
