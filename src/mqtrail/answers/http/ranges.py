"""Parameters of operations on the lake: a range of time, and one of its clusters."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

from fastapi import Query

from mqtrail.clock import now_ms
from mqtrail.gateway import Problem
from mqtrail.wire import parse_moment

from ..query_text import QueryTextError

T = TypeVar("T")
NAME_SIZE_MAX: Final = 255

Cluster = Annotated[str, Query(max_length=NAME_SIZE_MAX, description="Only this cluster of the lake. Default: all.")]
Since = Annotated[
    str, Query(alias="from", max_length=64, description="Earliest send time: a time (UTC), or an age such as 2h.")
]
Until = Annotated[str, Query(alias="to", max_length=64, description="Latest send time (exclusive).")]


def range_of(since: str, until: str) -> tuple[int | None, int | None]:
    """Return the epoch ms of both ends; None: not given. Problem."""
    at_ms = now_ms()
    return (
        parsed(lambda: parse_moment(since, at_ms)) if since else None,
        parsed(lambda: parse_moment(until, at_ms)) if until else None,
    )


def parsed(parse: Callable[[], T]) -> T:
    """Return what a parser returns. Problem: the text is wrong."""
    try:
        return parse()
    except (ValueError, QueryTextError) as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
