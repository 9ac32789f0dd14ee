"""Properties of messages are kept in topics with a subscription by SQL92, and read as brokers read them."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, define
from mqtrail.trail.filters import ACCEPTED, EXCLUDED, INVALID, sql92_answer
from mqtrail.trail.otel_context import traceparent_sql
from mqtrail.wire import encode_properties

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PROPERTIES = {"UNIQ_KEY": "id", "TAGS": "a", "price": "7"}


def stored(topic: str) -> dict[str, Any]:
    """A message of a topic, as the source returns it."""
    numbers = ("queue_id", "queue_offset", "physical_offset", "stored_body_size", "body_crc", "store_size", "sys_flag")
    times = ("born_timestamp_ms", "store_timestamp_ms", "reconsume_times")
    texts = ("broker_name", "offset_msg_id", "own_unique_key", "born_host", "store_host")
    row: dict[str, Any] = dict.fromkeys((*numbers, *times), 1) | dict.fromkeys(texts, "x")
    return row | {"topic": topic, "properties": list(PROPERTIES.items())}


def read(*rows: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """These messages as the table stored_messages."""
    duck = connect(threads=1)
    types = {"properties": pa.map_(pa.string(), pa.string())}
    columns = {
        name: pa.array([row[name] for row in rows], types.get(name, pa.string() if rows[0][name] == "x" else None))
        for name in rows[0]
    }
    duck.register("stored_messages", pa.table(columns))
    return duck


def test_messages_in_light_queues_are_known() -> None:
    """Other groups read them there, so they have a kind of their own."""
    light, plain = (stored(topic) | {"own_unique_key": "id"} for topic in ("orders", "bills"))
    light["properties"] = [*light["properties"], ("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b")]
    sql = trail.message_meta_sql("stored_messages", "c", (), 0)
    kinds = read(plain, light).sql(f"SELECT stored_kind FROM ({sql}) ORDER BY topic").fetchall()
    assert kinds == [("NORMAL",), ("NORMAL_LMQ",)]


def test_properties_are_kept_of_topics_with_sql92_alone() -> None:
    """They are kept in the form that records and expressions use."""
    duck = read(stored("orders"), stored("bills"))
    for topics, expected in ((("orders",), ["", encode_properties(PROPERTIES)]), ((), ["", ""])):
        sql = trail.message_meta_sql("stored_messages", "c", (), 0, topics)
        found = duck.sql(f"SELECT properties FROM ({sql}) ORDER BY topic").fetchall()
        assert [kept for (kept,) in found] == expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (TRACEPARENT, TRACEPARENT),
        (f"{TRACEPARENT}-of a later version", TRACEPARENT),
        (f"{TRACEPARENT} ", ""),
        (TRACEPARENT[:-1], ""),
        (TRACEPARENT.upper(), ""),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_context_of_opentelemetry_is_kept(text: str | None, kept: str) -> None:
    """The valid ones."""
    query = f"SELECT {traceparent_sql('one')} FROM (SELECT ?::varchar AS one)"
    assert connect(threads=1).execute(query, [text]).fetchall() == [(kept,)]


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("price > 6", ACCEPTED),
        ("price > 7", EXCLUDED),
        ("TAGS = 'a'", ACCEPTED),
        ("stock = 1", EXCLUDED),
        ("=", INVALID),
    ],
)
def test_an_expression_answers_as_the_broker(expression: str, answer: int) -> None:
    """A missing property excludes the message; an invalid expression excludes nothing."""
    assert sql92_answer(expression, encode_properties(PROPERTIES)) == answer


def test_answers_take_the_place_of_what_was_asked() -> None:
    """The engine adds the results of a stage's function, also to an empty table."""
    duck = connect(threads=1)
    asked = "SELECT cluster, msg_id, keys AS expression, tags AS properties FROM attempts"
    stage = trail.Stage("answers", asked, ("attempts",), answer=lambda one, other: len(one) - len(other))
    for rows in ([], [{"cluster": "c", "msg_id": "m", "keys": "abc", "tags": "a"}]):
        duck.register("attempts", arrow_rows(trail.ATTEMPTS, rows))
        define(duck, stage)
        assert duck.sql("SELECT * FROM answers").fetchall() == [("c", "m", "abc", 2)] * len(rows)
        assert duck.table("answers").columns == ["cluster", "msg_id", "expression", "answer"]
