"""Pulls (11, 361) and long polling.

A pull that finds no message and may wait is held (tables/held.py). When a message arrives, or the hold time is over, it
is served again and answered in any case. Under SYNC_FLUSH an answer waits for the flush of its newest record, so that
consumers only see messages that survive a power failure.

With slaveReadEnable a reader that is far behind is sent to a slave, and back when it is near. A slave never moves a
reader to another offset: what it does not have, its master may have. A slave holds no pull while it sees its master.

Source: PullMessageProcessor, DefaultPullMessageResultHandler, PullRequestHoldService, apache/rocketmq broker/.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtrail.store import GetStatus, ReadResult
from mqtrail.wire import (
    PROPERTY_RETRY_TOPIC,
    RETRY_PREFIX,
    FilterDataNotExist,
    FilterDataNotLatest,
    InvalidParameter,
    NoPermission,
    Peer,
    Perm,
    PullHeader,
    PullResponseHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    TopicConfig,
    answer,
    check_length,
    find_property,
    record_end,
)

from ..bounds import EXPRESSION_LENGTH_MAX
from ..filter import MessageFilter, SqlFilter, compile_filter, is_tag_type, require_filter
from ..state import BrokerState
from ..tables import HeldPull
from .broadcasts import BroadcastOffsets

if TYPE_CHECKING:
    from mqtrail.wire import SqlExpression

FETCHES_MAX: Final = 200  # at once; further pulls read by themselves
Fetch = tuple[Callable[[], None], HeldPull]
OFFSET_RESET: Final = "OFFSET_RESET"  # remark of an answer that carries a reset by an administrator

# All other statuses mean that the offset is invalid: PULL_OFFSET_MOVED.
CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
}


def pull_code(status: GetStatus, queue_offset: int) -> ResponseCode:
    """Return the response code for a pull at queue_offset."""
    if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE) and queue_offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return CODES.get(status, ResponseCode.PULL_OFFSET_MOVED)


class PullMessages:
    """Serves pulls."""

    def __init__(self, state: BrokerState, broadcasts: BroadcastOffsets) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._clients = state.clients
        self._offsets = state.offsets
        self._filters = state.filters
        self._held = state.held
        self._stats = state.stats
        self._trace = state.trace
        self._broadcasts = broadcasts
        self._limits = state.limits
        self._replicas = state.replicas
        self.fetches: list[Fetch] = []  # that are to be started
        self._fetching = 0  # that are under way

    def handle(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """Answer a pull, or hold it. Refusal: the pull is not allowed."""
        return self._serve(peer, request, now_ms, may_hold=True)

    def serve_held(self, pull: HeldPull, now_ms: int) -> list[Send]:
        """Answer a held pull. Refusal: the pull is no longer allowed."""
        return self._serve(pull.peer, pull.request, now_ms, may_hold=False)

    def _serve(self, peer: Peer, request: RemotingCommand, now_ms: int, *, may_hold: bool) -> list[Send]:
        header = PullHeader.from_ext(request.ext)
        group, topic = self._check(header, request.code, now_ms)
        wanted = self._filter(header, group)
        name, queue_id = header.consumer_group, header.queue_id
        reset = self._offsets.take_reset(name, header.topic, queue_id)
        if reset is not None:
            return self._answer_reset(peer, request, header, topic, group, reset)
        client_id = self._broadcasts.client_of(peer, header)
        if client_id is not None:
            start = self._broadcasts.start(client_id, header, now_ms)
            if start is not None:
                self._broadcasts.note(client_id, header, start, now_ms)
                return self._answer_reset(peer, request, header, topic, group, start)
        commits = may_hold and header.sys_flag & PullSysFlag.COMMIT_OFFSET and header.commit_offset >= 0
        if commits:
            self._offsets.check_room(name, header.topic, queue_id)
        left = self._limits.pulls_left(group, now_ms)
        count_max = max(1, min(header.max_msg_nums, self._config.pull_count_max, left or self._config.pull_count_max))
        if may_hold and self._begin_fetch(peer, request, header, count_max, wanted, now_ms):
            if commits:
                self._offsets.commit(name, header.topic, queue_id, header.commit_offset)
            return []
        found = self._store.read(
            header.topic,
            queue_id,
            header.queue_offset,
            count_max,
            max(1, min(self._config.pull_size_max, header.max_msg_bytes or self._config.pull_size_max)),
            None if wanted is None else wanted.tags_codes,
            accepts=None if wanted is None else wanted.accepts,
            scan_max=None if wanted is None else wanted.scan_max,
        )
        self._limits.take_pulls(group, len(found.records), now_ms)
        if commits:
            self._offsets.commit(name, header.topic, queue_id, header.commit_offset)
        code = pull_code(found.status, header.queue_offset)
        if self._config.is_slave:
            code, found = self._as_slave(code, found, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and header.sys_flag & PullSysFlag.SUSPEND:
            hold_ms = header.suspend_timeout_millis if self._config.long_polling else self._config.short_polling_ms
            if hold_ms > 0:
                deadline_ms = now_ms + min(hold_ms, self._config.hold_ms_max)
                queue = (header.topic, queue_id)
                self._held.hold(HeldPull(peer, request, queue, header.queue_offset, wanted, deadline_ms))
                return []
        if client_id is not None:
            moved = code == ResponseCode.PULL_OFFSET_MOVED
            self._broadcasts.note(client_id, header, found.next_queue_offset if moved else header.queue_offset, now_ms)
        return self._answer(peer, request, header, topic, group, found, code, now_ms)

    def _begin_fetch(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: PullHeader,
        count_max: int,
        wanted: MessageFilter | None,
        now_ms: int,
    ) -> bool:
        """Return whether the pull waits for rows that another thread fetches; `Broker.fetched` answers it then."""
        if not self._store.fetches or len(self.fetches) + self._fetching >= FETCHES_MAX:
            return False
        queue = (header.topic, header.queue_id)
        codes = None if wanted is None else wanted.tags_codes
        fetch = self._store.begin_fetch(*queue, header.queue_offset, count_max, codes)
        if fetch is None:
            return False
        self.fetches.append((fetch, HeldPull(peer, request, queue, header.queue_offset, wanted, now_ms)))
        return True

    def take_fetches(self) -> list[Fetch]:
        """Return the fetches to start now."""
        taken, self.fetches = self.fetches, []
        self._fetching += len(taken)
        return taken

    def fetched(self) -> None:
        """A fetch ended."""
        self._fetching -= 1

    def _as_slave(self, code: ResponseCode, found: ReadResult, queue_offset: int) -> tuple[ResponseCode, ReadResult]:
        """Return a slave's answer: it may lag, and may not have the log's beginning."""
        if code == ResponseCode.PULL_OFFSET_MOVED:
            is_ahead = found.status is GetStatus.OFFSET_OVERFLOW_BADLY
            code = ResponseCode.PULL_NOT_FOUND if is_ahead else ResponseCode.PULL_RETRY_IMMEDIATELY
            found = found._replace(next_queue_offset=queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and self._replicas.following.is_connected:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, found

    def _suggested(self, group: SubscriptionGroupConfig, after_offset: int) -> int:
        """Return the id of the broker for the next pull; after_offset: where the last record found ends, 0: none."""
        far_size = self._config.far_size
        if far_size is None:
            return 0
        if after_offset and self._store.end_offset - after_offset > far_size:
            return group.which_broker_when_consume_slowly
        return 0 if self._config.is_slave else group.broker_id

    # Checks, in 5.3.3's order.

    def _check(self, header: PullHeader, code: int, now_ms: int) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        if not self._config.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._config.address.ip}] pulling message is forbidden")
        if code == RequestCode.LITE_PULL_MESSAGE and not self._config.lite_pull:
            raise NoPermission(
                f"the broker[{self._config.address.ip}] for lite pull consumer is forbidden (litePullMessageEnable)"
            )
        group = self._groups.require_consuming(header.consumer_group, now_ms)
        topic = self._topics.require(header.topic)
        if not topic.perm & Perm.READ:
            raise NoPermission(f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}]: refresh the route"
            )
        return group, topic

    def _filter(self, header: PullHeader, group: SubscriptionGroupConfig) -> MessageFilter | None:
        """Return the filter of the request's own subscription, or of the group's from its heartbeats; None: all."""
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            check_length(f"an expression for topic {header.topic}", header.subscription or "", EXPRESSION_LENGTH_MAX)
            subscription = SubscriptionData.build(
                header.topic, header.subscription, header.expression_type, header.sub_version
            )
            require_filter(subscription, self._config.property_filter)
            return compile_filter(subscription)
        subscription = self._group_subscription(header, group)
        if is_tag_type(subscription.expression_type):
            return compile_filter(subscription)
        expression = self._kept_expression(header)
        require_filter(subscription, self._config.property_filter)
        if self._config.filter_retry and header.topic.startswith(RETRY_PREFIX):
            return SqlFilter(expression, lambda properties: self._accepts_retry(header.consumer_group, properties))
        return SqlFilter(expression)

    def _kept_expression(self, header: PullHeader) -> SqlExpression:
        """Return the filter from heartbeats if it is valid and not older than the pull."""
        kept = self._filters.get(header.topic, header.consumer_group)
        if kept is None or kept.expression is None:
            raise FilterDataNotExist(
                "The broker's consumer filter data is not exist!Your expression may be wrong! found no valid "
                f"expression of {header.consumer_group} for {header.topic}: correct it and send a heartbeat"
            )
        if kept.data.client_version < header.sub_version:
            raise FilterDataNotLatest(
                f"the consumer's consumer filter data not latest: found version {kept.data.client_version} of "
                f"{header.topic}, expected {header.sub_version}: send a heartbeat"
            )
        return kept.expression

    def _accepts_retry(self, group: str, properties: bytes) -> bool:
        """Apply the filter of the topic that the message was first sent to; without a filter the message passes."""
        topic = find_property(properties, PROPERTY_RETRY_TOPIC.encode()) or b""
        kept = self._filters.get(str(topic, "utf-8", "replace"), group)
        return kept is None or kept.expression is None or kept.expression.matches(properties)

    def _group_subscription(self, header: PullHeader, group: SubscriptionGroupConfig) -> SubscriptionData:
        name = header.consumer_group
        consumers = self._clients.consumer_group(name)
        if consumers is None:
            raise SubscriptionNotExist(
                f"the consumer's group info not exist: {name} has sent no heartbeat to this broker; send one first, or "
                "put the subscription into the pull"
            )
        if consumers.broadcasts and not group.consume_broadcast_enable:
            raise NoPermission(f"the consumer group[{name}] can not consume by broadcast way")
        if self._groups.is_forbidden(name, header.topic):
            raise NoPermission(f"the consumer group[{name}] is forbidden for topic[{header.topic}]")
        subscription = consumers.subscriptions.get(header.topic)
        if subscription is None:
            raise SubscriptionNotExist(
                f"the consumer's subscription not exist: {name} does not subscribe to {header.topic}, only to "
                f"{', '.join(sorted(consumers.subscriptions)) or 'nothing'}"
            )
        if subscription.sub_version < header.sub_version:
            raise SubscriptionNotLatest(
                f"the consumer's subscription not latest: found version {subscription.sub_version} of {header.topic}, "
                f"expected {header.sub_version}: send a heartbeat"
            )
        return subscription

    # Answers.

    def _answer(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: PullHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        found: ReadResult,
        code: ResponseCode,
        now_ms: int,
    ) -> list[Send]:
        body = b"".join(found.records)
        after_offset = 0
        if found.records:
            after_offset = record_end(found.records[-1])
            self._offsets.note_pull(header.consumer_group, header.topic, header.queue_id, found.next_queue_offset)
            if self._stats is not None:
                counter = self._stats.get_counter(header.topic, header.queue_id, header.consumer_group)
                counter.add(len(found.records), len(body))
            if self._trace is not None:
                self._trace.delivered(peer, header, found, now_ms)
        if self._stats is not None:
            if found.records:
                self._stats.pull_hits += 1
            else:
                self._stats.pull_misses += 1
        ext = _response_ext(found.next_queue_offset, found.min_offset, found.max_offset, topic, group)
        if suggested := self._suggested(group, after_offset):
            ext["suggestWhichBrokerId"] = str(suggested)
        return answer(peer, request, ext, code=code, remark=found.status.value, body=body, after_offset=after_offset)

    def _answer_reset(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: PullHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        queue_offset: int,
    ) -> list[Send]:
        min_offset = self._store.min_offset(header.topic, header.queue_id)
        max_offset = self._store.max_offset(header.topic, header.queue_id)
        ext = _response_ext(queue_offset, min_offset, max_offset, topic, group)
        return answer(peer, request, ext, code=ResponseCode.PULL_OFFSET_MOVED, remark=OFFSET_RESET)


def _response_ext(
    next_offset: int, min_offset: int, max_offset: int, topic: TopicConfig, group: SubscriptionGroupConfig
) -> dict[str, str]:
    return PullResponseHeader(
        suggest_which_broker_id=0,
        next_begin_offset=next_offset,
        min_offset=min_offset,
        max_offset=max_offset,
        topic_sys_flag=topic.topic_sys_flag,
        group_sys_flag=group.group_sys_flag,
    ).to_ext()
