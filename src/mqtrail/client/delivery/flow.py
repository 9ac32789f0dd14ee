"""Flow control: the limits of unsettled messages of a consumer, and suspending its pulls.

Source: the flow control of DefaultMQPushConsumerImpl.pullMessage and RebalancePushImpl.messageQueueChanged, RocketMQ
client.
"""

import asyncio
from collections.abc import Sequence

from mqtrail.wire import MessageQueue

from ..core import ConsumerConfig
from .process_queue import ProcessQueue


class Flow:
    """The limits of one consumer's queues, and whether all its pulls are suspended."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._topics: dict[str, tuple[int, int]] = {}  # topic -> messages and bytes of each of its queues
        self._open = asyncio.Event()
        self._open.set()

    @property
    def suspended(self) -> bool:
        """Whether pulling is suspended."""
        return not self._open.is_set()

    def suspend(self) -> None:
        """Stop pulling; messages already pulled are still delivered."""
        self._open.clear()

    def resume(self) -> None:
        """Pull again."""
        self._open.set()

    async def opened(self) -> None:
        """Wait until pulling is allowed."""
        await self._open.wait()

    def share(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Divide a topic's limits among the queues assigned to this member."""
        config, count = self._config, max(1, len(queues))
        count_max, size_max = config.queue_count_max, config.queue_size_max
        if config.topic_count_max is not None:
            count_max = max(1, config.topic_count_max // count)
        if config.topic_size_max is not None:
            size_max = max(1, config.topic_size_max // count)
        self._topics[topic] = count_max, size_max

    def is_full(self, held: ProcessQueue) -> bool:
        """Whether a queue has reached a limit of unsettled messages, so that it must not be pulled now."""
        config = self._config
        count_max, size_max = self._topics.get(held.queue.topic, (config.queue_count_max, config.queue_size_max))
        return held.count > count_max or held.size > size_max or (not config.ordered and held.span > config.span_max)
