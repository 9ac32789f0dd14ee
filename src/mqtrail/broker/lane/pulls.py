"""Pulls of the lane: plain ones that find messages immediately.

Any other pull (one to be held, an offset out of range, a reset, a refusal, the first pull of a group) goes to `handle`.
The lane changes nothing before it is certain to answer the pull.
"""

from typing import Any, Final, cast

from mqtrail.store import GetStatus, ReadResult
from mqtrail.wire import (
    EXPRESSION_TAG,
    FRAME_HEAD,
    Buffer,
    MQError,
    Peer,
    Perm,
    PullHeader,
    PullSysFlag,
    SubscriptionData,
    record_end,
)

from ..broker import Broker
from ..filter import MessageFilter, compile_filter
from .caches import whole_number
from .headers import PullExt
from .layouts import HeaderLayout
from .replies import pull_template

SUBSCRIPTIONS_MAX: Final = 4_096
SUBSCRIPTION_LENGTH_MAX: Final = 256  # characters; `handle` compiles a longer one for each pull


class LanePulls:
    """Answers pulls for one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._serves = not broker.config.is_slave  # `handle` checks what a slave serves
        self._far_size = broker.config.far_size
        self._fetches = broker.store.fetches
        self._template = pull_template(broker.config, GetStatus.FOUND.value)
        self._filters: dict[tuple[str, str, str | None], MessageFilter | None] = {}

    def serve(self, peer: Peer, ext: Any, opaque: int, out: list[Buffer], now_ms: int) -> tuple[int, int] | None:
        """Add the answer of a pull to out; return its size and the offset to which the log must be flushed first.

        ext: the fields of the header (headers.PullExt or an object with the same names). None: nothing was done.
        """
        if not self._serves:
            return None
        broker, config = self._broker, self._broker.config
        name, topic = ext.consumer_group, ext.topic
        queue_id, queue_offset = whole_number(ext.queue_id), whole_number(ext.queue_offset)
        sys_flag, commit_offset = whole_number(ext.sys_flag), whole_number(ext.commit_offset)
        count_max, sub_version = whole_number(ext.max_msg_nums), whole_number(ext.sub_version)
        size_max = config.pull_size_max if ext.max_msg_bytes is None else whole_number(ext.max_msg_bytes)
        if min(queue_id, queue_offset, sys_flag, commit_offset, count_max, sub_version, size_max) < 0:
            return None
        if whole_number(ext.suspend_timeout_millis) < 0 or not config.permission & Perm.READ:
            return None
        if self._fetches:
            return None  # `handle` lets another thread read
        group, topic_config = broker.groups.get(name), broker.topics.get(topic)
        if group is None or not group.consume_enable or topic_config is None or not topic_config.perm & Perm.READ:
            return None
        if group.attributes or config.group_pull_rate_max:
            return None  # its rate may be limited
        if queue_id >= topic_config.read_queue_nums or broker.offsets.is_reset(name, topic, queue_id):
            return None
        if sys_flag & PullSysFlag.COMMIT_OFFSET and not broker.offsets.has_room(name, topic, queue_id):
            return None
        consumers = broker.clients.consumer_group(name)
        if consumers is not None and consumers.broadcasts:
            return None
        if sys_flag & PullSysFlag.SUBSCRIPTION:
            key = (topic, ext.subscription or "", ext.expression_type)
            if len(key[1]) > SUBSCRIPTION_LENGTH_MAX:
                return None
            if key not in self._filters and not self._learn(*key):
                return None
            wanted = self._filters[key]
        else:
            if consumers is None or broker.groups.is_forbidden(name, topic):
                return None
            subscription = consumers.subscriptions.get(topic)
            if subscription is None or subscription.sub_version < sub_version:
                return None
            if subscription.expression_type == EXPRESSION_TAG:
                wanted = compile_filter(subscription)
            else:
                kept = broker.filters.get(topic, name)
                if kept is None or kept.filter is None or kept.data.client_version < sub_version:
                    return None
                wanted = kept.filter
        if wanted is not None and wanted.accepts is not None and (not config.property_filter or config.filter_retry):
            return None
        try:
            found = broker.store.read(
                topic,
                queue_id,
                queue_offset,
                max(1, min(count_max, config.pull_count_max)),
                max(1, min(config.pull_size_max, size_max or config.pull_size_max)),
                None if wanted is None else wanted.tags_codes,
                accepts=None if wanted is None else wanted.accepts,
                scan_max=None if wanted is None else wanted.scan_max,
            )
        except Exception:  # usually a damaged record: `handle` reads again and answers with the reason
            return None
        if not found.records:
            return None
        if self._far_size is not None and (
            group.broker_id or broker.store.end_offset - record_end(found.records[-1]) > self._far_size
        ):
            return None  # `handle` suggests another broker
        if sys_flag & PullSysFlag.COMMIT_OFFSET:
            broker.offsets.commit(name, topic, queue_id, commit_offset)
        size = self._answer(found, opaque, topic_config.topic_sys_flag, group.group_sys_flag, out)
        broker.offsets.note_pull(name, topic, queue_id, found.next_queue_offset)
        stats = broker.stats
        if stats is not None:
            counter = stats.get_counter(topic, queue_id, name)
            counter.add(len(found.records), size)
            stats.pull_hits += 1
        if broker.trace is not None:
            broker.trace.delivered(peer, _header_of(ext), found, now_ms)
        return size, record_end(found.records[-1])

    def _learn(self, topic: str, expression: str, kind: str | None) -> bool:
        """Cache the filter of a subscription; False: the subscription cannot be parsed."""
        try:
            wanted = compile_filter(SubscriptionData.build(topic, expression, kind))
        except MQError:
            return False
        if len(self._filters) >= SUBSCRIPTIONS_MAX:
            self._filters.clear()
        self._filters[topic, expression, kind] = wanted
        return True

    def _answer(self, found: ReadResult, opaque: int, topic_flag: int, group_flag: int, out: list[Buffer]) -> int:
        """Add the frame to out without joining its records: all replies are joined once."""
        header = self._template % (
            found.next_queue_offset, found.min_offset, found.max_offset, topic_flag, group_flag, opaque,
        )  # fmt: skip
        size = 0
        for record in found.records:
            size += len(record)
        out.append(FRAME_HEAD.pack(4 + len(header) + size, len(header)))
        out.append(header)
        out += found.records
        return size


def _header_of(ext: Any) -> PullHeader:
    """Return the header as `handle` would have read it."""
    return PullHeader(
        consumer_group=ext.consumer_group,
        topic=ext.topic,
        queue_id=int(ext.queue_id),
        queue_offset=int(ext.queue_offset),
        max_msg_nums=int(ext.max_msg_nums),
        sys_flag=int(ext.sys_flag),
        commit_offset=int(ext.commit_offset),
        suspend_timeout_millis=int(ext.suspend_timeout_millis),
        subscription=ext.subscription,
        sub_version=int(ext.sub_version),
        expression_type=ext.expression_type,
        max_msg_bytes=None if ext.max_msg_bytes is None else int(ext.max_msg_bytes),
    )


def pull_ext(layout: HeaderLayout, pieces: tuple[object, ...]) -> PullExt:
    """Return the fields of a binary pull as those of a JSON pull."""
    fields, places = layout.fields, layout.places
    queue_id, queue_offset, commit_offset, sub_version = (
        cast(bytes, pieces[place]).decode("latin-1") if place else "0" for place in places
    )
    return PullExt(
        consumer_group=fields["consumerGroup"],
        topic=fields["topic"],
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=fields["maxMsgNums"],
        sys_flag=fields["sysFlag"],
        commit_offset=commit_offset,
        suspend_timeout_millis=fields["suspendTimeoutMillis"],
        subscription=fields.get("subscription"),
        sub_version=sub_version,
        expression_type=cast(Any, fields.get("expressionType")),
        max_msg_bytes=fields.get("maxMsgBytes"),
    )
