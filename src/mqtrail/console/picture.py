"""A trajectory as a picture: a time line with a lane for the producer, each broker and each group. No drawing here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mqtrail.answers import Event, Trajectory

TICKS_MAX: Final = 6
BARS_MAX: Final = 400  # of one picture; the table below it has every event


class Tone(StrEnum):
    """How a bar is drawn. Each has a pattern or mark beside its color."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    WAIT = "wait"
    MARK = "mark"
    BACK = "back"  # sent back for a retry: an arrow to the broker
    AGAIN = "again"  # stored for a retry: an arrow to the group
    DEAD = "dead"  # given up: an arrow to the dead letters


ARROWS: Final = {Tone.BACK: "↑", Tone.AGAIN: "↓", Tone.DEAD: "⤒"}
"""What is drawn of these tones: lanes of groups are below those of brokers."""
_STORED_TONES: Final = {"RETRY": Tone.AGAIN, "DLQ": Tone.DEAD}


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasted from first_ms to end_ms. label: names of TEXTS or of the record.

    error_ms: how far it may be earlier or later than it is drawn, by the clocks; None: not known.
    """

    first_ms: int
    end_ms: int
    tone: Tone
    label: str
    outcome: str = ""
    detail: str = ""
    error_ms: int | None = None

    @property
    def duration_ms(self) -> int:
        """How long it lasted."""
        return self.end_ms - self.first_ms


@dataclass(frozen=True, slots=True)
class ActorLane:
    """The bars of one actor. kind: producer, broker or group."""

    kind: str
    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Lanes over [first_ms, end_ms]. left_out: bars beyond BARS_MAX."""

    first_ms: int
    end_ms: int
    lanes: tuple[ActorLane, ...]
    left_out: int = 0

    def place(self, at_ms: int) -> float:
        """Return where a time is, 0 to 100."""
        return 100 * (at_ms - self.first_ms) / max(1, self.end_ms - self.first_ms)

    def ticks(self) -> tuple[int, ...]:
        """Return times for the axis, evenly spaced."""
        length = self.end_ms - self.first_ms
        count = min(TICKS_MAX, max(1, length))
        return tuple(self.first_ms + length * number // count for number in range(count + 1))


def picture_of(one: Trajectory) -> Picture | None:
    """Return the picture of a trajectory; None without any event of known time."""
    bars: dict[tuple[str, str], list[Bar]] = {("producer", one.producer_group): []}
    errors = {group.group_name: group.clock_error_ms for group in one.groups}
    for event in one.events:
        if (at := _lane_and_bar(event, one.as_of_ms)) is not None:
            bar = replace(at[1], error_ms=errors.get(event.group_name)) if event.kind == "HANDLED" else at[1]
            bars.setdefault(at[0], []).append(bar)
    for (kind, name), some in bars.items():
        if kind == "group":
            attempts = sorted((bar for bar in some if bar.tone not in ARROWS), key=lambda bar: bar.first_ms)
            some.extend(_waits(one, name, attempts))
    if one.stored_ms is not None and one.visible_ms is not None and one.visible_ms > one.stored_ms and one.place:
        broker = ("broker", one.place.split("/")[0])
        bars.setdefault(broker, []).append(Bar(one.stored_ms, one.visible_ms, Tone.WAIT, "delayed"))
    known = [bar for some in bars.values() for bar in some]
    if not known:
        return None
    order = {"producer": 0, "broker": 1, "group": 2}
    kept: list[ActorLane] = []
    left = BARS_MAX
    for kind, name in sorted((lane for lane, some in bars.items() if some), key=lambda lane: (order[lane[0]], lane[1])):
        some = sorted(bars[kind, name], key=lambda bar: (bar.first_ms, bar.end_ms))[: max(left, 0)]
        left -= len(some)
        kept.append(ActorLane(kind, name, tuple(some)))
    shown = sum(len(lane.bars) for lane in kept)
    first_ms, end_ms = min(bar.first_ms for bar in known), max(bar.end_ms for bar in known)
    return Picture(first_ms, end_ms, tuple(kept), len(known) - shown)


def _lane_and_bar(event: Event, as_of_ms: int) -> tuple[tuple[str, str], Bar] | None:
    """Return the lane and the bar of an event; None for one of unknown time, and for what has no place in a picture."""
    if not event.at_ms:
        return None
    end_ms = event.at_ms + (event.duration_ms or 0)
    outcome, detail = event.outcome, event.detail
    if event.kind == "SEND":
        tone = Tone.GOOD if outcome in ("OK", "SEND_OK") else Tone.BAD
        return ("producer", event.group_name), Bar(event.at_ms, end_ms, tone, event.kind, outcome, detail)
    if event.kind == "STORED":
        tone = _STORED_TONES.get(outcome, Tone.MARK)
        return ("broker", event.place.split("/")[0]), Bar(event.at_ms, end_ms, tone, event.kind, outcome, detail)
    if event.kind in ("SENT_BACK", "DEAD_LETTERED"):
        tone = Tone.BACK if event.kind == "SENT_BACK" else Tone.DEAD
        return ("group", event.group_name), Bar(event.at_ms, event.at_ms, tone, event.kind, outcome, detail)
    if event.kind == "HANDLED":
        if outcome == "OPEN":
            return ("group", event.group_name), Bar(
                event.at_ms, max(as_of_ms, event.at_ms), Tone.OPEN, event.kind, outcome
            )
        tone = Tone.GOOD if outcome == "OK" else Tone.BAD
        return ("group", event.group_name), Bar(event.at_ms, end_ms, tone, event.kind, outcome, detail)
    return None


def _waits(one: Trajectory, group: str, handled: list[Bar]) -> Iterator[Bar]:
    """Yield the times in which a group had the message before it and between two attempts."""
    before = one.visible_ms
    for bar in handled:
        if before is not None and bar.first_ms > before:
            yield Bar(before, bar.first_ms, Tone.WAIT, "waits")
        before = max(before or 0, bar.end_ms)
