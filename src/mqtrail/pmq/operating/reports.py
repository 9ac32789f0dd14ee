"""Reports by queue, topic and node: how much is stored, how fast it grows, what to do. Every call: DoorRefused,
DoorFailed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mqtrail.clock import now_ms

from .door import DoorAnswer, OperatedDoor
from .looking import queues, topics

DAY_MS: Final = 86_400_000
AGE_MS_MIN: Final = 3_600_000  # of the oldest message: from less no rate per day is derived
EXPAND_FROM: Final = 1_000_000  # messages a day and queue, as in pmq
SHRINK_BELOW: Final = 500_000
SILENT_MS: Final = 7 * DAY_MS
HOME: Final = "home"


def queue_report(door: OperatedDoor, topic: str | None = None) -> DoorAnswer:
    """Return each queue with table, messages, bytes, ages and messages a day, the most messages first.

    per_day: kept messages by the age of the oldest; None: it is younger than an hour, or there is none.
    """
    found = queues(door, topic, tables=True).rows("queues")
    ages = {
        (row["topic"], row["queue"]): row["first_stored_ms"] for row in door.get("ages", topic=topic).rows("queues")
    }
    at_ms = now_ms()
    rows = []
    for row in found:
        first_ms = ages.get((row["topic"], row["queue"]))
        age_ms = None if first_ms is None else at_ms - first_ms
        is_known = age_ms is not None and age_ms >= AGE_MS_MIN
        per_day = row["messages"] * DAY_MS / age_ms if is_known and age_ms is not None else None
        rows.append(
            DoorAnswer(
                {name: row[name] for name in ("topic", "queue")},
                node=row.get("node") or HOME,
                **{name: row[name] for name in ("table", "size", "first", "next", "messages")},
                first_stored_ms=first_ms,
                last_stored_ms=row["last_stored_ms"],
                per_day=None if per_day is None else round(per_day),
            )
        )
    rows.sort(key=lambda row: (-row["messages"], row["topic"], row["queue"]))
    return DoorAnswer(queues=rows)


def topic_report(door: OperatedDoor) -> DoorAnswer:
    """Return each topic with its size, its messages a day, and advice.

    state: empty, silent (no message for 7 days), unread (no group consumes it) or used. advice: expand or shrink, with
    the number of queues in wanted; None: the queues fit, or the rate is unknown.
    """
    rows = []
    of_topic: dict[str, list[DoorAnswer]] = {}
    for queue in queue_report(door).rows("queues"):
        of_topic.setdefault(queue["topic"], []).append(queue)
    at_ms = now_ms()
    for row in topics(door).rows("topics"):
        parts = of_topic.get(row["topic"], [])
        per_day = _sum([one["per_day"] for one in parts if one["messages"]])
        advice, wanted = advised(per_day if row["messages"] else None, row["write_queues"])
        last_ms = row["last_stored_ms"]
        state = "used" if row["groups"] else "unread"
        if not row["messages"]:
            state = "empty"
        elif last_ms is not None and at_ms - last_ms > SILENT_MS:
            state = "silent"
        rows.append(
            DoorAnswer(
                topic=row["topic"],
                queues=row["write_queues"],
                messages=row["messages"],
                size=_sum([one["size"] for one in parts]),
                per_day=per_day if row["messages"] else None,
                last_stored_ms=last_ms,
                groups=len(row["groups"]),
                state=state,
                advice=advice,
                wanted=wanted,
            )
        )
    rows.sort(key=lambda row: (-row["messages"], row["topic"]))
    return DoorAnswer(topics=rows)


def advised(per_day: int | None, queue_count: int) -> tuple[str | None, int | None]:
    """Return `expand` or `shrink` with the number of queues that fits a rate; None: neither, or the rate is unknown."""
    if per_day is None or not queue_count:
        return None, None
    fitting = max(1, -(-per_day // EXPAND_FROM))
    if per_day > EXPAND_FROM * queue_count:
        return "expand", fitting
    if per_day < SHRINK_BELOW * queue_count and fitting < queue_count:
        return "shrink", fitting
    return None, None


def node_report(door: OperatedDoor) -> DoorAnswer:
    """Return each database of the store with its queues, messages, bytes and messages a day, the most messages first.

    per_day, size: None: those of some queue are unknown.
    """
    parts: dict[str, list[DoorAnswer]] = {}
    for queue in queue_report(door).rows("queues"):
        parts.setdefault(queue["node"], []).append(queue)
    rows = [
        DoorAnswer(
            node=name,
            queues=len(found),
            topics=len({one["topic"] for one in found}),
            messages=sum(one["messages"] for one in found),
            size=_sum([one["size"] for one in found]),
            per_day=_sum([one["per_day"] for one in found if one["messages"]]),
        )
        for name, found in parts.items()
    ]
    rows.sort(key=lambda row: (-row["messages"], row["node"]))
    return DoorAnswer(nodes=rows)


def _sum(numbers: Sequence[int | None] | Iterable[int | None]) -> int | None:
    """Return the sum; None: one of the numbers is unknown."""
    total = 0
    for one in numbers:
        if one is None:
            return None
        total += one
    return total
