"""The current ranges of topics' queues, and whether a reader can continue at its offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby

from mqtrail.wire import MessageQueue

from .cluster import BrokerUnreachable, Cluster, Retrying, all_queues
from .offsets import QueueOffsets
from .reading import DataLoss

Bounds = dict[MessageQueue, tuple[int, int]]  # [first, end) of each queue


class FoundBounds(Bounds):
    """The bounds of queues, and `silent`: the queues of brokers that did not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: set[MessageQueue] = set()


def bounds_of(cluster: Cluster, topics: Iterable[str], retry_timeout_ms: int, *, hold_unreachable: bool) -> FoundBounds:
    """Return [first, end) of every queue of the topics, by one request per topic and broker if brokers support it.

    hold_unreachable: leave out a broker that does not answer in time, so that a reader keeps its offsets in the
    broker's queues. Otherwise BrokerUnreachable is raised.
    """
    retrying = Retrying(retry_timeout_ms)
    bounds = FoundBounds()
    silent: set[str] = set()
    queues = all_queues(cluster, topics, retrying)
    for (topic, broker_name), group in groupby(queues, lambda queue: (queue.topic, queue.broker_name)):
        of_broker = list(group)
        if broker_name in silent:
            bounds.silent.update(of_broker)
            continue
        try:
            bounds.update(_of_broker(cluster, topic, broker_name, of_broker, retrying))
        except BrokerUnreachable:
            if not hold_unreachable:
                raise
            silent.add(broker_name)
            bounds.silent.update(of_broker)
    return bounds


def _of_broker(
    cluster: Cluster, topic: str, broker_name: str, queues: list[MessageQueue], retrying: Retrying
) -> Bounds:
    what = f"bounds of topic {topic} on {broker_name}"
    known = retrying(what, partial(cluster.topic_bounds, topic, broker_name)) if len(queues) > 1 else {}
    return {
        queue: known[queue] if queue in known else retrying(f"bounds of {queue}", partial(cluster.bounds, queue))
        for queue in queues
    }


def check_bounds(
    at: QueueOffsets, bounds: Mapping[MessageQueue, tuple[int, int]], *, hold_unreachable: bool, fail_on_data_loss: bool
) -> None:
    """Raise BrokerUnreachable if a queue is missing, DataLoss if it ends before the offset reached, unless allowed.

    If allowed, the reader keeps its offset until the queue is back: offsets never decrease.
    """
    gone = sorted(set(at) - set(bounds))
    if gone and not hold_unreachable:
        raise BrokerUnreachable(
            f"{len(gone)} queues that were read before have no route now, the first is {gone[0]}: "
            "check its broker, or set onUnreachable to hold to continue with the others"
        )
    for queue in sorted(set(at) & set(bounds)):
        if bounds[queue][1] < at[queue] and fail_on_data_loss:
            raise DataLoss(
                f"{queue} ends at {bounds[queue][1]} and was read up to {at[queue]}: the topic was deleted "
                "and created again, or the broker lost messages. Read it again with a new checkpoint (the pipeline: "
                "into a new lake), or set failOnDataLoss to false"
            )
