"""The stored message that a change is about, and what came of sending it again."""

from __future__ import annotations

from mqtrail.client import Resent, SyncAdmin
from mqtrail.wire import MessageExt, MQError, parse_place, place_text

from .model import ChangeOutcome, Fate, InvalidChange


def message_at(admin: SyncAdmin, place: str) -> MessageExt:
    """Return the message at broker/topic/queue@offset. NoMessage; InvalidChange: not such a place."""
    try:
        queue, offset = parse_place(place)
    except ValueError:
        raise InvalidChange(f"place: found {place!r}, expected BROKER/TOPIC/QUEUE@OFFSET") from None
    return admin.message_at_offset(queue, offset)


def outcome_of(one: Resent) -> ChangeOutcome:
    """Return the outcome of sending a message again."""
    msg_id = one.message.msg_id
    if one.result is None:
        return ChangeOutcome.of_error(msg_id, one.error or MQError("no answer"))
    place = place_text(one.result.queue, one.result.queue_offset)
    return ChangeOutcome(msg_id, Fate.DONE, one.result.status.value, place)
