"""BrokerEvent records: when this broker started and stopped, which roles it had, what it removed from its log.

A master writes them to the trace topic, like its other trace records. A slave cannot write: its node sends them to the
master (`waiting`, `delivered`). Events that wait when a role ends go to the next one (`take`). Above EVENTS_MAX the
oldest are dropped, and one event DROPPED states how many: a TraceLoss would say that records of messages are missing.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

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
        if len(self._waiting) > EVENTS_MAX:
            self._waiting[:2] = [_dropped(*self._waiting[:2])]
        if self._due_ms is None:
            self._due_ms = now_ms

    def take(self) -> list[BrokerEvent]:
        """Remove and return the events that were not written."""
        taken, self._waiting, self._due_ms = self._waiting, [], None
        return taken

    @property
    def waiting(self) -> tuple[BrokerEvent, ...]:
        """The events that were not written."""
        return tuple(self._waiting)

    def delivered(self, events: Sequence[BrokerEvent]) -> None:
        """Forget events of `waiting` that the master has stored."""
        stored = {id(one) for one in events}
        self._waiting = [one for one in self._waiting if id(one) not in stored]
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
            write([self._messages.message(encode_trace(self._waiting).encode(), now_ms, BROKER_EVENTS_KEY)])
        except MQError:
            self._due_ms = now_ms + RETRY_MS
            return
        self.take()


def _dropped(first: BrokerEvent, _: BrokerEvent) -> BrokerEvent:
    """Return one event in place of the two oldest. detail: how many were dropped so far."""
    is_more = first.event == BrokerEventKind.DROPPED
    return replace(
        first,
        event=BrokerEventKind.DROPPED,
        reason=f"events from this time on were dropped: more than {EVENTS_MAX} waited",
        detail=str(int(first.detail or "1") + 1 if is_more else 2),
    )
