"""Queues of a cluster in a folder, the messages that tests store in them, and the options to read them."""

import json
from typing import Any

from mqtrail.wire import MessageQueue

A0 = MessageQueue("orders", "broker-a", 0)
A1 = MessageQueue("orders", "broker-a", 1)
B0 = MessageQueue("orders", "broker-b", 0)
POINTS = MessageQueue("points", "broker-a", 0)


def bodies(name: str, count: int, start: int = 0) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(start, start + count)]


def options(cluster: Any, **more: object) -> dict[str, str]:
    given = {"nameServer": str(cluster.folder), "topic": "orders", "retryTimeoutMs": "1000"} | more
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def places(queue: MessageQueue, offsets: range) -> list[tuple[Any, ...]]:
    return [(queue.topic, queue.broker_name, queue.queue_id, offset, None, None) for offset in offsets]
