"""Protection against requests that waited too long, and against groups that are too far behind.

Fast failure: a request that waited longer than the limit of its kind is refused, because its client has given up or
soon will. There is no queue in front of the handlers. A request waits if it is received while others are served, so the
shell measures the wait (`BrokerShell`). The limits are RocketMQ's, by the queue of the request in Apache's broker;
requests of queues without a limit are never refused.

Source: BrokerFastFailure, BrokerController.protectBroker, apache/rocketmq broker/.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from mqtrail.wire import Peer, RemotingCommand, Send, SystemBusy, answer

from ..config import BrokerConfig
from ..state import BrokerState

PROTECT_EVERY_MS: Final = 180_000


class Wait(StrEnum):
    """The setting that limits the wait of a kind of request, by its queue in Apache's broker."""

    SEND = "wait_send_ms"
    PULL = "wait_pull_ms"
    LITE_PULL = "wait_lite_pull_ms"
    ACK = "wait_ack_ms"
    HEARTBEAT = "wait_heartbeat_ms"
    TRANSACTION = "wait_transaction_ms"
    ADMIN = "wait_admin_ms"
    UNLIMITED = ""  # queues without a limit: query, reply, client and consumer manager, load balancing


class FastFailure:
    """Refuses requests that waited too long. waits: kind of each request code; a code that is not served counts as
    ADMIN."""

    def __init__(self, config: BrokerConfig, waits: Mapping[int, Wait]) -> None:
        self._config = config
        self._waits = waits
        self.refused_count = 0

    @property
    def shortest_ms(self) -> int | None:
        """The shortest limit of all kinds; None: fast failure is off."""
        config = self._config
        return min(config.wait_send_ms, config.wait_pull_ms, config.wait_ack_ms) if config.fast_failure else None

    def refuse(self, peer: Peer, request: RemotingCommand, waited_ms: int, size: int) -> list[Send] | None:
        """Return the answer to a request that waited too long (empty for one-way requests); None: serve it.

        size: bytes that wait behind it on its connection.
        """
        if not self._config.fast_failure or request.is_response:
            return None
        wait = self._waits.get(request.code, Wait.ADMIN)
        if wait is Wait.UNLIMITED or waited_ms < getattr(self._config, wait):
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
    """Stops groups that are too far behind, if protect_broker is on, because reads of old data slow down all others."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._groups = state.groups
        self._offsets = state.offsets
        self._store = state.store
        self._next_ms = state.boot_ms + PROTECT_EVERY_MS

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        if self._next_ms is not None:
            self._next_ms -= by_ms

    def next_tick_ms(self) -> int | None:
        return self._next_ms

    def tick(self, now_ms: int) -> None:
        """Check all groups every three minutes. A stopped group stays stopped until an administrator enables it."""
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
