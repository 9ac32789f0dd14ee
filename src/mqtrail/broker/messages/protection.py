"""How the broker protects itself from what it cannot serve in time, and from groups that read too far back.

Fast failure: a request that surely waited longer than its kind may is refused instead of served, because its client
has given it up or soon will. There is no queue before the handlers; what waits is what was received and could not be
served at once, so the shell says how long (`BrokerShell`). Limits are RocketMQ's, by the queue that the request would
stand in there; requests of its other queues are never refused.

Source: BrokerFastFailure, BrokerController.protectBroker, apache/rocketmq broker/.
"""

from typing import Final

from msgspec.structs import replace

from mqtrail.wire import Peer, RemotingCommand, RequestCode, Send, SystemBusy, answer

from ..config import BrokerConfig
from ..state import BrokerState

PROTECT_EVERY_MS: Final = 180_000

_SEND: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.RECALL_MESSAGE,
)
_PULL: Final = (RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE)
_ACK: Final = (
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
# Of queues that are not looked at: query, reply, client and consumer manager, load balancing.
_PATIENT: Final = (
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
)
WAIT_FIELDS: Final[dict[int, str | None]] = {
    **dict.fromkeys(_SEND, "wait_send_ms"),
    **dict.fromkeys(_PULL, "wait_pull_ms"),
    **dict.fromkeys(_ACK, "wait_ack_ms"),
    **dict.fromkeys(_PATIENT, None),
    RequestCode.LITE_PULL_MESSAGE: "wait_lite_pull_ms",
    RequestCode.HEART_BEAT: "wait_heartbeat_ms",
    RequestCode.END_TRANSACTION: "wait_transaction_ms",
}
"""Request code -> the setting that says how long it may wait; None: as long as it likes. All others: wait_admin_ms."""


class FastFailure:
    """Refuses what waited too long."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.refused_count = 0

    @property
    def shortest_ms(self) -> int | None:
        """The shortest wait that any request is refused for; None: fast failure is off."""
        config = self._config
        return min(config.wait_send_ms, config.wait_pull_ms, config.wait_ack_ms) if config.fast_failure else None

    def refuse(self, peer: Peer, request: RemotingCommand, waited_ms: int, size: int) -> list[Send] | None:
        """Return the answer to a request that waited too long (none to a one-way one); None: serve it.

        size: bytes that wait behind it on its connection.
        """
        if not self._config.fast_failure or request.is_response:
            return None
        name = WAIT_FIELDS.get(request.code, "wait_admin_ms")
        if name is None or waited_ms < getattr(self._config, name):
            return None
        self.refused_count += 1
        if request.is_oneway:
            return []
        remark = (
            f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {waited_ms}ms, "
            f"size of queue: {size}"
        )
        return answer(peer, request, code=SystemBusy.code, remark=remark)


class SlowGroups:
    """Stops groups that fell behind too far from consuming, where protect_broker says so: their reading costs all."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._groups = state.groups
        self._offsets = state.offsets
        self._store = state.store
        self._next_ms = state.boot_ms + PROTECT_EVERY_MS

    def set_back(self, by_ms: int) -> None:
        """Wait no longer for the clock's having been set back."""
        if self._next_ms is not None:
            self._next_ms -= by_ms

    def next_tick_ms(self) -> int | None:
        return self._next_ms

    def tick(self, now_ms: int) -> None:
        """Look at all groups every three minutes; one that is stopped stays so until an administrator lets it go on."""
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + PROTECT_EVERY_MS
        if not self._config.protect_broker:
            return
        for group, topic, queue_id, queue_offset in self._offsets.pulled_positions():
            config = self._groups.get(group)
            if config is None or not config.consume_enable:
                continue
            entries = self._store.entries(topic, queue_id, queue_offset, 1)
            if entries and self._store.end_offset - entries[0][0] > self._config.consumer_fall_behind_size:
                self._groups.update(replace(config, consume_enable=False), now_ms)
