"""Batches of the lane: the messages of one request as records. Byte layouts: wire.batch."""

from typing import Final

from mqtrail.wire import BATCH_HEAD

from .caches import Record, Route, SharedProperties

ITEMS_MAX: Final = 1_000  # `handle` takes a larger batch, in slices
_ITEM_SIZE_MIN: Final = BATCH_HEAD.size + 2


def take_batch(
    shared_properties: SharedProperties,
    route: Route,
    sent: bytes,
    born_ms: int,
    born_host: bytes,
    buffer: bytes,
    position: int,
    end: int,
    records: list[Record],
) -> tuple[bytes, bool, int] | None:
    """Add the items of a batch to records; return its unique id, b"" without one, whether it waits, its count.

    None: nothing was added, and `handle` must serve the batch.
    """
    of_batch = shared_properties.read_batch(sent)
    if of_batch is None:
        return None
    unique_id, waits = of_batch
    properties = shared_properties.read
    unpack_item = BATCH_HEAD.unpack_from
    topic, queue_id, sys_flag = route.topic, route.queue_id, route.sys_flag
    items: list[Record] = []
    while position < end:
        if end - position < _ITEM_SIZE_MIN or len(items) >= ITEMS_MAX:
            return None
        size, _, _, flag, body_size = unpack_item(buffer, position)
        body_start = position + BATCH_HEAD.size
        body_end = body_start + body_size
        position += size
        if body_size < 0 or position > end or body_end + 2 > position:
            return None
        properties_size = buffer[body_end] << 8 | buffer[body_end + 1]
        if body_end + 2 + properties_size != position:
            return None
        item = buffer[body_end + 2 : position]
        shared = properties(item)
        if shared is None:
            return None
        suffix, tags_code, _, _ = shared[1]
        items.append(
            (topic, queue_id, buffer[body_start:body_end], item + suffix, tags_code, born_ms,
             born_host, flag, sys_flag, 0, 0)
        )  # fmt: skip
    records += items
    return unique_id, waits, len(items)
