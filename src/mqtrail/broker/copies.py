"""Copies of stored records: a copy in another queue keeps the body, the flags, and born time and host."""

from mqtrail.store import PendingRecord
from mqtrail.wire import Buffer, RecordHead

from .properties import tag_hash


def copy_of(record: Buffer, head: RecordHead, topic: str, queue_id: int, properties: bytes) -> PendingRecord:
    """Return a copy of a stored record for a queue of topic, with the given properties, outside any transaction."""
    return PendingRecord(
        topic=topic,
        queue_id=queue_id,
        body=bytes(record[head.body_start : head.body_end]),
        properties=properties,
        tags_code=tag_hash(properties),
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp_ms=head.born_timestamp_ms,
        born_host=head.born_host,
        reconsume_times=head.reconsume_times,
    )
