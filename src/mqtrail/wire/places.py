"""The place of a stored message as text: BROKER/TOPIC/QUEUE@OFFSET."""

from .values import MessageQueue

__all__ = ["parse_place", "place_text", "topic_of_place"]


def place_text(queue: MessageQueue, queue_offset: int) -> str:
    """Return the text of a place."""
    return f"{queue.broker_name}/{queue.topic}/{queue.queue_id}@{queue_offset}"


def parse_place(text: str) -> tuple[MessageQueue, int]:
    """Return queue and offset of a place. ValueError: the text is not a place."""
    broker, topic, queue = text.split("/")
    queue_id, offset = map(int, queue.split("@"))
    return MessageQueue(topic, broker, queue_id), offset


def topic_of_place(text: str) -> str:
    """Return the topic of a place; '' if the text has no topic."""
    return [*text.split("/"), ""][1]
