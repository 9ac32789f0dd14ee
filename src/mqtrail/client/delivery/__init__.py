"""Messages on their way through the application: deliveries, batches, running handlers, messages sent back.

Pull and pop consumers both use it: `ProcessQueue` and `Flow` bound what is in memory, `Ready` queues deliveries for the
application, `SendBackCalls` returns a failed message to the broker.
"""

from .batch import Batch
from .consumer_stats import SAMPLE_MS, ConsumerStats, ConsumerTotals
from .delivery import Delivery, Outcome
from .flow import Flow
from .limited import LimitedReady
from .limits import HandlerLimits, LimitsNow
from .process_queue import ProcessQueue
from .ready import Ready
from .running import RunningHandlers
from .send_back import ATTEMPTS_MAX_DEFAULT, SendBackCalls

__all__ = [
    "ATTEMPTS_MAX_DEFAULT",
    "SAMPLE_MS",
    "Batch",
    "ConsumerStats",
    "ConsumerTotals",
    "Delivery",
    "Flow",
    "HandlerLimits",
    "LimitedReady",
    "LimitsNow",
    "Outcome",
    "ProcessQueue",
    "Ready",
    "RunningHandlers",
    "SendBackCalls",
]
