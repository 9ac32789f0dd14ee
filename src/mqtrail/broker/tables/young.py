"""Young queues: a group without an offset reads them from the first message."""

from mqtrail.store import MessageStore
from mqtrail.wire import decode_head


def is_young(store: MessageStore, topic: str, queue_id: int, size: int) -> bool:
    """Return whether the first message of a queue still exists and is at most size bytes from the end of the log."""
    if store.min_offset(topic, queue_id) > 0 or store.max_offset(topic, queue_id) == 0:
        return False
    found = store.read(topic, queue_id, 0, 1, 1)
    if not found.records:
        return False
    return store.end_offset - decode_head(found.records[0]).physical_offset <= size
