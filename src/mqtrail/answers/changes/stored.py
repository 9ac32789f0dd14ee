"""The stored message that a change is about."""

from __future__ import annotations

from mqtrail.client import SyncAdmin
from mqtrail.wire import MessageExt, parse_place

from .model import InvalidChange


def message_at(admin: SyncAdmin, place: str) -> MessageExt:
    """Return the message at broker/topic/queue@offset. NoMessage; InvalidChange: not such a place."""
    try:
        queue, offset = parse_place(place)
    except ValueError:
        raise InvalidChange(f"place: found {place!r}, expected BROKER/TOPIC/QUEUE@OFFSET") from None
    return admin.message_at_offset(queue, offset)
