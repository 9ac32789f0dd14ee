"""Listeners for changed assignments and queues. Their exceptions are logged; the consumer continues.

Source: MessageQueueListener, TopicMessageQueueChangeListener, RocketMQ client.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from mqtrail.net import Log
from mqtrail.wire import MessageQueue

log = Log()

RebalanceListener = Callable[[str, list[MessageQueue], list[MessageQueue]], Awaitable[None] | None]
"""Called with a topic, all its queues and those of this member."""
QueuesListener = Callable[[str, list[MessageQueue]], Awaitable[None] | None]
"""Called with a topic and all its queues."""


async def notify(listener: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
    """Call a listener and wait for it; an exception is logged."""
    try:
        answer = listener(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("consumer.listener_failed", listener=getattr(listener, "__qualname__", repr(listener)))
