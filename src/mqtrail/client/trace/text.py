"""Trace records as text, for the hot path: one f-string per record.

The layouts are those of `mqtrail.wire.trace_text`, which decodes them; a test compares both. Fields are joined by
U+0001, a record ends with U+0002, and an absent value is the text `null`. There is no escaping, so a separator inside a
value would shift all fields after it. Values come from applications, messages of other producers and servers (ids,
regions, broker names). Therefore the fields of each record are counted, and a record with too many separators is
written again with the separators removed from its values (`whole`).
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from mqtrail.wire import TRACE_DETAIL_LENGTH_MAX, TRACE_VERSION

END = "\x02"

_STRIP = {1: None, 2: None}


def clean(text: str) -> str:
    """Return text without separators; `null` if nothing is left."""
    if "\x01" in text or "\x02" in text:
        text = text.translate(_STRIP)
    return text or "null"


Values = ParamSpec("Values")


def whole(field_count: int) -> Callable[[Callable[Values, str]], Callable[Values, str]]:
    """Decorate a function that writes a record of field_count fields (type included): values cannot shift fields."""

    def decorate(write: Callable[Values, str]) -> Callable[Values, str]:
        @wraps(write)
        def written(*args: Values.args, **named: Values.kwargs) -> str:
            text = write(*args, **named)
            if text.count("\x01") == field_count - 1 and text.count("\x02") == 1:
                return text
            values = (clean(value) if isinstance(value, str) else value for value in args)
            return write(
                *values,  # type: ignore[arg-type]  # texts for texts
                **{name: clean(value) if isinstance(value, str) else value for name, value in named.items()},  # type: ignore[arg-type]
            )

        return written

    return decorate


def detail(error: BaseException | str) -> str:
    """Return a short text of an error, at most TRACE_DETAIL_LENGTH_MAX characters, for SubResult.detail."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return clean(text[:TRACE_DETAIL_LENGTH_MAX])


@whole(14)
def pub(
    started_ms: int,
    region_id: str,
    group: str,
    topic: str,
    msg_id: str,
    tags: str,
    keys: str,
    store_host: str,
    body_size: int,
    cost_ms: int,
    msg_type: int,
    offset_msg_id: str,
    success: bool,
) -> str:
    """Return the record of an acknowledged send. store_host: the address of the broker; body_size: bytes as sent."""
    place = pub_place(region_id, group, topic)
    return pub_at(
        place, started_ms, msg_id, tags, keys, store_host, body_size, cost_ms, msg_type, offset_msg_id, success
    )


def pub_place(region_id: str, group: str, topic: str) -> str:
    """Return the fields that many Pubs have in common, for `pub_at`."""
    return f"\x01{region_id}\x01{group}\x01{topic}\x01"


def pub_at(
    place: str,
    started_ms: int,
    msg_id: str,
    tags: str,
    keys: str,
    store_host: str,
    body_size: int,
    cost_ms: int,
    msg_type: int,
    offset_msg_id: str,
    success: bool,
) -> str:
    """Return a Pub; no value may contain a separator. A client writes Pubs only here. place: from `pub_place`."""
    return (
        f"Pub\x01{started_ms}{place}{msg_id}\x01{tags or 'null'}\x01{keys or 'null'}\x01{store_host}\x01{body_size}"
        f"\x01{cost_ms}\x01{msg_type}\x01{offset_msg_id}\x01{'true' if success else 'false'}\x02"
    )


@whole(19)
def pub_attempt(
    started_ms: int,
    region_id: str,
    group: str,
    topic: str,
    msg_id: str,
    keys: str,
    store_host: str,
    broker_name: str,
    queue_id: int,
    send_id: str,
    attempt: int,
    attempt_max: int,
    outcome: str,
    response_code: int | None,
    cost_ms: int,
    final: bool,
    client_id: str,
    body_size: int,
) -> str:
    """Return the record of an attempt that Apache's Pub does not cover: failed, one-way, or a successful retry."""
    return (
        f"PubAttempt\x01{started_ms}\x01{region_id or 'null'}\x01{group}\x01{topic}\x01{msg_id}\x01{keys or 'null'}"
        f"\x01{store_host or 'null'}\x01{broker_name or 'null'}\x01{queue_id}\x01{send_id}\x01{attempt}"
        f"\x01{attempt_max}\x01{outcome}\x01{'null' if response_code is None else response_code}\x01{cost_ms}"
        f"\x01{'true' if final else 'false'}\x01{client_id}\x01{body_size}\x02"
    )


@whole(8)
def sub_before(
    started_ms: int, region_id: str, group: str, request_id: str, msg_id: str, retries: int, keys: str
) -> str:
    """Return the record of a handler's start with a message."""
    return f"SubBefore\x01{started_ms}\x01{region_id}\x01{group}\x01{request_id}\x01{msg_id}\x01{retries}\x01{keys}\x02"


@whole(9)
def sub_after(
    request_id: str, msg_id: str, cost_ms: int, success: bool, keys: str, context_code: int, ended_ms: int, group: str
) -> str:
    """Return the record of a handler's end. cost_ms: of the handler call, divided by its number of messages."""
    return (
        f"SubAfter\x01{request_id}\x01{msg_id}\x01{cost_ms}\x01{'true' if success else 'false'}\x01{keys}"
        f"\x01{context_code}\x01{ended_ms}\x01{group}\x02"
    )


@whole(14)
def sub_result(
    request_id: str,
    msg_id: str,
    group: str,
    topic: str,
    broker_name: str,
    queue_id: int,
    queue_offset: int,
    retries: int,
    result: str,
    cost_ms: int,
    ended_ms: int,
    client_id: str,
    detail: str,
) -> str:
    """Return the record of a handler's outcome for one message."""
    return (
        f"SubResult\x01{request_id}\x01{msg_id}\x01{group}\x01{topic}\x01{broker_name or 'null'}\x01{queue_id}"
        f"\x01{queue_offset}\x01{retries}\x01{result}\x01{cost_ms}\x01{ended_ms}\x01{client_id}"
        f"\x01{detail or 'null'}\x02"
    )


@whole(8)
def offset_commit(
    committed_ms: int, group: str, topic: str, broker_name: str, queue_id: int, consumer_offset: int, client_id: str
) -> str:
    """Return the record of a group's offset of a queue that was sent to the broker."""
    return (
        f"OffsetCommit\x01{committed_ms}\x01{group}\x01{topic}\x01{broker_name}\x01{queue_id}\x01{consumer_offset}"
        f"\x01{client_id}\x02"
    )


@whole(7)
def trace_batch(client_id: str, start_id: str, sequence: int, now_ms: int, dropped_total: int) -> str:
    """Return the first record of each of mqtrail's trace messages; a gap in the sequence is a lost trace message."""
    return (
        f"TraceBatch\x01{TRACE_VERSION}\x01{client_id}\x01{start_id}\x01{sequence}\x01{now_ms}\x01{dropped_total}\x02"
    )


@whole(5)
def trace_end(now_ms: int, group: str, client_id: str, start_id: str) -> str:
    """Return the last record of a consumer that stops normally."""
    return f"TraceEnd\x01{now_ms}\x01{group}\x01{client_id}\x01{start_id}\x02"


@whole(7)
def trace_loss(client_id: str, start_id: str, from_ms: int, to_ms: int, count: int, reason: str) -> str:
    """Return the record of contexts lost between two times (epoch ms)."""
    return f"TraceLoss\x01{client_id}\x01{start_id}\x01{from_ms}\x01{to_ms}\x01{count}\x01{reason or 'null'}\x02"
