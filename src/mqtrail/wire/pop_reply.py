"""The messages of a reply to a pop, each with the handle that its acknowledgement needs.

Source: MQClientAPIImpl.processPopResponse, RocketMQ 5.x client.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .errors import HeaderError
from .pop_headers import PopResponseHeader
from .pop_info import PopHandle, decode_message_offsets, decode_start_offsets, marker_of
from .properties import PROPERTY_FIRST_POP_TIME, PROPERTY_POP_CK
from .values import MessageExt

__all__ = [
    "with_handles",
]


def with_handles(
    messages: Sequence[MessageExt], header: PopResponseHeader, topic: str, broker_name: str
) -> Iterator[tuple[MessageExt, MessageExt]]:
    """Yield pairs of each message as decoded and with its handle; messages without a known queue offset are skipped.

    A handle in a message is used only if it belongs to this pop, because any sender can write one. Damaged records,
    whose queue offset is unknown, get the listed offsets that no other message has.
    """
    starts = decode_start_offsets(header.start_offset_info or "")
    listed = decode_message_offsets(header.msg_offset_info or "")
    seen: dict[tuple[str, int], int] = {}
    damaged: list[MessageExt] = []
    taken: set[tuple[tuple[str, int], int]] = set()

    def handle(name: tuple[str, int], offset: int, start: int) -> str:
        return PopHandle(
            starts.get(name, start),
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            name[0],
            broker_name,
            name[1],
            offset,
        ).encode()

    for message in messages:
        if not message.topic:
            damaged.append(message)
            continue
        properties = message.properties
        name = (marker_of(message.topic), message.queue_id)
        offsets = listed.get(name, ())
        place = seen[name] = seen.get(name, -1) + 1
        offset = message.queue_offset
        if offset not in offsets and place < len(offsets):
            offset = offsets[place]
        taken.add((name, offset))
        if not _is_of(properties.get(PROPERTY_POP_CK), header.pop_time):
            properties[PROPERTY_POP_CK] = handle(name, offset, message.queue_offset)
        properties.setdefault(PROPERTY_FIRST_POP_TIME, str(header.pop_time))
        yield message, message if message.topic == topic else replace(message, topic=topic)
    free = [(name, offset) for name, offsets in listed.items() for offset in offsets if (name, offset) not in taken]
    for message, (name, offset) in zip(damaged, free, strict=False):
        properties = {
            PROPERTY_POP_CK: handle(name, offset, offset),
            PROPERTY_FIRST_POP_TIME: str(header.pop_time),
        }
        yield message, replace(message, topic=topic, queue_id=name[1], queue_offset=offset, properties=properties)


def _is_of(text: str | None, pop_time_ms: int) -> bool:
    try:
        return text is not None and PopHandle.decode(text).pop_time_ms == pop_time_ms
    except HeaderError:
        return False
