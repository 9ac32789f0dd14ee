"""A pull: its request, and its result: status, raw records, the queue's first and end offset.

Shared by consumers and reader. Source: PullAPIWrapper and PullMessageRequestHeader, RocketMQ client and remoting.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mqtrail.net import Log
from mqtrail.wire import (
    BODY_SIZE_MAX,
    MASTER_ID,
    HeaderError,
    MessageExt,
    MessageQueue,
    PullResponseHeader,
    RecordError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    decode_head,
    open_records,
    read_records,
    refusal_for,
)

from ..core import BrokerUnknown, ClientInstance, queue_name, requested_records

log = Log()

OVERTAKE_MAX = 1_024  # records that a broker may append between reading the queue's end and answering


class PullStatus(StrEnum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # the queue's end
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # no message matches the filter: continue at next_offset
    OFFSET_MOVED = "OFFSET_MOVED"  # the offset is outside the queue's range: next_offset is inside


_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """Records of [requested offset, next_offset) as stored; the queue's range was [min_offset, max_offset).

    Bytes that are not a record are a separate entry. suggested_broker_id: broker id for the next pull (0: the master).
    """

    status: PullStatus
    records: tuple[bytes, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0

    def messages(self, broker_name: str = "") -> list[MessageExt]:
        """Decode the records and decompress their bodies. broker_name: of the queue; records do not contain it.

        A record is undecodable if it is damaged, or if the bodies up to it exceed EXPANDED_SIZE_MAX bytes.
        """
        return read_records(b"".join(self.records), broker_name)

    def open(
        self,
        queue: MessageQueue,
        asked_offset: int,
        body_size_max: int = BODY_SIZE_MAX,
        expanded_size_max: int = sys.maxsize,
    ) -> Iterator[MessageExt]:
        """Yield the messages, decoded one at a time by open_records; damaged ones get the queue's names.

        asked_offset: the offset of the pull request. A damaged record, or one with an impossible offset, gets the
        offset after the previous record.
        """
        last = asked_offset - 1
        bounds = {"body_size_max": body_size_max, "expanded_size_max": expanded_size_max}
        for message in open_records(self.records, queue.broker_name, **bounds):
            if message.topic and not last < message.queue_offset < self.next_offset:
                # No CRC covers a record's head. A wrong offset would move the consumer past the queue's end, or make
                # the message look like one that was delivered before.
                message = replace(message, queue_offset=last + 1)
            elif not message.topic:
                offset = message.queue_offset if last < message.queue_offset < self.next_offset else last + 1
                message = replace(message, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset)
            last = message.queue_offset
            yield message

    def wanted(
        self, subscription: SubscriptionData, queue: MessageQueue, asked_offset: int, body_size_max: int, room: int
    ) -> "Opened":
        """Decode the records that match the subscription; the broker compared only hashes of tags.

        asked_offset: the offset of the pull request. room: maximum bytes of decompressed bodies; the first body may
        always have body_size_max bytes.
        """
        messages = list(self.open(queue, asked_offset, body_size_max, room))
        whole = len(messages) == len(self.records)
        next_offset = self.next_offset if whole else messages[-1].queue_offset + 1
        if not subscription.is_all:
            messages = [one for one in messages if one.undecodable or subscription.matches_tag(one.tags)]
        return Opened(messages, next_offset)


@dataclass(frozen=True, slots=True)
class Opened:
    """Messages of [requested offset, next_offset); any others of the pull must be pulled again from there."""

    messages: Sequence[MessageExt]
    next_offset: int


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A consumer's pull request. flags: PullSysFlag. commit_offset is used only with COMMIT_OFFSET."""

    group: str
    queue: MessageQueue
    offset: int
    count_max: int
    size_max: int
    flags: int
    suspend_ms: int
    subscription: SubscriptionData
    commit_offset: int = 0
    code: RequestCode = RequestCode.PULL_MESSAGE

    def command(self) -> RemotingCommand:
        """Return the request."""
        queue, subscription = self.queue, self.subscription
        ext = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(self.count_max),
            "sysFlag": str(int(self.flags)),
            "commitOffset": str(self.commit_offset),
            "suspendTimeoutMillis": str(self.suspend_ms),
            "subscription": subscription.sub_string,
            "subVersion": str(subscription.sub_version),
            "expressionType": subscription.expression_type,
            "maxMsgBytes": str(self.size_max),
            "bname": queue.broker_name,
        }
        return RemotingCommand(self.code, ext)


def pull_address(client: ClientInstance, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
    """Return the address to pull a queue from: that of broker_id, else another of that broker. Raises BrokerUnknown."""
    route = client.known_route(queue.topic)
    address = route.address(queue.broker_name, broker_id) if route is not None else None
    if address is None:
        raise BrokerUnknown(
            f"found no address of broker {queue.broker_name!r} in the route of {queue.topic!r}; check that it is up"
        )
    return address


def read_pull_reply(reply: RemotingCommand, queue: MessageQueue, asked_offset: int, count_max: int) -> PullResult:
    """Return the result of a pull of count_max records from asked_offset on.

    A reply cannot move the reader past messages that it has not seen: `next_offset` is at most the queue's end in the
    same reply. It cannot move the reader back either, unless the offset was outside the queue. Records beyond that
    end, or beyond count_max, are left to the next pull.
    Raises the Refusal of any other code; HeaderError for a header that cannot be read or contradicts itself.
    """
    status = _STATUS.get(reply.code)
    if status is None:
        raise refusal_for(reply.code, reply.remark)
    header = PullResponseHeader.from_ext(reply.ext)
    records: Sequence[bytes] = ()
    moved = status is PullStatus.OFFSET_MOVED
    next_offset = header.next_begin_offset if moved else max(header.next_begin_offset, asked_offset)
    if status is PullStatus.FOUND:
        records, whole = requested_records(reply.body, count_max, queue)
        if not whole:
            next_offset = _end_of(records, asked_offset, next_offset)
    end = _end_by(header, status, queue, asked_offset, len(records))
    if next_offset > end:
        records = [record for record in records if not end <= _offset_of(record) < next_offset]
        next_offset = end
    return PullResult(
        status,
        tuple(records),
        next_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )


def _end_by(
    header: PullResponseHeader, status: PullStatus, queue: MessageQueue, asked_offset: int, record_count: int
) -> int:
    """Return the highest offset that this reply can move a reader to. HeaderError: it contradicts itself.

    A broker reads the queue's end before it reads the records, so a few new records may be past that end
    (OVERTAKE_MAX). A slave that lags behind its master answers with an end below the requested offset.
    Source: DefaultMessageStore.getMessage, PullMessageProcessor.composeResponseHeader; the Java client does not check.
    """
    claimed, end = header.next_begin_offset, header.max_offset
    moved = status is PullStatus.OFFSET_MOVED
    if not moved:
        end = max(end, asked_offset + record_count)
    if claimed < 0 or (claimed > end + OVERTAKE_MAX and (moved or end <= asked_offset)):
        raise HeaderError(
            f"found a pull reply with nextBeginOffset {claimed} and maxOffset {header.max_offset} for offset "
            f"{asked_offset} of {queue_name(queue)}, expected nextBeginOffset in [0, {end}]: check that broker's queue"
        )
    if claimed > end + OVERTAKE_MAX:
        log.sparse.error(
            "client.pull_past_the_end", queue=queue_name(queue), asked=asked_offset, claimed=claimed, end=end
        )
    return end


def _offset_of(record: bytes) -> int:
    """The queue offset in a record's head; -1 for bytes that are not a record."""
    try:
        return decode_head(record).queue_offset
    except RecordError:
        return -1


def _end_of(records: Sequence[bytes], first: int, end: int) -> int:
    """Return the offset after the last of these records whose offset is in [first, end)."""
    offsets = map(_offset_of, reversed(records))
    return next((offset for offset in offsets if first <= offset < end), first) + 1
