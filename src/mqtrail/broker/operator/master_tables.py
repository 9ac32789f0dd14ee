"""The tables that a slave copies from its master: what its log does not have.

    at once                            21 topics, 201 groups, 402 request modes
    when the slave's log has reached   43 consumer offsets, 45 offsets of delay levels, 60 progress of the timers
    the master's end at that time

A message that a delay or a timer has delivered must be in the slave's log before the slave takes over that it was
delivered. Otherwise a slave that becomes master would have lost it.
Source: SlaveSynchronize, apache/rocketmq broker/slave/.
"""

from collections.abc import Callable
from typing import Final

from mqtrail.store import TimerCheckpoint
from mqtrail.wire import (
    BodyError,
    ConsumerOffsetTable,
    DelayOffsetTable,
    KvTable,
    RequestCode,
    RequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    number_of,
)

from ..state import BrokerState
from ..timing import DelayedMessages

CONFIG_CODES: Final = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
PROGRESS_CODES: Final = (
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)
END_CODE: Final = RequestCode.GET_BROKER_RUNTIME_INFO
OPTIONAL_CODES: Final = frozenset(
    {RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestCode.GET_TIMER_CHECK_POINT}
)  # 4.9 does not serve them

Adopt = Callable[[int], None]  # now_ms


class MasterTables:
    """Takes the master's tables. adopt_modes: of the request modes."""

    def __init__(
        self, state: BrokerState, delays: DelayedMessages, adopt_modes: Callable[[RequestModeTable], None]
    ) -> None:
        self._state = state
        self._delays = delays
        self._adopt_modes = adopt_modes

    def decoded(self, code: int, body: bytes) -> Adopt:
        """Return what takes over the answer to a request; any thread may call it. BodyError: it cannot be read."""
        state = self._state
        match code:
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                topics = TopicConfigTable.decode(body)
                return lambda now_ms: state.topics.adopt(topics, now_ms)
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                groups = SubscriptionGroupTable.decode(body)
                return lambda now_ms: state.groups.adopt(groups, now_ms)
            case RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
                modes = RequestModeTable.decode(body)
                return lambda now_ms: self._adopt_modes(modes)
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                offsets = ConsumerOffsetTable.decode(body)
                return lambda now_ms: state.offsets.adopt(offsets)
            case RequestCode.GET_ALL_DELAY_OFFSET:
                delays = DelayOffsetTable.decode(body)
                return lambda now_ms: self._delays.adopt(delays)
            case RequestCode.GET_TIMER_CHECK_POINT:
                checkpoint = TimerCheckpoint.decode(body)
                if checkpoint is None:
                    return lambda now_ms: None  # the master has no timers yet
                return lambda now_ms: state.store.timers.adopt(checkpoint)
        raise AssertionError(f"found code {code}, expected one of the tables'")


def master_end(body: bytes) -> int:
    """Return the end of the master's log from the answer to END_CODE. BodyError: it does not have it."""
    text = str(KvTable.decode(body).table.get("commitLogMaxOffset", ""))
    end_offset = number_of(text.encode("utf-8", "replace"))
    if end_offset is None:
        raise BodyError(f"found commitLogMaxOffset {text[:20]!r}, expected a number")
    return end_offset
