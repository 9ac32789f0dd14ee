"""Bodies of POP consumption: check points and acks of the revive log, batch acks, assignments of queues.

Members of the first have names of one or two letters, as Java writes and reads them; acks are read by their long names
too. Bytes equal those of 5.3.3, so that each broker can continue the other's log.

Source: PopCheckPoint, AckMsg, BatchAckMsg, BatchAck, QueryAssignment…Body, SetMessageRequestModeRequestBody,
ConsumerOrderInfoManager, apache/rocketmq 5.3.3 store/, remoting/ and broker/; fastjson's output of these classes.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec

from .body import Body, Long, RequestBody, convert, queue_members, queue_of
from .errors import BodyError
from .values import MessageQueue

__all__ = [
    "POP_ACK_TAG",
    "POP_BATCH_ACK_TAG",
    "POP_CHECK_POINT_TAG",
    "BatchAck",
    "BatchAckBody",
    "OrderInfoTable",
    "PopAck",
    "PopCheckPoint",
    "QueryAssignmentBody",
    "QueueAssignment",
    "QueueAssignments",
    "QueueOrderInfo",
    "RequestMode",
    "RequestModeTable",
]


# Tags of records in a revive topic.
POP_CHECK_POINT_TAG: Final = "ck"
POP_ACK_TAG: Final = "ack"
POP_BATCH_ACK_TAG: Final = "bAck"
CHECK_POINT_COUNT_MAX: Final = 127  # messages of one pop of a queue: a byte of Java


class PopCheckPoint(Body, frozen=True):
    """Messages that one pop took from one queue, in the revive log under the tag "ck".

    diffs: queue offsets of its messages, relative to start_offset; empty: count successive ones. bits: one for each
    acked message, bit 0 the first; always 0 in the log. re_puts: how often it was put again because a message could
    not be revived.
    """

    start_offset: Long = msgspec.field(name="so", default=0)
    pop_time_ms: Long = msgspec.field(name="pt", default=0)
    invisible_ms: Long = msgspec.field(name="it", default=0)
    bits: Long = msgspec.field(name="bm", default=0)
    count: Long = msgspec.field(name="n", default=0)
    queue_id: Long = msgspec.field(name="q", default=0)
    topic: str = msgspec.field(name="t", default="")
    group: str = msgspec.field(name="c", default="")
    revive_offset: Long = msgspec.field(name="ro", default=0)
    diffs: tuple[Long, ...] | None = msgspec.field(name="d", default=None)
    broker_name: str | None = msgspec.field(name="bn", default=None)
    re_puts: str | None = msgspec.field(name="rp", default=None)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        found = super().read(value)
        if not 0 <= found.count <= CHECK_POINT_COUNT_MAX or len(found.diffs or ()) > CHECK_POINT_COUNT_MAX:
            raise BodyError(
                f"found a check point of {found.count} messages, with {len(found.diffs or ())} offsets, expected at "
                f"most {CHECK_POINT_COUNT_MAX}"
            )
        return found

    @property
    def revive_ms(self) -> int:
        """Return when its messages are delivered again."""
        return self.pop_time_ms + self.invisible_ms

    def members(self) -> dict[str, Any]:
        return {**Body.members(self), "reviveTime": self.revive_ms}

    def queue_offsets(self) -> tuple[int, ...]:
        """Return the queue offsets of its messages, in the order of its bits."""
        return tuple(self.start_offset + diff for diff in self.diffs or range(self.count))


class PopAck(Body, frozen=True):
    """Acknowledged messages of a check point: in the revive log under "ack" (offset) or "bAck" (offsets)."""

    offset: Long = msgspec.field(name="ao", default=0)
    start_offset: Long = msgspec.field(name="so", default=0)
    group: str = msgspec.field(name="c", default="")
    topic: str = msgspec.field(name="t", default="")
    queue_id: Long = msgspec.field(name="q", default=0)
    pop_time_ms: Long = msgspec.field(name="pt", default=0)
    broker_name: str | None = msgspec.field(name="bn", default=None)
    offsets: tuple[Long, ...] | None = msgspec.field(name="aol", default=None)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return convert(_short(value, _ACK_NAMES), cls)


_ACK_NAMES = {
    "ackOffset": "ao",
    "startOffset": "so",
    "consumerGroup": "c",
    "topic": "t",
    "queueId": "q",
    "popTime": "pt",
    "brokerName": "bn",
    "ackOffsetList": "aol",
}


class BatchAck(Body, frozen=True):
    """Acknowledged messages of one check point, in the body of 200151. marker: pop_info's. bit_set: base64.

    revive_queue_id 999: they were popped in order.
    """

    group: str = msgspec.field(name="c", default="")
    topic: str = msgspec.field(name="t", default="")
    marker: str = msgspec.field(name="r", default="0")
    start_offset: Long = msgspec.field(name="so", default=0)
    queue_id: Long = msgspec.field(name="q", default=0)
    revive_queue_id: Long = msgspec.field(name="rq", default=0)
    pop_time_ms: Long = msgspec.field(name="pt", default=0)
    invisible_ms: Long = msgspec.field(name="it", default=0)
    bit_set: str = msgspec.field(name="b", default="")

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return convert(_short(value, _BATCH_ACK_NAMES), cls)

    @staticmethod
    def pack(diffs: Iterable[int]) -> str:
        """Return the bit_set with these bits: queue offsets relative to start_offset, 0 or more."""
        bits = 0
        for diff in diffs:
            bits |= 1 << diff
        return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()

    def queue_offsets(self, count_max: int) -> list[int]:
        """Return the acknowledged queue offsets, ascending. BodyError: no base64, or more than count_max bits."""
        try:
            data = base64.b64decode(self.bit_set, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BodyError(f"found the bit set {self.bit_set[:40]!r}, expected base64: {error}") from error
        count = int.from_bytes(data, "little").bit_count()
        if count > count_max:
            raise BodyError(f"found {count} acknowledged messages of one pop, expected at most {count_max}")
        return [
            self.start_offset + 8 * match.start() + bit
            for match in _SET_BYTES.finditer(data)
            for bit in range(8)
            if match[0][0] >> bit & 1
        ]


_SET_BYTES = re.compile(rb"[^\0]", re.DOTALL)
_BATCH_ACK_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


def _short(value: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): member for name, member in value.items() if member is not None}


class BatchAckBody(RequestBody, frozen=True):
    """The body of 200151."""

    broker_name: str | None = None
    acks: tuple[BatchAck, ...] = ()

    def members(self) -> dict[str, Any]:
        members: dict[str, Any] = {"acks": [ack.members() for ack in self.acks]}
        if self.broker_name is not None:
            members["brokerName"] = self.broker_name
        return members

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        name = value.get("brokerName")
        acks = convert(value.get("acks") or [], list[dict[str, Any]])
        return cls(None if name is None else convert(name, str), tuple(BatchAck.read(ack) for ack in acks))


class QueryAssignmentBody(RequestBody, frozen=True):
    """The body of 400."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = ""
    message_model: str = "CLUSTERING"


class QueueAssignment(Body, frozen=True):
    """A queue that a client is to consume, by PULL or POP. Queue -1 of a broker: all queues of the topic there."""

    queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None

    def members(self) -> dict[str, Any]:
        members: dict[str, Any] = {"messageQueue": queue_members(self.queue), "mode": self.mode}
        if self.attachments is not None:
            members["attachments"] = self.attachments
        return members

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        attachments = value.get("attachments")
        return cls(
            queue_of(value.get("messageQueue")),
            convert(value.get("mode") or "PULL", str),
            None if attachments is None else convert(attachments, dict[str, str]),
        )


class QueueAssignments(Body, frozen=True):
    """Reply to 400. None: the broker does not know, and the client keeps its queues. Empty: the client has no queue."""

    assignments: tuple[QueueAssignment, ...] | None = None

    def members(self) -> dict[str, Any]:
        if self.assignments is None:
            return {}
        return {"messageQueueAssignments": [assignment.members() for assignment in self.assignments]}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        items = value.get("messageQueueAssignments")
        if items is None:
            return cls(None)
        return cls(tuple(QueueAssignment.read(item) for item in convert(items, list[dict[str, Any]])))


class RequestMode(RequestBody, frozen=True):
    """The body of 401: how a group consumes a topic. pop_share_queue_num 0: every client pops all queues."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: Long = 0


class RequestModeTable(Body, frozen=True):
    """Reply to 402 and messageRequestMode.json: topic to group to mode."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = msgspec.field(default_factory=dict)


class QueueOrderInfo(Body, frozen=True):
    """The messages that a group popped last, in order, from one queue. Times are epoch ms.

    offsets: the first queue offset, the others relative to it. acked: bits of acked messages. counts: queue offset to
    how often it was popped before. visible: queue offset to when the message becomes visible again, if changed.
    """

    pop_time_ms: Long = msgspec.field(name="popTime", default=0)
    invisible_ms: Long | None = msgspec.field(name="i", default=None)
    offsets: tuple[Long, ...] = msgspec.field(name="o", default=())
    visible_ms: dict[Long, Long] | None = msgspec.field(name="ot", default=None)
    counts: dict[Long, Long] | None = msgspec.field(name="oc", default=None)
    consumed_ms: Long = msgspec.field(name="l", default=0)
    acked: Long = msgspec.field(name="cm", default=0)
    attempt_id: str | None = msgspec.field(name="a", default=None)


class OrderInfoTable(Body, frozen=True):
    """consumerOrderInfo.json: "topic@group" to queue id to the messages popped last."""

    table: dict[str, dict[Long, QueueOrderInfo]] = msgspec.field(default_factory=dict)
