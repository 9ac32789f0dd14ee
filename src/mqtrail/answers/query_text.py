"""The text of a search: `topic:orders group:billing verdict:HUNG handler>2s from:2h order-42`.

Words are separated by blanks; a value with blanks is quoted, `tag:"new order"`. All conditions must match; of several
verdicts any. A word without a field is a key or an id. The same conditions are options of `mqtrail search`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mqtrail import trail
from mqtrail.wire import MQError, parse_duration, parse_moment

from .model import SearchConditions, moment_text

TEXT_SIZE_MAX: Final = 2_000  # characters
COUNT_MAX: Final = 1_000_000_000


class QueryTextError(MQError):
    """A search text is not understood: found, expected."""


@dataclass(frozen=True, slots=True)
class SearchField:
    """One field of a search text. mark: ':' or '>'. attribute: of SearchConditions. option: of `mqtrail search`."""

    name: str
    mark: str
    attribute: str
    option: str
    meaning: str


FIELDS: Final[dict[str, SearchField]] = {
    field.name: field
    for field in (
        SearchField("key", ":", "key", "--key", "key of the message, or its id"),
        SearchField("topic", ":", "topic", "--topic", "topic"),
        SearchField("group", ":", "group_name", "--group", "consumer or producer group"),
        SearchField("verdict", ":", "codes", "--status", "verdict code; several: any of them"),
        SearchField("tag", ":", "tag", "--tag", "tag"),
        SearchField("reason", ":", "reason", "--reason", "name of a reason of a verdict, such as END_NOT_TRACED"),
        SearchField("broker", ":", "broker", "--broker", "broker that stored it"),
        SearchField("queue", ":", "queue_id", "--queue-id", "number of its queue"),
        SearchField("host", ":", "host", "--host", "address of its producer or a consumer, or how it begins"),
        SearchField(
            "handler",
            ">",
            "handler_ms_min",
            "--handler-over",
            "a handler took, or runs, so long: 2s",
        ),
        SearchField("total", ">", "total_ms_min", "--total-over", "a group was done so long after its send: 5s"),
        SearchField("deliveries", ">", "deliveries_over", "--deliveries-over", "delivered to a group more often"),
        SearchField("size", ">", "body_size_over", "--size-over", "bytes of its body"),
        SearchField("from", ":", "first_ms", "--from", "earliest send time: a time (UTC), or an age such as 2h"),
        SearchField("to", ":", "end_ms", "--to", "latest send time (exclusive)"),
    )
}
FACETS: Final = ("verdict", "topic", "group", "tag", "broker", "reason")
"""Fields by which the matches of a search are counted."""
_DURATIONS: Final = ("handler_ms_min", "total_ms_min")
_NUMBERS: Final = ("queue_id", "deliveries_over", "body_size_over")
_WORD: Final = re.compile(r'\s*((?:(?P<name>[a-z]+)(?P<mark>[:>]))?(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s"]+)))(?=\s|$)')


def parse_query(text: str, now_ms: int) -> SearchConditions:
    """Return the conditions of a search text. QueryTextError."""
    if len(text) > TEXT_SIZE_MAX:
        raise QueryTextError(f"found a search of {len(text)} characters, expected at most {TEXT_SIZE_MAX}")
    found: dict[str, Any] = {}
    for field, value in _words(text):
        if field.attribute == "codes":
            found["codes"] = (*found.get("codes", ()), _code(value))
            continue
        if field.attribute in found:
            raise QueryTextError(f"found {field.name}{field.mark} twice, expected it once")
        found[field.attribute] = _value(field, value, now_ms)
    return SearchConditions(**found)


def _words(text: str) -> Iterator[tuple[SearchField, str]]:
    at = 0
    while text[at:].strip():
        word = _WORD.match(text, at)
        if word is None:
            raise QueryTextError(f"found {text[at:].strip()!r}, expected words separated by blanks, quotes in pairs")
        at = word.end()
        value = word["plain"] if word["quoted"] is None else word["quoted"]
        field = FIELDS.get(word["name"] or "key")
        if field is None or (word["mark"] and word["mark"] != field.mark):
            # An id or a key may contain a colon.
            known = ", ".join(f"{one.name}{one.mark}" for one in FIELDS.values())
            raise QueryTextError(f"found {word[1]!r}, expected one of {known}; a key with ':' is written key:\"…\"")
        if not value:
            raise QueryTextError(f"found {word[1]!r} without a value")
        yield field, value


def _value(field: SearchField, value: str, now_ms: int) -> str | int:
    try:
        if field.attribute in ("first_ms", "end_ms"):
            return parse_moment(value, now_ms)
        if field.attribute in _DURATIONS:
            return parse_duration(value)
    except ValueError as error:
        raise QueryTextError(f"{field.name}{field.mark} {error}") from None
    if field.attribute in _NUMBERS:
        if not (value.isascii() and value.isdigit() and int(value[:12]) <= COUNT_MAX):
            raise QueryTextError(f"{field.name}{field.mark} found {value!r}, expected a number")
        return int(value)
    return value


def _code(value: str) -> str:
    name = value.upper()
    if name not in trail.CODES:
        raise QueryTextError(f"verdict: found {value!r}, expected one of {', '.join(trail.CODES)}")
    return name


def query_text(wanted: SearchConditions) -> str:
    """Return the text of conditions; `parse_query` returns them again."""
    return " ".join(f"{field.name}{field.mark}{_quoted(value)}" for field, value in _values(wanted))


def term_text(name: str, value: str) -> str:
    """Return the text of one condition on a field of FIELDS; '' if none can have this value."""
    return "" if '"' in value or not value else f"{name}{FIELDS[name].mark}{_quoted(value)}"


def search_command(wanted: SearchConditions) -> str:
    """Return the `mqtrail search` command of conditions, quoted for a shell."""
    options = [f"{field.option} {shlex.quote(value)}" for field, value in _values(wanted)]
    return " ".join(["mqtrail search", *options])


def _values(wanted: SearchConditions) -> Iterator[tuple[SearchField, str]]:
    for field in FIELDS.values():
        value = getattr(wanted, field.attribute)
        if field.attribute == "codes":
            yield from ((field, code) for code in value)
        elif field.attribute in ("first_ms", "end_ms"):
            if value is not None:
                yield field, moment_text(value, "%Y-%m-%dT%H:%M:%S.%f", cut=3)
        elif field.attribute in _DURATIONS:
            if value is not None:
                yield field, f"{value}ms" if value % 1000 else f"{value // 1000}s"
        elif value not in ("", None):
            yield field, str(value)


def _quoted(value: str) -> str:
    return f'"{value}"' if re.search(r"\s", value) or not value else value
