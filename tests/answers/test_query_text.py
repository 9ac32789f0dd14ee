"""The text of a search: its meaning, its errors, and the equivalent command."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.answers import QueryTextError, SearchConditions, parse_query, query_text, search_command
from mqtrail.answers.query_text import term_text
from mqtrail.trail import CODES

NOW_MS = 1_795_000_000_000
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters='"'), min_size=1, max_size=20).filter(str.strip)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", SearchConditions()),
        ("order-42", SearchConditions(key="order-42")),
        ("topic:orders  group:billing", SearchConditions(topic="orders", group_name="billing")),
        ("verdict:hung verdict:RETRYING", SearchConditions(codes=("HUNG", "RETRYING"))),
        ("handler>2s deliveries>3", SearchConditions(handler_ms_min=2_000, deliveries_over=3)),
        ("handler>1500ms", SearchConditions(handler_ms_min=1_500)),
        ('tag:"new order" host:10.0.0.2', SearchConditions(tag="new order", host="10.0.0.2")),
        ("broker:broker-a queue:3", SearchConditions(broker="broker-a", queue_id=3)),
        ("reason:END_NOT_TRACED", SearchConditions(reason="END_NOT_TRACED")),
        ("total>5s size>65536", SearchConditions(total_ms_min=5_000, body_size_over=65_536)),
        ('key:"a:b"', SearchConditions(key="a:b")),
        ("from:2h to:2026-11-18T00:00", SearchConditions(first_ms=NOW_MS - 7_200_000, end_ms=1_794_960_000_000)),
    ],
)
def test_what_a_text_means(text: str, expected: SearchConditions) -> None:
    assert parse_query(text, NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("color:red", "found 'color:red', expected one of key:, topic:"),
        ("topic>orders", "found 'topic>orders'"),
        ("handler:2s", "found 'handler:2s'"),
        ("topic:a topic:b", "topic: twice"),
        ("a b", "key: twice"),
        ("verdict:GONE", "verdict: found 'GONE'"),
        ("handler>2", "handler> found '2', expected a duration"),
        ("deliveries>many", "deliveries> found 'many', expected a number"),
        ("queue:a", "queue: found 'a', expected a number"),
        ("total>5", "total> found '5', expected a duration"),
        ("from:yesterday", "from: found 'yesterday', expected a time"),
        ('tag:"open', "quotes in pairs"),
        ('tag:""', "without a value"),
        ("x" * 3_000, "3000 characters"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(QueryTextError) as refused:
        parse_query(text, NOW_MS)
    assert why in str(refused.value)


CONDITIONS = st.builds(
    SearchConditions,
    key=st.just("") | TEXTS,
    topic=st.just("") | TEXTS,
    tag=st.just("") | TEXTS,
    host=st.just("") | TEXTS,
    codes=st.lists(st.sampled_from(sorted(CODES)), unique=True, max_size=3).map(tuple),
    broker=st.just("") | TEXTS,
    queue_id=st.none() | st.integers(0, 10**9),
    reason=st.just("") | TEXTS,
    handler_ms_min=st.none() | st.integers(0, 10**9),
    total_ms_min=st.none() | st.integers(0, 10**9),
    body_size_over=st.none() | st.integers(0, 10**9),
    deliveries_over=st.none() | st.integers(0, 10**9),
    first_ms=st.none() | st.integers(0, 2 * 10**12),
)


@given(CONDITIONS)
def test_conditions_survive_their_text(wanted: SearchConditions) -> None:
    """The address bar holds the text, so a shared link runs the same search."""
    assert parse_query(query_text(wanted), NOW_MS) == wanted


@given(TEXTS)
def test_the_command_is_quoted_for_a_shell(key: str) -> None:
    """A key from a message cannot run a command when the reader pastes the shown one."""
    assert shlex.split(search_command(SearchConditions(key=key))) == ["mqtrail", "search", "--key", key]


def test_the_command_of_every_condition() -> None:
    text = "topic:orders verdict:HUNG handler>2s from:2026-11-18T00:00:00.000"
    expected = "mqtrail search --topic orders --status HUNG --handler-over 2s --from 2026-11-18T00:00:00.000"
    assert search_command(parse_query(text, NOW_MS)) == expected


@given(TEXTS)
def test_a_term_is_a_condition(value: str) -> None:
    """What a click adds to a search asks for exactly that value."""
    assert parse_query(term_text("tag", value), NOW_MS) == SearchConditions(tag=value)


def test_values_that_no_condition_can_have() -> None:
    assert [term_text("tag", value) for value in ('a "b', '"', "")] == ["", "", ""]
