"""Op records: the queue offsets of half messages that ended, as text, in messages of RMQ_SYS_TRANS_OP_HALF_TOPIC.

    TAGS: d    body: 12,13,15,

Source: TransactionalMessageBridge, TransactionalMessageServiceImpl.fillOpRemoveMap, apache/rocketmq broker/.
"""

from typing import Final

from .properties import number_of

__all__ = ["OP_TAG", "ended_offset", "ended_offsets"]

OP_TAG: Final = "d"


def ended_offset(queue_offset: int) -> bytes:
    """Return what the body of an op record holds for one half message."""
    return b"%d," % queue_offset


def ended_offsets(body: bytes) -> list[int]:
    """Return the queue offsets in the body of an op record with OP_TAG; anything else is ignored, as in Java."""
    return [offset for part in body.split(b",") if (offset := number_of(part)) is not None]
