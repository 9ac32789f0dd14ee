"""Young queues: a group without an offset reads them from the first message."""

from typing import Final

from mqtrail.store import MessageStore, StoreError
from mqtrail.wire import RecordError, decode_head

DAMAGED_MAX: Final = 32  # damaged messages at the beginning that are passed


def is_young(store: MessageStore, topic: str, queue_id: int, size: int) -> bool:
    """Return whether the first message of a queue still exists and is at most size bytes from the end of the log."""
    if store.min_offset(topic, queue_id) > 0 or store.max_offset(topic, queue_id) == 0:
        return False
    for queue_offset in range(min(DAMAGED_MAX, store.max_offset(topic, queue_id))):
        try:
            found = store.read(topic, queue_id, queue_offset, 1, 1)
            if not found.records:
                return False
            return store.end_offset - decode_head(found.records[0]).physical_offset <= size
        except (StoreError, RecordError):  # damaged: its neighbour is about as old
            continue
    return False
