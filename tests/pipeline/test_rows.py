"""Rows of the sink: which become which message, which are refused, and their ids."""

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from tests.pipeline.sinking import sink_options

from mqtrail.pipeline import SINK_OPTIONS, SourceOptionError
from mqtrail.pipeline.rowids import StoredRows, TaskIds
from mqtrail.pipeline.rows import BadRow, RowReader, SinkRow, check_schema
from mqtrail.pipeline.sinkoptions import parse_sink_options
from mqtrail.wire import SCHEDULE_TOPIC, TIMER_TOPIC

KINDS: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "properties": pa.map_(pa.string(), pa.string()),
    "orderKey": pa.string(),
    "delayLevel": pa.int32(),
    "deliverAt": pa.timestamp("us", "UTC"),
    "id": pa.int64(),
}
IDS = TaskIds("write 1", 0)


def read(*rows: dict[str, Any], ids: TaskIds = IDS, **more: Any) -> list[SinkRow | BadRow]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    batch = pa.Table.from_pylist(list(rows), pa.schema([(name, KINDS[name]) for name in names])).to_batches()[0]
    return list(RowReader(sink_options("h:1", **more), ids).rows(batch))


def sent(row: dict[str, Any], **more: Any) -> SinkRow:
    (found,) = read(row, **more)
    assert isinstance(found, SinkRow), found
    return found


def reason(row: dict[str, Any], **more: Any) -> str:
    (found,) = read(row, **more)
    assert isinstance(found, BadRow), found
    return found.reason


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


def test_each_column_reaches_the_message() -> None:
    """Columns that are null are as if they were not there."""
    row = {
        "body": b"b",
        "tags": "T",
        "keys": ["k1", "k2"],
        "properties": [("a", "1")],
        "orderKey": "o",
        "delayLevel": 3,
    }
    found = sent(row)
    message = found.message
    assert (message.topic, message.body, message.tags, message.keys) == ("orders", b"b", "T", ("k1", "k2"))
    assert dict(message.properties) == {"UNIQ_KEY": found.row_id, "a": "1"}
    assert (message.delay_level, found.order_key, found.stored_in) == (3, "o", SCHEDULE_TOPIC)
    at = datetime(2026, 5, 1, 12, 0, 0, 987_654, UTC)
    found = sent({"body": b"b", "topic": "t", "deliverAt": at}, topic="")
    assert (found.message.topic, found.message.deliver_at_ms) == ("t", 1_777_636_800_987)
    assert found.stored_in == TIMER_TOPIC
    nothing = sent({name: None for name in KINDS if name not in ("topic", "id")} | {"body": b"b"})
    assert (nothing.message.tags, nothing.message.keys, nothing.stored_in) == ("", (), "orders")


def test_text_bodies_and_text_keys() -> None:
    """Text is sent as UTF-8; a text of keys is split at blanks."""
    batch = pa.RecordBatch.from_pylist([{"body": "größe", "keys": " a  b "}])
    (found,) = RowReader(sink_options("h:1"), IDS).rows(batch)
    assert isinstance(found, SinkRow)
    assert (found.message.body, found.message.keys) == ("größe".encode(), ("a", "b"))


def test_properties_of_rocketmq_are_left_out() -> None:
    """A map that was read from another topic can be written as it is: the message gets its own id and flags."""
    found = sent({"body": b"b", "properties": [("UNIQ_KEY", "X"), ("DELAY", "3"), ("SPARK_ROW_ID", "Y"), ("a", "1")]})
    assert dict(found.message.properties) == {"UNIQ_KEY": found.row_id, "a": "1"}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": None}, "body is null, expected 1 to 4194304 bytes"),
        ({"body": b""}, "body is 0 bytes"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "body is 4194305 bytes, expected 1 to 4194304"),
        ({"body": b"b", "keys": ["a b"]}, "keys has 'a b', expected texts without blanks"),
        ({"body": b"b", "keys": ["a", None]}, "keys has None"),
        ({"body": b"b", "properties": [("a", None)]}, "properties has 'a' with null"),
        ({"body": b"b", "properties": [("a", "x\x02y")]}, "cannot be sent: found value"),
        ({"body": b"b", "properties": [("", "x")]}, "cannot be sent: found property name ''"),
        ({"body": b"b", "properties": [("a", "")]}, "cannot be sent: found value ''"),
        ({"body": b"b", "tags": "x\x02"}, "cannot be sent: found value"),
        ({"body": b"b", "tags": "x" * 33_000}, "take 33.* bytes .* expected at most 32767: move data to the body"),
        ({"body": b"b", "keys": ["ü" * 17_000]}, "take 34.* bytes"),
        ({"body": b"b", "delayLevel": 19}, "delayLevel is 19, expected 0 to 18"),
        ({"body": b"b", "delayLevel": -1}, "delayLevel is -1"),
        (
            {"body": b"b", "deliverAt": datetime(1950, 1, 1, tzinfo=UTC)},
            "deliverAt is 1950-01-01.*expected a time after",
        ),
        (
            {"body": b"b", "deliverAt": datetime(2026, 1, 1, tzinfo=UTC), "delayLevel": 1},
            "delayLevel is 1 and deliverAt is 2026-01-01T00:00:00.*expected one of them",
        ),
    ],
)
def test_rows_that_cannot_be_sent(row: dict[str, Any], text: str) -> None:
    """The reason says what was found and what is expected."""
    assert re.search(text, reason(row))


@pytest.mark.parametrize(
    ("topic", "text"),
    [(None, "topic is null"), ("a b", "topic is 'a b'"), ("x" * 200, "topic is"), (SCHEDULE_TOPIC, "a system topic")],
)
def test_topics_that_cannot_be(topic: str | None, text: str) -> None:
    """A wrong topic of one row rejects that row alone."""
    bad, good = read({"topic": topic, "body": b"b"}, {"topic": "t", "body": b"b"}, topic="")
    assert isinstance(bad, BadRow)
    assert text in bad.reason
    assert isinstance(good, SinkRow)


def test_ids_of_rows() -> None:
    """Equal in each attempt, different for equal rows, other writes and other partitions; no form of RocketMQ's own."""
    rows: list[dict[str, Any]] = [{"body": b"a"}, {"body": b"a"}, {"body": b"b", "tags": "T"}]

    def ids(task: TaskIds) -> list[str]:
        return [row.row_id for row in read(*rows, ids=task) if isinstance(row, SinkRow)]

    once = ids(IDS)
    assert once == ids(TaskIds("write 1", 0))
    assert len({*once, *ids(TaskIds("write 2", 0)), *ids(TaskIds("write 1", 1))}) == 9
    assert IDS.row_hash(once[0]) == IDS.row_hash(once[1]) != IDS.row_hash(once[2])
    assert all(len(row_id) not in (32, 56) for row_id in once)
    assert IDS.marker("orders", "orders") != IDS.marker("orders", SCHEDULE_TOPIC)


def test_ids_from_a_column() -> None:
    """The value alone identifies the row, in any place and with any content; a null is a bad row."""
    options = {"idColumn": "id"}
    task = TaskIds("write 1", 0, by_column=True)
    first, second, null = read(
        {"body": b"a", "id": 7}, {"body": b"b", "id": 7}, {"body": b"c", "id": None}, ids=task, **options
    )
    assert isinstance(first, SinkRow)
    assert isinstance(second, SinkRow)
    assert first.row_id == second.row_id
    assert isinstance(null, BadRow)
    assert "id is null, expected a value" in null.reason


def test_stored_rows_are_taken_as_often_as_they_are_stored() -> None:
    """The order of equal rows does not matter; a row read twice from the topic counts once."""
    ids = [IDS.row(number, "x", b"") for number in range(3)] + [IDS.row(9, "y")]
    before = StoredRows(IDS, [ids[0], ids[2], ids[2], ids[3]])
    assert [before.take(row_id) for row_id in (ids[1], ids[0], ids[2], ids[3], ids[3])] == [
        True, True, False, True, False,
    ]  # fmt: skip


GOOD = {"body": StringType(), "tags": StringType()}


@pytest.mark.parametrize(
    ("columns", "more", "text"),
    [
        (GOOD | {"price": DoubleType()}, {}, r"a column price double, expected columns out of: body binary or string"),
        (GOOD | {"keys": LongType()}, {}, r"a column keys bigint, expected"),
        ({"tags": StringType()}, {}, r"has the columns tags, expected body: add it"),
        (GOOD, {"topic": ""}, "found neither of option topic and column topic"),
        (GOOD | {"topic": StringType()}, {}, "found both of option topic and column topic"),
        (GOOD, {"topic": "a b"}, "option topic: topic is 'a b'"),
        (GOOD, {"idColumn": "id"}, "option idColumn is 'id', a column that is missing"),
        (GOOD | {"id": DoubleType()}, {"idColumn": "id"}, "a column that is double, expected a column of text"),
    ],
)
def test_schemas_that_cannot_be(columns: dict[str, DataType], more: dict[str, str], text: str) -> None:
    """The error names what was found and what is expected, before a row is sent."""
    with pytest.raises(SourceOptionError, match=text):
        check_schema(schema(**columns), sink_options("h:1", **more))


def test_a_schema_with_every_column() -> None:
    """All types that the sink takes; a column of ids besides."""
    check_schema(
        schema(
            body=BinaryType(),
            tags=StringType(),
            keys=ArrayType(StringType()),
            properties=MapType(StringType(), StringType()),
            orderKey=LongType(),
            delayLevel=IntegerType(),
            deliverAt=TimestampType(),
            id=StringType(),
        ),
        sink_options("h:1", idColumn="id"),
    )


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"nameServer": ""}, "option nameServer is missing"),
        (
            {"inFlightMax": "0"},
            "option inFlightMax is '0', expected a whole number above 0: maximum number of requests",
        ),
        ({"rejectPath": "s3://bucket/x"}, "option rejectPath is 's3://bucket/x', expected the absolute path"),
        ({"rejectPath": "rejects"}, "option rejectPath is 'rejects'"),
        ({"producerGroup": "a b"}, "option producerGroup"),
        ({"secretKey": "sesame"}, "secret_key without access_key"),
    ],
)
def test_sink_options_that_cannot_be(more: dict[str, str], text: str) -> None:
    """The error names the option and never shows a secret."""
    with pytest.raises(SourceOptionError, match=text) as error:
        parse_sink_options({"nameServer": "h:1", "topic": "t"} | more)
    assert "sesame" not in str(error.value)


def test_sink_options_have_bounds_with_names() -> None:
    """Defaults are those of the page of settings."""
    options = parse_sink_options({"nameServer": "h:1", "rejectPath": "file:///r"})
    assert str(options.reject_path) == "/r"
    for name, value in {
        "inFlightMax": options.in_flight_max,
        "batchRowsMax": options.batch_rows_max,
        "batchSizeMax": options.batch_size_max,
        "bodySizeMax": options.body_size_max,
        "sendTimeoutMs": options.send_timeout_ms,
        "retryTimeoutMs": options.retry_timeout_ms,
        "replaySettleMs": options.replay_settle_ms,
        "clockSkewMaxMs": options.clock_skew_max_ms,
    }.items():
        assert f"({value})" in SINK_OPTIONS[name]
