"""How many records of a reply are read: about as many as requested, even if the broker sends more."""

from typing import Final

from mqtrail.net import Log
from mqtrail.wire import MessageQueue, cut_records

from .routes import queue_name

log = Log()

EXTRA_RECORDS_MAX: Final = 64  # beyond the requested count: a damaged record may be cut into several pieces


def requested_records(body: bytes, count_max: int, queue: MessageQueue) -> tuple[list[bytes], bool]:
    """Return the first records of a reply's body, and whether that is all of them.

    A frame of 16 MiB holds 180 000 small records, and decoding them takes seconds. A broker sends at most count_max.
    """
    records = cut_records(body, count_max + EXTRA_RECORDS_MAX)
    whole = len(records) < count_max + EXTRA_RECORDS_MAX or sum(map(len, records)) == len(body)
    if not whole:
        log.sparse.warning("client.reply_oversized", queue=queue_name(queue), requested=count_max, size=len(body))
    return records, whole
