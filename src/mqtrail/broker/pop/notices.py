"""Requests without popping: notification (200054), polling info (200055), peek (200052).

Source: NotificationProcessor, PollingInfoProcessor, PeekMessageProcessor, apache/rocketmq 5.3.3 broker/processor/.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from mqtrail.store import GetStatus
from mqtrail.wire import (
    Buffer,
    NotificationHeader,
    NotificationResponseHeader,
    PeekHeader,
    Peer,
    PollingInfoHeader,
    PollingInfoResponseHeader,
    PopResponseHeader,
    RemotingCommand,
    ResponseCode,
    Send,
    Work,
    answer,
    decode_head,
    pop_retry_topic,
)

from ..jobs import SliceCounter
from ..state import BrokerState
from .checks import POP_COUNT_MAX
from .held_pops import HeldPop
from .pops import QUEUES_A_POP, QUEUES_SEEN, queues_seen, with_born_time
from .state import PopState


class PopNotices:
    """Serves these requests. pops: held pops; held: held notifications."""

    def __init__(self, state: BrokerState, pop: PopState) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._positions = pop.positions
        self._orders = pop.orders
        self._checks = pop.checks
        self._jobs = state.jobs
        self._pops = pop.pops
        self._held = pop.notices

    def notify(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """200054: report whether a pop would find messages. The request is held until it would."""
        with_born_time(request, now_ms)
        header = NotificationHeader.from_ext(request.ext)
        self._checks.broker_reads()
        self._checks.reading(header.topic, header.queue_id, header.consumer_group, now_ms)
        ranges = self._ranges(header.topic, header.consumer_group, header.queue_id)
        seen = queues_seen(request)
        if self._any_waits(header, _queues(ranges, seen, QUEUES_A_POP), now_ms):
            return _notice(peer, request, has_message=True)
        seen += QUEUES_A_POP
        left = sum(map(len, ranges.values())) - seen
        full = False
        deadline_ms = min(header.born_time + header.poll_time, now_ms + self._config.hold_ms_max)
        if header.poll_time > 0 and deadline_ms > now_ms:
            request.ext[QUEUES_SEEN] = str(seen if left > 0 else 0)
            key = (header.topic, header.consumer_group, max(header.queue_id, -1))
            pop = HeldPop(peer, request, key, None, deadline_ms, queues=QUEUES_A_POP if left > 0 else 1)
            if self._held.hold(pop):
                if left > 0:
                    self._held.check_again(pop, now_ms)
                return []
            full = True
        if left <= 0:
            return _notice(peer, request, full=full)
        return self._jobs.begin(
            peer, request, self._check_in_slices(peer, request, header, ranges, seen, now_ms, full=full)
        )

    def _check_in_slices(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: NotificationHeader,
        ranges: dict[str, range],
        seen: int,
        now_ms: int,
        *,
        full: bool,
    ) -> Work:
        """Check the other queues of a large topic, for a request that cannot be held."""
        for first in range(seen, sum(map(len, ranges.values())), QUEUES_A_POP):
            yield
            if self._any_waits(header, _queues(ranges, first, QUEUES_A_POP), now_ms):
                return _notice(peer, request, has_message=True, full=full)
        return _notice(peer, request, full=full)

    def _any_waits(self, header: NotificationHeader, queues: Iterator[tuple[str, int]], now_ms: int) -> bool:
        return any(self._waits(header, topic, queue_id, now_ms) for topic, queue_id in queues)

    def _ranges(self, topic: str, group: str, queue_id: int) -> dict[str, range]:
        """Return the queues that a pop would read, by topic."""
        config = self._topics.get(topic)
        count = 0 if config is None else config.read_queue_nums
        ranges = {topic: range(queue_id, queue_id + 1) if queue_id >= 0 else range(count)}
        retries = [pop_retry_topic(topic, group, v2=self._config.retry_topic_v2)]
        if self._config.retry_topic_v2 and self._config.pop_from_retry_v1:
            retries.append(pop_retry_topic(topic, group))
        for retry in retries:
            config = self._topics.get(retry)
            if config is not None:
                ranges[retry] = range(config.read_queue_nums)
        return ranges

    def _waits(self, header: NotificationHeader, topic: str, queue_id: int, now_ms: int) -> bool:
        group = header.consumer_group
        if header.order and self._orders.is_closed((header.topic, group, queue_id), header.attempt_id, 0, now_ms):
            return False
        return self._store.max_offset(topic, queue_id) > self._positions.find(group, topic, queue_id)

    def polling_info(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """200055: number of held pops of the group for the queue."""
        header = PollingInfoHeader.from_ext(request.ext)
        self._checks.broker_reads()
        self._checks.reading(header.topic, header.queue_id, header.consumer_group, now_ms)
        count = self._pops.count((header.topic, header.consumer_group, max(header.queue_id, -1)))
        return answer(peer, request, PollingInfoResponseHeader(count).to_ext())

    def peek(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """200052: the messages that a pop would return, under their stored topics. PULL_NOT_FOUND: none."""
        header = PeekHeader.from_ext(request.ext)
        self._checks.broker_reads()
        self._checks.reading(header.topic, header.queue_id, header.consumer_group, now_ms)
        records: list[Buffer] = []
        count_max = min(header.max_msg_nums, POP_COUNT_MAX)
        size_left = self._config.pull_size_max
        rest = end_offset = 0
        counter = SliceCounter()
        for topic, queue_id in _queues(self._ranges(header.topic, header.consumer_group, header.queue_id)):
            if counter.queue_done():
                yield
            start = self._positions.find(header.consumer_group, topic, queue_id)
            rest += self._store.max_offset(topic, queue_id) - start
            if len(records) >= count_max or size_left <= 0:
                continue
            found = self._store.read(topic, queue_id, start, count_max - len(records), size_left)
            if found.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY):
                start = found.next_queue_offset
                found = self._store.read(topic, queue_id, start, count_max - len(records), size_left)
            for record in found.records:
                head = decode_head(record)
                size_left -= head.size
                end_offset = max(end_offset, head.physical_offset + head.size)
            records += found.records
        ext = PopResponseHeader(0, 0, 0, rest).to_ext()
        if not records:
            return answer(peer, request, ext, code=ResponseCode.PULL_NOT_FOUND, remark=GetStatus.NO_MESSAGE_IN_QUEUE)
        return answer(peer, request, ext, remark=GetStatus.FOUND, body=b"".join(records), after_offset=end_offset)


def _queues(ranges: Mapping[str, range], first: int = 0, count: int | None = None) -> Iterator[tuple[str, int]]:
    queues = ((topic, queue_id) for topic, queue_ids in ranges.items() for queue_id in queue_ids)
    return islice(queues, first, None if count is None else first + count)


def _notice(peer: Peer, request: RemotingCommand, *, has_message: bool = False, full: bool = False) -> list[Send]:
    return answer(peer, request, NotificationResponseHeader(has_message, full).to_ext())
