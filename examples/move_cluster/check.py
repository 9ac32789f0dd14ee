"""What the move did to each order: billed once, not at all, or twice. And whether the copies are what was sent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mqtrail.client import SyncAdmin
from mqtrail.mirror import origin_of


@dataclass(frozen=True)
class Outcome:
    """lost: orders that no consumer billed. doubled: billed in both clusters, or twice in one.

    misplaced: queues of the target whose copies are not the messages of their source, in their order.
    """

    lost: tuple[int, ...]
    doubled: tuple[int, ...]
    misplaced: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether each order was billed once, and each copy is in its place."""
        return not (self.lost or self.doubled or self.misplaced)


def outcome(placed: int, billed: Iterable[int], misplaced: Sequence[str]) -> Outcome:
    """Compare the orders 0 to placed - 1 with those that were billed."""
    times = Counter(billed)
    return Outcome(
        tuple(one for one in range(placed) if not times[one]),
        tuple(sorted(one for one, count in times.items() if count > 1)),
        tuple(misplaced),
    )


def misplaced_queues(source: str, target: str, topic: str, name: str) -> list[str]:
    """Return the queues of the target whose copies from the cluster `name` are not those of the source, in order."""
    found = []
    with SyncAdmin(source) as there, SyncAdmin(target) as here:
        for queue in there.queues(topic):
            sent = [(one.queue_offset, one.body) for one in there.messages_of_queue(queue, 0, there.max_offset(queue))]
            copies = []
            for one in here.messages_of_queue(queue, 0, here.max_offset(queue)):
                origin = origin_of(one.properties, name)
                if origin is not None:
                    copies.append((origin.offset, one.body))
            if list(dict.fromkeys(copies)) != sent:  # a repeat, after kill -9, is a copy with the place of its first
                found.append(f"{queue.topic} {queue.place}: {len(sent)} messages, {len(copies)} copies")
    return found


def report(found: Outcome) -> str:
    """Return the outcome for people."""
    lines = [
        f"lost       {_named(found.lost)}",
        f"doubled    {_named(found.doubled)}",
        f"misplaced  {', '.join(found.misplaced) or 'none'}",
        "The move is right: each order was billed once." if found.is_right else "The move is wrong.",
    ]
    return "\n".join(lines)


def _named(orders: Sequence[int]) -> str:
    shown = ", ".join(map(str, orders[:10])) + (", …" if len(orders) > 10 else "")
    return f"{len(orders)} orders: {shown}" if orders else "none"
