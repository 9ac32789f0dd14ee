"""BrokerEvent records: when this broker started and stopped, which roles it had, what it removed from its log.

A master writes them to the trace topic, like its other trace records. A slave cannot write: its node sends them to the
master (`text`, `delivered`). Events that wait when a role ends go to the next one (`take`). Above EVENTS_MAX the oldest
are dropped, and one event DROPPED states how many: a TraceLoss would say that records of messages are missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    BROKER_EVENTS_KEY,
    TRACE_DETAIL_LENGTH_MAX,
    BrokerEvent,
    BrokerEventKind,
    MQError,
    encode_trace,
)

from ..config import BrokerConfig
from .trace_messages import TraceMessages

EVENTS_MAX: Final = 200  # that wait; a broker has a few a day
RETRY_MS: Final = 1_000  # pause after the store refused them


class BrokerEvents:
    """The events of one broker that are not in the trace topic yet, oldest first."""

    def __init__(self, config: BrokerConfig, messages: TraceMessages) -> None:
        self._config = config
        self._messages = messages
        self._waiting: list[BrokerEvent] = []
        self._dropped: BrokerEvent | None = None  # the first one that was dropped
        self._dropped_count = 0
        self._due_ms: int | None = None

    def add(self, event: BrokerEvent, now_ms: int) -> None:
        """Note an event. The names of this broker, its address and the time are filled in where they are missing."""
        config = self._config
        self._waiting.append(
            replace(
                event,
                time_stamp=now_ms if event.time_stamp is None else event.time_stamp,
                cluster_name=event.cluster_name or config.cluster_name,
                broker_name=event.broker_name or config.broker_name,
                address=event.address or str(config.address),
                reason=(event.reason or "")[:TRACE_DETAIL_LENGTH_MAX] or None,
                detail=(event.detail or "")[:TRACE_DETAIL_LENGTH_MAX] or None,
            )
        )
        while len(self._waiting) > EVENTS_MAX:
            self._dropped = self._dropped or self._waiting[0]
            self._dropped_count += 1
            del self._waiting[0]
        if self._due_ms is None:
            self._due_ms = now_ms

    def take(self) -> list[BrokerEvent]:
        """Remove and return the events that were not written."""
        taken, self._waiting, self._due_ms = self._waiting, [], None
        return taken

    def delivered(self, count: int) -> None:
        """Forget the oldest events, which the master has stored, and those that were dropped before them."""
        del self._waiting[:count]
        self._dropped, self._dropped_count = None, 0
        if not self._waiting:
            self._due_ms = None

    def __len__(self) -> int:
        return len(self._waiting)

    # Writing, by a master.

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        if self._due_ms is not None:
            self._due_ms -= by_ms

    def next_due_ms(self) -> int | None:
        """Return when `flush` has something to write; None: nothing waits."""
        return self._due_ms

    def flush(
        self, write: Callable[[Sequence[PendingRecord]], object], now_ms: int, *, all_of_it: bool = False
    ) -> None:
        """Write what waits. If the store refuses it, it waits for another RETRY_MS."""
        if self._due_ms is None or not (all_of_it or now_ms >= self._due_ms):
            return
        try:
            write([self._messages.message(self.text().encode(), now_ms, BROKER_EVENTS_KEY)])
        except MQError:
            self._due_ms = now_ms + RETRY_MS
            return
        self.delivered(len(self._waiting))

    def text(self) -> str:
        """Return the body of a trace message with all that waits."""
        if self._dropped is None:
            return encode_trace(self._waiting)
        dropped = replace(
            self._dropped,
            event=BrokerEventKind.DROPPED,
            reason=f"{self._dropped_count} events from this time on were dropped: more than {EVENTS_MAX} waited",
        )
        return encode_trace([dropped, *self._waiting])
