"""The offset at which a member starts a queue: the group's stored offset, else according to its settings.

Source: RebalancePushImpl.computePullFromWhereWithException, RocketMQ 5.x client.
"""

from mqtrail.clock import now_ms
from mqtrail.wire import RETRY_PREFIX, ConsumeFromWhere, MessageQueue, RequestCode

from ..core import ClientInstance, reply_number
from .offsets import OffsetStore

TIMESTAMP_BACK_MS = 30 * 60_000  # consumeTimestamp's default: this long before the start


class StartOffsets:
    """Start offsets of one consumer. consume_from_timestamp_ms: epoch ms; None: half an hour before now."""

    def __init__(
        self,
        client: ClientInstance,
        offsets: OffsetStore,
        consume_from: ConsumeFromWhere,
        consume_from_timestamp_ms: int | None,
    ) -> None:
        self._client = client
        self._offsets = offsets
        self._consume_from = consume_from
        self._timestamp_ms = consume_from_timestamp_ms
        if self._timestamp_ms is None:
            self._timestamp_ms = now_ms() - TIMESTAMP_BACK_MS

    async def of(self, queue: MessageQueue) -> int:
        """Return the offset to start a queue at. Raises MQError if it cannot be determined now."""
        self._offsets.forget(queue)
        stored = await self._offsets.read(queue)
        if stored is not None and stored >= 0:
            return stored
        by_time = self._consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        retries = queue.topic.startswith(RETRY_PREFIX)
        if self._consume_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET or (retries and not by_time):
            return 0
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
        code = RequestCode.GET_MAX_OFFSET
        if by_time and not retries:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            ext["timestamp"] = str(self._timestamp_ms)
        reply = await self._client.call(self._client.any_address(queue.broker_name), code, ext)
        offset = reply_number(reply, "offset")
        if code == RequestCode.GET_MAX_OFFSET and offset > 0:
            # A 5.x Apache broker answers "none stored" for an empty queue. If the first message arrived since then, it
            # now answers 0, and starting at the maximum offset would skip that message.
            stored = await self._offsets.read(queue)
            if stored is not None and stored >= 0:
                return stored
        return offset
