"""A pull: how it is asked for, and what it brings back: status, raw records, where the queue begins and ends.

Shared by consumers and reader. Source: PullAPIWrapper and PullMessageRequestHeader, RocketMQ client and remoting.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mqtrail.wire import (
    BODY_SIZE_MAX,
    MASTER_ID,
    MessageExt,
    MessageQueue,
    PullResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    cut_records,
    open_records,
    read_records,
    refusal_for,
)

from ..core import BrokerUnknown, ClientInstance


class PullStatus(StrEnum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # the queue's end
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # the filter left nothing: go on at next_offset
    OFFSET_MOVED = "OFFSET_MOVED"  # the offset is outside what the queue keeps: next_offset is inside


_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """Records of [asked offset, next_offset), as stored; the queue held [min_offset, max_offset) at that time.

    Bytes that are no record stand among them as one of their own.
    suggested_broker_id: where the broker would rather have the next pull (0: the master).
    """

    status: PullStatus
    records: tuple[bytes, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0

    def messages(self, broker_name: str = "") -> list[MessageExt]:
        """Decode the records, bodies decompressed. broker_name: of the queue, for a record does not hold it.

        What cannot be read, or has more than EXPANDED_SIZE_MAX bytes together with those before it, is undecodable.
        """
        return read_records(b"".join(self.records), broker_name)

    def open(
        self,
        queue: MessageQueue,
        asked_offset: int,
        body_size_max: int = BODY_SIZE_MAX,
        expanded_size_max: int = sys.maxsize,
    ) -> Iterator[MessageExt]:
        """Yield the messages, decoded one at a time, as open_records does; damaged ones have the queue's names.

        asked_offset: of the pull. A record that is damaged, or has an impossible offset, stands between its neighbours.
        """
        last = asked_offset - 1
        bounds = {"body_size_max": body_size_max, "expanded_size_max": expanded_size_max}
        for message in open_records(self.records, queue.broker_name, **bounds):
            if message.topic and message.queue_offset >= self.next_offset:
                # No CRC covers a record's head. Taken as it is, it would have the queue go on behind its own end.
                message = replace(message, queue_offset=last + 1)
            elif not message.topic:
                offset = message.queue_offset if last < message.queue_offset < self.next_offset else last + 1
                message = replace(message, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset)
            last = message.queue_offset
            yield message

    def wanted(
        self, subscription: SubscriptionData, queue: MessageQueue, asked_offset: int, body_size_max: int, room: int
    ) -> "Opened":
        """Decode the records that the subscription takes; the broker compared hashes of tags only.

        asked_offset: of the pull. room: bytes that decompressed bodies may take; the first may have body_size_max in
        any case.
        """
        messages = list(self.open(queue, asked_offset, body_size_max, room))
        whole = len(messages) == len(self.records)
        next_offset = self.next_offset if whole else messages[-1].queue_offset + 1
        if not subscription.is_all:
            messages = [one for one in messages if one.undecodable or subscription.matches_tag(one.tags)]
        return Opened(messages, next_offset)


@dataclass(frozen=True, slots=True)
class Opened:
    """Messages of [asked offset, next_offset); the rest of the pull, if any, is to be pulled again from there."""

    messages: Sequence[MessageExt]
    next_offset: int


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What a consumer asks of a queue. flags: PullSysFlag. commit_offset goes with COMMIT_OFFSET alone."""

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
    """Return where to pull a queue from: broker_id's address, else another's of that broker. BrokerUnknown."""
    route = client.known_route(queue.topic)
    address = route.address(queue.broker_name, broker_id) if route is not None else None
    if address is None:
        raise BrokerUnknown(f"no address of broker {queue.broker_name!r} in the route of {queue.topic!r}")
    return address


def read_pull_reply(reply: RemotingCommand) -> PullResult:
    """Return what a pull's reply says. Raises the Refusal of any other code, HeaderError for a header that is none."""
    status = _STATUS.get(reply.code)
    if status is None:
        raise refusal_for(reply.code, reply.remark)
    header = PullResponseHeader.from_ext(reply.ext)
    records = tuple(cut_records(reply.body)) if status is PullStatus.FOUND else ()
    return PullResult(
        status,
        records,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )
