"""Which queues of a topic a member of a group consumes.

Every member computes this alone from the same sorted inputs, so all agree without talking.
Source: AllocateMessageQueueAveragely and …ByCircle, RocketMQ client.
"""

from collections.abc import Callable, Sequence

from mqtrail.wire import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return a run of neighbouring queues; the first members get one more where it does not come out even.

    Both sequences must be sorted. A client id that is not among client_ids gets none.
    """
    if client_id not in client_ids:
        return []
    place = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    first = place * share + min(place, rest)
    return list(queues[first : first + share + (1 if place < rest else 0)])


def allocate_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return every n-th queue, n members, from the member's own place on."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
