"""Counts what happens to the messages of a run: fates, latencies, errors, seconds. Times are seconds from its begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from mqtrail.client import SendFailed, SendResult, TooManyInFlight
from mqtrail.wire import MQError, Refusal

from .histogram import LatencyHistogram
from .ledger import Ledger, SendFate
from .marks import Bodies, MarkKind, mark_of
from .report import LatencySummary, LoadErrors, LoadSecond

KINDS_MAX: Final = 32  # kinds of errors; further ones are counted together
OTHER: Final = "other"
TEXT_MAX: Final = 500  # characters of an example
CANCELLED: Final = "NO_ANSWER_UNTIL_THE_END"


class LoadRecorder:
    """Counts of one run. counted_from_s: messages with an earlier intended time are not part of the latencies."""

    def __init__(self, ledger: Ledger, bodies: Bodies, counted_from_s: float) -> None:
        self.ledger = ledger
        self._bodies = bodies
        self._counted_from_s = counted_from_s
        self.start = LatencyHistogram()  # intended -> send
        self.store = LatencyHistogram()  # send -> acknowledged
        self.acknowledged = LatencyHistogram()  # intended -> acknowledged
        self.end_to_end = LatencyHistogram()  # intended -> handler
        self.last_acknowledged_s = 0.0
        self.acknowledged_counted = 0
        self.statuses: Counter[str] = Counter()
        self.damaged = 0
        self.foreign = 0
        self.probes: set[int] = set()  # indexes of queues whose probe was consumed
        self.last_delivery_s = 0.0
        self._errors: dict[str, LoadErrors] = {}
        self._seconds: list[LoadSecond] = []
        self._second = _Second(0.0)

    def begun(self, numbers: range) -> None:
        """A send takes its place among those in flight."""
        for number in numbers:
            self.ledger.begin(number)
        self._second.sent += len(numbers)

    def started(self, at_s: float, now_s: float) -> None:
        """A send is handed to its producer."""
        if at_s >= self._counted_from_s:
            self.start.add(_us(now_s - at_s))

    def stored(self, numbers: range, at_s: float, began_s: float, now_s: float, result: SendResult) -> None:
        """The broker acknowledged a send."""
        for number, msg_id in zip(numbers, result.msg_ids, strict=False):
            self.ledger.settle(number, SendFate.ACKNOWLEDGED, msg_id)
        self.statuses[result.status.name] += len(numbers)
        self._second.acknowledged += len(numbers)
        self._second.acknowledged_us.add(_us(now_s - at_s))
        if at_s >= self._counted_from_s:
            self.acknowledged_counted += len(numbers)
            self.store.add(_us(now_s - began_s))
            self.acknowledged.add(_us(now_s - at_s))
            self.last_acknowledged_s = now_s

    def failed(self, numbers: range, now_s: float, error: MQError | None) -> None:
        """A send failed. error None: it had no answer until the end."""
        is_uncertain = error is None or (isinstance(error, SendFailed) and error.maybe_stored)
        for number in numbers:
            self.ledger.settle(number, SendFate.UNCERTAIN if is_uncertain else SendFate.NOT_STORED)
        self._second.failed += len(numbers)
        kind = CANCELLED if error is None else kind_of(error)
        if kind not in self._errors and len(self._errors) >= KINDS_MAX:
            kind = OTHER
        known = self._errors.get(kind)
        self._errors[kind] = LoadErrors(
            kind=kind,
            count=len(numbers) + (known.count if known else 0),
            first_s=known.first_s if known else round(now_s, 3),
            last_s=round(now_s, 3),
            example=known.example if known else str(error or "the run ended")[:TEXT_MAX],
        )

    def delivered(self, body: bytes, now_s: float) -> None:
        """A message reached the handler."""
        mark = mark_of(body)
        if mark is None or mark.run_id != self._bodies.run_id:
            self.foreign += 1
            return
        if mark.kind == MarkKind.PROBE:
            self.probes.add(mark.key)
            return
        self.last_delivery_s = now_s
        if not self._bodies.is_whole(body, mark):
            self.damaged += 1
        if not self.ledger.deliver(mark.number, mark.key):
            return
        at_s = mark.intended_us / 1e6
        self._second.consumed += 1
        self._second.consumed_us.add(_us(now_s - at_s))
        if at_s >= self._counted_from_s:
            self.end_to_end.add(_us(now_s - at_s))

    def end_second(self, now_s: float, in_flight: int, cpu_s: Mapping[str, float | None]) -> None:
        """Close the row of the current second and begin the next."""
        found = self._second
        seconds = max(now_s - found.at_s, 1e-6)
        acknowledged, consumed = LatencySummary.of(found.acknowledged_us), LatencySummary.of(found.consumed_us)
        self._seconds.append(
            LoadSecond(
                at_s=round(found.at_s, 3),
                seconds=round(seconds, 3),
                sent=found.sent,
                acknowledged=found.acknowledged,
                failed=found.failed,
                consumed=found.consumed,
                in_flight=in_flight,
                acknowledged_p50_ms=acknowledged.p50_ms,
                acknowledged_p99_ms=acknowledged.p99_ms,
                consumed_p50_ms=consumed.p50_ms,
                consumed_p99_ms=consumed.p99_ms,
                cores={name: None if used is None else round(used / seconds, 3) for name, used in cpu_s.items()},
            )
        )
        self._second = _Second(now_s)

    @property
    def errors(self) -> tuple[LoadErrors, ...]:
        """The errors, the most frequent first."""
        return tuple(sorted(self._errors.values(), key=lambda one: -one.count))

    @property
    def by_second(self) -> Sequence[LoadSecond]:
        """The closed rows until the last in which something happened."""
        count = len(self._seconds)
        while count and self._seconds[count - 1].is_empty:
            count -= 1
        return self._seconds[:count]

    @property
    def watched_s(self) -> float:
        """The time of all closed rows."""
        return sum(one.seconds for one in self._seconds)

    def latencies(self) -> dict[str, LatencySummary]:
        """The distributions after the warm-up, by name."""
        parts = {
            "start": self.start,
            "store": self.store,
            "acknowledged": self.acknowledged,
            "end_to_end": self.end_to_end,
        }
        return {name: LatencySummary.of(found) for name, found in parts.items()}


class _Second:
    """The row of the current second."""

    __slots__ = ("acknowledged", "acknowledged_us", "at_s", "consumed", "consumed_us", "failed", "sent")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.sent = self.acknowledged = self.failed = self.consumed = 0
        self.acknowledged_us = LatencyHistogram()
        self.consumed_us = LatencyHistogram()


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def kind_of(error: MQError) -> str:
    """Return the kind of a send's error, for the report."""
    if isinstance(error, TooManyInFlight):
        return "TOO_MANY_IN_FLIGHT"
    if isinstance(error, SendFailed) and error.attempts:
        # The attempt that decides whether the message may be stored, else the last one.
        shown = next((one for one in error.attempts if one.maybe_stored), error.attempts[-1])
        return str(shown.outcome) if shown.code is None else f"{shown.outcome} {shown.code}"
    if isinstance(error, Refusal):
        return f"REFUSED {int(error.code)} {type(error).__name__}"
    return type(error).__name__
