"""Half messages whose transaction has not ended, and those that a broker gave up asking about.

    open       half topic from the check's progress on, without those of which op records list a copy; of the copies
               that the check appends, the last
    given up   TRANS_CHECK_MAX_TIME_TOPIC, the latest of each broker

The check's progress is the offsets of CID_RMQ_SYS_TRANS. Records behind it are read, because only they say what ended:
all or, above READ_MAX of one broker, none, since a part would show ended transactions as open.

Source: TransactionalMessageServiceImpl, TransactionalMessageBridge, apache/rocketmq broker/.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    OP_TAG,
    PROPERTY_KEYS,
    PROPERTY_PGROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
    RAW_TAGS,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
    Host,
    MessageQueue,
    MQError,
    RecordError,
    decode_head,
    decode_properties,
    ended_offsets,
    find_property,
    number_of,
    offset_msg_id,
)

from .access import AdminAccess
from .asking import Asking, BrokerTopic, Ranges

READ_MAX: Final = 10_000  # records of one broker's half queues, and of its op queues
GIVEN_UP_MAX: Final = 100  # of each broker
_CHECK_MAX: Final = "transactionCheckMax"
_INTERVAL: Final = "transactionCheckInterval"
_TIMEOUT: Final = "transactionTimeOut"


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message. topic, producer_group '': it names none. check_count: how often its producer was asked.

    offset_msg_id: the broker's id of this copy.
    """

    queue: MessageQueue
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    topic: str
    producer_group: str
    keys: str
    born_ms: int
    stored_ms: int
    check_count: int

    @classmethod
    def of(cls, record: bytes, queue: MessageQueue) -> "HalfMessage":
        """Return the message of a record of a queue. MQError: it is damaged."""
        head = decode_head(record)
        properties = decode_properties(bytes(record[head.properties_start : head.properties_end]))
        broker_id = offset_msg_id(Host.unpack(head.store_host), head.physical_offset)
        return cls(
            queue,
            head.queue_offset,
            properties.get(PROPERTY_UNIQ_KEY) or broker_id,
            broker_id,
            properties.get(PROPERTY_REAL_TOPIC, ""),
            properties.get(PROPERTY_PGROUP, ""),
            properties.get(PROPERTY_KEYS, ""),
            head.born_timestamp_ms,
            head.store_timestamp_ms,
            number_of(properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)) or 0,
        )


@dataclass(frozen=True, slots=True)
class BrokerHalfMessages:
    """The transactions of one master. None: unknown; why gives the reason.

    open, given_up: the oldest, and the latest, first. given_up_count: that it keeps, with those not in given_up.
    """

    broker_name: str
    open: tuple[HalfMessage, ...] | None = None
    given_up: tuple[HalfMessage, ...] | None = None
    given_up_count: int | None = None
    check_count_max: int | None = None
    check_interval_ms: int | None = None
    timeout_ms: int | None = None
    why: str = ""


class HalfReading:
    """Reads the half messages of a cluster once."""

    def __init__(self, admin: AdminAccess) -> None:
        self._asking = Asking(admin)
        self._found: dict[str, BrokerHalfMessages] = {}

    async def read(self) -> tuple[list[BrokerHalfMessages], tuple[str, ...]]:
        """Return what each master has, and a sentence for each question without an answer. NoNameServer."""
        await self._asking.find_masters()
        await self._asking.each_master(self._read_on)
        return [self._found[name] for name in sorted(self._found)], self._asking.problems

    async def _read_on(self, name: str, address: str) -> None:
        opened = await self._open(name, address)
        given_up, count = await self._given_up(name)  # after it: what was given up meanwhile is not open any more
        if not isinstance(opened, str):
            moved_ms = {one.msg_id: one.stored_ms for one in reversed(given_up or ())}
            opened = tuple(one for one in opened if one.stored_ms > moved_ms.get(one.msg_id, -1))
        settings = await self._asking.ask(name, "settings", partial(self._asking.admin.broker_config, address))
        known: Mapping[str, str] = {} if isinstance(settings, str) else settings
        self._found[name] = BrokerHalfMessages(
            name,
            None if isinstance(opened, str) else opened,
            given_up,
            count,
            number_of(known.get(_CHECK_MAX)),
            number_of(known.get(_INTERVAL)),
            number_of(known.get(_TIMEOUT)),
            opened if isinstance(opened, str) else "",
        )

    async def _open(self, name: str, address: str) -> tuple[HalfMessage, ...] | str:
        """Return the open half messages, the oldest first, or why they are unknown."""
        ask = partial(self._asking.admin.committed_offsets, address)
        table = await self._asking.ask(name, "committed offsets", ask)
        if isinstance(table, str):
            return table
        spans: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):  # in this order: one that ends meanwhile is in the op records
            ranges = await self._asking.ranges(BrokerTopic(name, topic))
            if isinstance(ranges, str):
                return ranges
            progress = table.offset_table.get(f"{topic}@{TRANSACTION_GROUP}", {})
            behind = spans[topic] = {
                queue_id: (max(first, progress.get(queue_id, 0)), end)
                for queue_id, (first, end) in (ranges or {}).items()
            }
            count = sum(max(0, end - begin) for begin, end in behind.values())
            if count > READ_MAX:
                why = f"{count} records of {topic} wait for the check of broker {name}, and at most {READ_MAX} are read"
                self._asking.note(why)
                return why
        found: list[HalfMessage] = []
        for queue_id, span in spans[HALF_TOPIC].items():
            halves = await self._open_of(name, queue_id, span, spans[OP_HALF_TOPIC].get(queue_id, (0, 0)))
            if isinstance(halves, str):
                return halves
            found += halves
        return tuple(sorted(found, key=lambda one: (one.born_ms, one.msg_id)))

    async def _open_of(
        self, name: str, queue_id: int, halves: tuple[int, int], ops: tuple[int, int]
    ) -> list[HalfMessage] | str:
        """Return the open half messages of a queue, or why they are unknown."""
        copies: dict[str, list[HalfMessage]] = {}
        ended: set[int] = set()
        damaged: list[int] = []
        queue = MessageQueue(HALF_TOPIC, name, queue_id)

        def see_half(record: bytes) -> None:
            try:
                one = HalfMessage.of(record, queue)
            except MQError:
                damaged.append(1)
                return
            copies.setdefault(one.msg_id, []).append(one)

        why = await self._asking.walk(queue, *halves, see_half)
        why = why or await self._asking.walk(
            MessageQueue(OP_HALF_TOPIC, name, queue_id), *ops, lambda record: ended.update(_ended(record))
        )
        if why:
            return why
        if damaged:
            self._asking.note(f"broker {name}: {len(damaged)} records of {HALF_TOPIC} are damaged")
        return [found[-1] for found in copies.values() if ended.isdisjoint(one.queue_offset for one in found)]

    async def _given_up(self, name: str) -> tuple[tuple[HalfMessage, ...] | None, int | None]:
        """Return the latest half messages that the broker gave up, and how many it keeps; None: unknown."""
        ranges = await self._asking.ranges(BrokerTopic(name, TRANS_CHECK_MAX_TIME_TOPIC))
        if isinstance(ranges, str):
            return None, None
        found: list[HalfMessage] = []
        for queue_id, (first, end) in (ranges or {}).items():
            queue = MessageQueue(TRANS_CHECK_MAX_TIME_TOPIC, name, queue_id)
            why = await self._asking.walk(queue, max(first, end - GIVEN_UP_MAX), end, partial(_add_half, found, queue))
            if why:
                return None, _count(ranges)
        found.sort(key=lambda one: -one.stored_ms)
        return tuple(found[:GIVEN_UP_MAX]), _count(ranges)


def _add_half(found: list[HalfMessage], queue: MessageQueue, record: bytes) -> None:
    try:
        found.append(HalfMessage.of(record, queue))
    except MQError:
        return  # it is counted, and cannot be put back


def _count(ranges: Ranges | None) -> int:
    return sum(end - first for first, end in (ranges or {}).values())


def _ended(record: bytes) -> list[int]:
    """Return the offsets that an op record lists."""
    try:
        head = decode_head(record)
    except RecordError:
        return []
    if find_property(bytes(record[head.properties_start : head.properties_end]), RAW_TAGS) != OP_TAG.encode():
        return []
    return ended_offsets(bytes(record[head.body_start : head.body_end]))
