"""Pops (200050): the broker chooses messages for the client from one queue or all, and from the retry topic.

A pop that finds no message is held until its time is over (held_pops.py). It is then served again and answered with 210
POLLING_TIMEOUT; 209 POLLING_FULL means that too many pops are held. Under SYNC_FLUSH the answer waits for the flush of
its messages and check points.

Source: PopMessageProcessor.processRequest, apache/rocketmq 5.3.3 broker/processor/. Java chooses at
random which pops start with the retry topic and at which queue; here they take turns.
"""

from collections.abc import Callable
from typing import Final

from mqtrail.store import StoreError
from mqtrail.wire import (
    ALL_QUEUES,
    EXPRESSION_TAG,
    ORDERLY_REVIVE_QUEUE,
    SUBSCRIBE_ALL,
    InvalidParameter,
    MQError,
    Peer,
    PollingTimeout,
    PopHeader,
    PopResponseHeader,
    RemotingCommand,
    ResponseCode,
    Send,
    SubscriptionData,
    SubscriptionParseFailed,
    SystemBusy,
    TopicConfig,
    answer,
    check_length,
    number_of,
    pop_retry_topic,
)

from ..bounds import ATTEMPT_ID_LENGTH_MAX, EXPRESSION_LENGTH_MAX
from ..filter import MessageFilter, compile_filter
from ..state import BrokerState
from .checks import POP_COUNT_MAX
from .held_pops import HeldPop, WaitKey
from .orders import ORDERS_MAX
from .state import PopState
from .taking import Taking

LATE_MS: Final = 500  # a pop that arrives this long after its own deadline is answered immediately
BORN_TIME: Final = "bornTime"
QUEUES_A_POP: Final = 512
"""Maximum number of queues that a pop of all queues of a topic reads in one turn. If the topic has more, a pop that may
be held continues in the next ticks; otherwise the next pop reads the other queues."""
NEXT_QUEUES_MAX: Final = 1_000  # (topic, group) pairs of such large topics whose next queue is remembered
QUEUES_SEEN: Final = "queuesSeen"  # field of a held request: number of queues read without finding a message
_DIGITS_MAX: Final = 8  # of a number of queues
_HUNDRED: Final = 100
_STEP: Final = 37  # coprime to 100: a hundred requests get each number once


def with_born_time(request: RemotingCommand, now_ms: int) -> None:
    """Set the creation time of a request without one to now."""
    if request.ext.get(BORN_TIME, "0") == "0":
        request.ext[BORN_TIME] = str(now_ms)


def queues_seen(request: RemotingCommand) -> int:
    """Return how many queues a held request has read without finding a message."""
    return number_of(request.ext.get(QUEUES_SEEN), _DIGITS_MAX) or 0


class PopMessages:
    """Serves pops."""

    def __init__(self, state: BrokerState, pop: PopState, save_first: Callable[[int], None]) -> None:
        """save_first: saves the offsets before the first pop of a broker is answered."""
        self._state = state
        self._pop = pop
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._offsets = state.offsets
        self._positions = pop.positions
        self._orders = pop.orders
        self._log = pop.log
        self._groups = state.groups
        self._limits = state.limits
        self._checks = pop.checks
        self._held = pop.pops
        self._stats = state.stats
        self._trace = state.trace
        self._save_first = save_first
        self._turn = 0
        self._next_queue: dict[tuple[str, str], int] = {}  # (topic, group) -> where the next pop of many queues begins
        self.left_over: list[WaitKey] = []
        """Queues in which answered pops left messages: the next held pop may be served."""

    def handle(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """Answer a pop, or hold it. Refusal: the pop is not allowed."""
        with_born_time(request, now_ms)
        header = PopHeader.from_ext(request.ext)
        check_length("an attemptId", header.attempt_id or "", ATTEMPT_ID_LENGTH_MAX)
        topic = self._check(header, now_ms)
        group = self._groups.require(header.consumer_group, now_ms)
        left = self._limits.pulls_left(group, now_ms)
        if left is not None:
            header.max_msg_nums = min(header.max_msg_nums, left)
        wanted = _filter(header)
        self._turn += 1
        taking = self._take(header, topic, wanted, now_ms)
        if not taking.queues and header.order and self._orders.is_full:
            raise SystemBusy(
                f"found {ORDERS_MAX} queues that groups pop in order, expected fewer: pop fewer queues in order; "
                "one that is not used is forgotten after a day"
            )
        if not taking.queues and taking.damage:
            raise StoreError(taking.damage)
        if not taking.queues:
            return self._wait(peer, request, header, wanted, taking, now_ms)
        after_offset = taking.end_offset
        self._save_first(now_ms)
        if not header.order:
            records = [
                self._log.check_point(point, self._revive_queue_id(header), now_ms, next_offset)
                for point, next_offset in taking.check_points()
            ]
            after_offset = self._log.write(records, now_ms)
        taking.settle()
        self._limits.take_pulls(group, len(taking.records), now_ms)
        self._count(peer, header, taking, now_ms)
        if taking.rest_count > 0:
            self.left_over.append(_wait_key(header))
        ext = self._ext(header, taking, now_ms)
        body = b"".join(taking.records)
        return answer(peer, request, ext, remark="FOUND", body=body, after_offset=after_offset)

    def _check(self, header: PopHeader, now_ms: int) -> TopicConfig:
        if now_ms - header.born_time - header.poll_time > LATE_MS:
            raise PollingTimeout(
                f"the broker[{self._config.address.ip}] pop message is timeout too much: found bornTime "
                f"{header.born_time} and pollTime {header.poll_time} at {now_ms}: compare the clocks"
            )
        self._checks.broker_reads()
        if header.max_msg_nums > POP_COUNT_MAX:
            raise InvalidParameter(
                f"the broker[{self._config.address.ip}] pop message's num is greater than {POP_COUNT_MAX}: found "
                f"{header.max_msg_nums}"
            )
        return self._checks.reading(header.topic, header.queue_id, header.consumer_group, now_ms)

    def _take(self, header: PopHeader, topic: TopicConfig, wanted: MessageFilter | None, now_ms: int) -> Taking:
        """Read the queues in the order of 5.3.3: sometimes the retry topic first, else last."""
        taking = Taking(self._state, self._pop, header, wanted, self._revive_queue_id(header), now_ms)
        chance = self._turn * _STEP % _HUNDRED
        retry_first = chance < self._config.pop_from_retry_percent
        if retry_first and not header.order:
            self._take_retries(taking, header, chance)
        if header.queue_id >= 0:
            taking.take(topic.topic, header.queue_id)
        else:
            self._take_topic(taking, topic, chance)
        if not retry_first and not header.order and not taking.is_full:
            self._take_retries(taking, header, chance)
        return taking

    def _take_retries(self, taking: Taking, header: PopHeader, chance: int) -> None:
        """Read one of the two retry topics, since the answer cannot distinguish them: clients treat 1 and 2 alike."""
        v2 = self._config.retry_topic_v2
        if v2 and self._config.pop_from_retry_v1 and chance % 2 == 0:
            v2 = False
        topic = self._topics.get(pop_retry_topic(header.topic, header.consumer_group, v2=v2))
        if topic is not None:
            self._take_topic(taking, topic, chance)

    def _take_topic(self, taking: Taking, topic: TopicConfig, chance: int) -> None:
        count = topic.read_queue_nums
        if count <= QUEUES_A_POP:
            for step in range(count):
                taking.take(topic.topic, (chance + step) % count)
            return
        key = (topic.topic, taking.group)
        first = self._next_queue.pop(key, 0)
        for step in range(QUEUES_A_POP):
            taking.take(topic.topic, (first + step) % count)
        self._next_queue[key] = (first + QUEUES_A_POP) % count
        if len(self._next_queue) > NEXT_QUEUES_MAX:
            del self._next_queue[next(iter(self._next_queue))]
        taking.unseen_count = count - QUEUES_A_POP

    def _revive_queue_id(self, header: PopHeader) -> int:
        return ORDERLY_REVIVE_QUEUE if header.order else self._turn % self._log.queue_nums

    # Waiting.

    def _wait(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: PopHeader,
        wanted: MessageFilter | None,
        taking: Taking,
        now_ms: int,
    ) -> list[Send]:
        deadline_ms = min(header.born_time + header.poll_time, now_ms + self._config.hold_ms_max)
        code = ResponseCode.POLLING_TIMEOUT
        is_unfinished = self._is_unfinished(request, taking)
        if header.poll_time > 0 and deadline_ms > now_ms:
            pop = HeldPop(peer, request, _wait_key(header), wanted, deadline_ms, queues=taking.seen_count)
            if self._held.hold(pop):
                if is_unfinished or (taking.passed and taking.rest_count > 0):
                    self._held.check_again(pop, now_ms)
                return []
            code = ResponseCode.POLLING_FULL
        ext = self._ext(header, taking, now_ms)
        return answer(peer, request, ext, code=code, remark="NO_MESSAGE_IN_QUEUE")

    def _is_unfinished(self, request: RemotingCommand, taking: Taking) -> bool:
        """Return whether a pop that found nothing has more queues of a large topic to read."""
        if not taking.unseen_count:
            return False
        seen = queues_seen(request) + QUEUES_A_POP
        if seen < taking.unseen_count + QUEUES_A_POP:
            request.ext[QUEUES_SEEN] = str(seen)
            return True
        request.ext.pop(QUEUES_SEEN, None)
        return False

    def _ext(self, header: PopHeader, taking: Taking, now_ms: int) -> dict[str, str]:
        return PopResponseHeader(
            pop_time=now_ms,
            invisible_time=header.invisible_time,
            revive_qid=self._revive_queue_id(header),
            rest_num=taking.rest_count,
            start_offset_info=taking.start_offset_info(),
            msg_offset_info=taking.message_offset_info(),
            order_count_info=taking.order_count_info(),
        ).to_ext()

    def _count(self, peer: Peer, header: PopHeader, taking: Taking, now_ms: int) -> None:
        if self._trace is not None:
            for queue in taking.queues:
                self._trace.handed_out(
                    peer, header.consumer_group, queue.topic, queue.queue_id, queue.queue_offsets, now_ms
                )
        if self._stats is None:
            return
        self._stats.pull_hits += 1
        for queue in taking.queues:
            counter = self._stats.get_counter(queue.topic, queue.queue_id, header.consumer_group)
            counter.add(len(queue.queue_offsets), queue.size)
            if not header.order:
                self._stats.check_point(header.topic, header.consumer_group)


def _wait_key(header: PopHeader) -> WaitKey:
    return (header.topic, header.consumer_group, max(header.queue_id, ALL_QUEUES))


def _filter(header: PopHeader) -> MessageFilter | None:
    """Return the filter of the pop's own subscription. SubscriptionParseFailed."""
    if not header.exp:
        return None
    try:
        check_length(f"an expression for topic {header.topic}", header.exp, EXPRESSION_LENGTH_MAX)
        return compile_filter(
            SubscriptionData.build(header.topic, header.exp or SUBSCRIBE_ALL, header.exp_type or EXPRESSION_TAG)
        )
    except SubscriptionParseFailed:
        raise
    except MQError as error:
        raise SubscriptionParseFailed(f"parse the consumer's subscription failed: {error}") from error
