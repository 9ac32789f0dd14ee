"""Requests about timers: recall a message (370), progress (60), counts (61).

A recall is a message too. It waits for the same second as the message that it recalls, and removes that message at the
end of the second. So a recall is as durable as any message, and too late once the second has begun.

Source: RecallMessageProcessor, AdminBrokerProcessor, apache/rocketmq broker/processor/.
"""

from typing import Final

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    EXT_MSG_REGION,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_PGROUP,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    RECALL_TAG,
    IllegalOperation,
    InvalidParameter,
    MQError,
    NoPermission,
    Peer,
    RecallHandle,
    RecallMessageHeader,
    RecallMessageResponseHeader,
    RemotingCommand,
    Send,
    ServiceNotAvailable,
    StoredKind,
    SystemError_,
    TopicNotExist,
    answer,
    answer_error,
    encode_properties,
    tags_code,
)

from ..state import BrokerState
from .timers import Timers

_BODY: Final = b"0"


class TimerRequests:
    """Serves 370, 60 and 61."""

    def __init__(self, state: BrokerState, timers: Timers) -> None:
        self._config = state.config
        self._topics = state.topics
        self._timers = timers
        self._writer = state.writer

    def recall(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """370. Refusals also carry MSG_REGION, as in 5.3.3."""
        ext = {EXT_MSG_REGION: self._config.region_id}
        try:
            header = RecallMessageHeader.from_ext(request.ext)
            handle = self._check(header, now_ms)
            after_offset = self._write(peer, header, handle, now_ms)
        except MQError as error:
            return answer_error(peer, request, error, ext)
        ext |= RecallMessageResponseHeader(handle.msg_id).to_ext()
        return answer(peer, request, ext, after_offset=after_offset)

    def _check(self, header: RecallMessageHeader, now_ms: int) -> RecallHandle:
        """Apply the checks in the order of 5.3.3; return the decoded handle."""
        if not self._config.recall:
            raise NoPermission("recall failed, operation is forbidden: set recallMessageEnable=true")
        if now_ms < self._config.start_accept_ms:
            raise ServiceNotAvailable(
                f"recall failed, broker service not available: found time {now_ms}, expected "
                f"{self._config.start_accept_ms} or later (startAcceptSendRequestTimeStamp)"
            )
        if self._topics.get(header.topic) is None:
            raise TopicNotExist(f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except InvalidParameter as error:
            raise IllegalOperation(f"recall handle is invalid: {error.remark}") from error
        if handle.topic != header.topic:
            raise IllegalOperation(
                f"recall failed, topic not match: found a handle of {handle.topic}, expected {header.topic}"
            )
        if handle.broker_name != self._config.broker_name:
            raise IllegalOperation(
                f"recall failed, broker service not available: found a handle of broker {handle.broker_name}, expected "
                f"{self._config.broker_name}"
            )
        if not 0 < handle.deliver_ms - now_ms < self._config.timer_delay_max_ms:
            raise IllegalOperation(
                f"recall failed, timestamp invalid: found a message due in {handle.deliver_ms - now_ms} ms, expected 1 "
                f"to {self._config.timer_delay_max_ms - 1}"
            )
        return handle

    def _write(self, peer: Peer, header: RecallMessageHeader, handle: RecallHandle, now_ms: int) -> int:
        """Store the recall; return the offset that its answer waits for. SystemError_: the store refuses it."""
        properties = {
            PROPERTY_TAGS: RECALL_TAG,
            PROPERTY_TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.msg_id}",
            PROPERTY_UNIQ_KEY: handle.msg_id,
            PROPERTY_TIMER_DELIVER_MS: str(handle.deliver_ms),
            PROPERTY_BORN_TIMESTAMP: str(now_ms),
        }
        if header.producer_group:
            properties[PROPERTY_PGROUP] = header.producer_group
        try:
            record = PendingRecord(
                topic=handle.topic,
                queue_id=0,
                body=_BODY,
                properties=encode_properties(properties).encode(),
                tags_code=tags_code(RECALL_TAG),
                born_timestamp_ms=now_ms,
                born_host=peer.address.packed(),
            )
            (place,) = self._writer.write([self._timers.divert_sent(record, now_ms)], now_ms, StoredKind.RECALL)
        except MQError as error:
            raise SystemError_(f"recall failed, execute error: {error}") from error
        return place.end_offset

    def checkpoint(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """60: the progress of the timers, for slaves."""
        return answer(peer, request, body=self._timers.checkpoint(now_ms).encode())

    def metrics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """61: number of waiting messages by topic."""
        return answer(peer, request, body=self._timers.counts.table().encode())
