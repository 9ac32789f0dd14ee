"""Pulled messages become files of bronze and silver, in one DuckDB and in bounded memory.

    trace messages   ─▶ trace_events, trace_rejects, broker_events ─┐
    stored messages  ─▶ message_meta ───────────────────────────────┴─▶ attempts, client_records and others

Attempts are merged, one file an hour.

Files are Parquet V2 with zstd, in the order of reading: compaction rewrites them, sorted and with filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from mqtrail import trail
from mqtrail.trail import Relation, literal
from mqtrail.wire import (
    APACHE_TYPES,
    FIELD_SEPARATOR,
    RECORD_SEPARATOR,
    decode_record_text,
    terminated,
)

from .duck import Row, arrow_rows
from .parquet import parquet_of
from .places import LakePath, parquet_source, place_of, sink
from .schemas import arrow_schema

if TYPE_CHECKING:
    import duckdb

LAYOUT = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION V2, ROW_GROUP_SIZE 65536"
REST_ROWS_MAX = 2_000  # rows made one by one that are held at once
LATE = "rest.parquet"  # file of rows that were made one by one
SILVER_ROWS = 250_000  # rows of bronze that are merged at once; a larger file is merged alone

_HEAD = f"TraceBatch{FIELD_SEPARATOR}"
# A ␂ can be missing only if the name of a type follows a ␁. This cheap test avoids the exact pattern for other texts.
_MAY_LACK_END = f"{FIELD_SEPARATOR}(?:{'|'.join(APACHE_TYPES)}){FIELD_SEPARATOR}"
_RENAMED = {
    "topic": "trace_topic",
    "born_timestamp_ms": "trace_born_ms",
    "born_host": "trace_born_host",
    "store_timestamp_ms": "trace_store_ms",
}


_NUMBERS = ("queue_offset", "physical_offset", "stored_body_size", "body_crc", "store_size", "sys_flag")
STORED = pa.schema(
    [(name, pa.string()) for name in ("topic", "broker_name", "offset_msg_id", "own_unique_key")]
    + [("properties", pa.map_(pa.string(), pa.string())), ("born_host", pa.string()), ("store_host", pa.string())]
    + [(name, pa.int64()) for name in ("queue_id", *_NUMBERS, "born_timestamp_ms", "store_timestamp_ms")]
    + [("reconsume_times", pa.int64())]
)
"""Stored messages, as trail.message_meta_sql reads them."""


def stored_rows(
    duck: duckdb.DuckDBPyConnection, stored: Sequence[Row], cluster: str, delays_ms: Sequence[int], read_ms: int
) -> list[Row]:
    """Return rows of MESSAGE_META, with their properties, of a few stored messages. stored: rows of STORED."""
    duck.register("stored_messages", pa.Table.from_pylist(list(stored), schema=STORED))
    topics = {row["topic"] for row in stored}
    found = duck.execute(trail.message_meta_sql("stored_messages", cluster, delays_ms, read_ms, topics)).fetchall()
    duck.unregister("stored_messages")
    return [dict(zip(trail.MESSAGE_META.names, row, strict=True)) for row in found]


class DecodedTrace:
    """Trace messages, decoded in one DuckDB connection. The last one of a connection can be read."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, messages: pa.Table, cluster: str) -> None:
        """messages: with the columns of trail.TRACE_PLACE as the source calls them, body_text and body_problem."""
        self._duck = duck
        self._cluster = cluster
        self._messages = _prepared(messages)
        duck.register("trace_messages", self._messages)
        duck.register("trace_bodies", self._messages.filter(self._messages["body_text"].is_valid()))
        duck.execute(f"CREATE OR REPLACE TEMP TABLE trace_records AS {trail.trace_records_sql('trace_bodies')}")
        found = duck.execute(
            "SELECT DISTINCT layout, several FROM trace_records WHERE layout IS NOT NULL ORDER BY ALL"
        ).fetchall()
        self.shapes = [trail.TraceShape(*shape) for shape in found]
        self._place = lru_cache(maxsize=1)(self._place_of)

    @property
    def events_sql(self) -> str:
        """SQL: rows of trace_events, but those of `rest`."""
        return trail.trace_events_sql("trace_messages", "trace_records", self.shapes, self._cluster)

    def rest(self) -> Iterator[tuple[Relation, Row]]:
        """Yield the rows that SQL does not make: of trace_events, of trace_rejects and of broker_events."""
        problems = self._messages.filter(self._messages["body_text"].is_null())
        for message_no, problem in zip(
            problems["message_no"].to_pylist(), problems["body_problem"].to_pylist(), strict=True
        ):
            yield trail.TRACE_REJECTS, trail.body_reject(self._place(message_no)[0], problem or "no body")
        found = self._duck.execute(
            f"SELECT message_no, record_no, array_to_string(f, chr({ord(FIELD_SEPARATOR)})) FROM trace_records"
            " WHERE layout IS NULL"
        )
        while rows := found.fetchmany(REST_ROWS_MAX):
            for message_no, record_no, text in rows:
                place, client_id = self._place(message_no)
                yield from trail.record_rows(place, client_id, record_no, decode_record_text(record_no, text))

    def close(self) -> None:
        """Free the records."""
        self._duck.execute("DROP TABLE trace_records")
        for name in ("trace_messages", "trace_bodies"):
            self._duck.unregister(name)

    def _place_of(self, message_no: int) -> tuple[trail.TracePlace, str]:
        [row] = self._messages.slice(message_no, 1).select([*trail.TRACE_PLACE, "trace_client_id"]).to_pylist()
        client_id = row.pop("trace_client_id")
        return trail.TracePlace(cluster=self._cluster, **row), client_id


def _prepared(messages: pa.Table) -> pa.Table:
    """Name the columns as in trace_events; number the messages, find their client ids, mend texts without a ␂."""
    import pyarrow.compute as pc  # 10 MB, which a process that only looks up does not need

    found = _without_oversize(messages.rename_columns([_RENAMED.get(name, name) for name in messages.column_names]))
    texts = found["body_text"]
    client_ids = [""] * len(found)
    if pc.any(pc.starts_with(texts, _HEAD)).as_py():
        client_ids = [trail.trace_client_id(text) if text else "" for text in texts.to_pylist()]
    if pc.any(pc.match_substring_regex(texts, _MAY_LACK_END)).as_py():
        mended = [text if text is None else terminated(text) for text in texts.to_pylist()]
        found = found.set_column(found.schema.get_field_index("body_text"), "body_text", pa.array(mended, pa.string()))
    found = found.append_column("message_no", pa.array(range(len(found)), pa.int64()))
    return found.append_column("trace_client_id", pa.array(client_ids, pa.string()))


def _without_oversize(messages: pa.Table) -> pa.Table:
    """Replace bodies that may have more rows than trail.TRACE_PARTS_MAX by that problem."""
    import pyarrow.compute as pc

    texts = messages["body_text"]
    parts = pc.add(pc.count_substring(texts, ","), pc.count_substring(texts, RECORD_SEPARATOR))
    if not pc.any(pc.greater(parts, pa.scalar(trail.TRACE_PARTS_MAX, pa.int32()))).as_py():
        return messages
    problems = messages["body_problem"].to_pylist()
    found = [
        problem or trail.parts_problem(count or 0) for problem, count in zip(problems, parts.to_pylist(), strict=True)
    ]
    kept = [text if problem is None else None for text, problem in zip(texts.to_pylist(), found, strict=True)]
    for name, values in (("body_text", kept), ("body_problem", found)):
        messages = messages.set_column(messages.schema.get_field_index(name), name, pa.array(values, pa.string()))
    return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePlan:
    """Where and with what values a writer writes.

    folders: of each table, for the files of one writer. sql_topics: those whose properties are kept.
    topics: see trail.message_meta_sql.
    """

    cluster: str
    folders: Mapping[str, str]
    delay_levels_ms: tuple[int, ...]
    read_ms: int
    sql_topics: frozenset[str] = frozenset()
    topics: Collection[str] = ()


class EvidenceWriter:
    """Writes the files of one batch, or of a part of it: one call per chunk of pulled messages, at last `finish`."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, plan: EvidencePlan) -> None:
        self._duck = duck
        self._plan = plan
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._open = ExitStack()  # the files of these
        self._waiting: list[tuple[Relation, LakePath, int]] = []  # bronze that is not in silver yet: its rows
        self._types: set[str] = set()  # of the records that wait
        self._late_types: set[str] = set()  # of records that were made one by one
        self._has_client_records = False
        self._written: dict[LakePath, tuple[str, int]] = {}  # file -> its table and rows

    def trace(self, messages: pa.Table) -> None:
        """Decode trace messages (see DecodedTrace) into trace_events, trace_rejects and broker_events."""
        decoded = DecodedTrace(self._duck, messages, self._plan.cluster)
        try:
            rest: dict[str, list[Row]] = {}
            for relation, row in decoded.rest():
                rows = rest.setdefault(relation.name, [])
                rows.append(row)
                if len(rows) >= REST_ROWS_MAX:
                    self._append(relation, rows)
                    rows.clear()
            for relation in (trail.TRACE_EVENTS, trail.TRACE_REJECTS, trail.BROKER_EVENTS):
                self._append(relation, rest.get(relation.name, ()))
            self._types |= {shape.record_type for shape in decoded.shapes}
            self._note_types(shape.record_type for shape in decoded.shapes)
            if decoded.shapes:
                self._bronze(trail.TRACE_EVENTS, decoded.events_sql)
        finally:
            decoded.close()

    def stored(self, messages: pa.Table) -> None:
        """Write stored messages (see trail.message_meta_sql) to message_meta."""
        plan = self._plan
        self._duck.register("stored_messages", messages)
        sql = trail.message_meta_sql(
            "stored_messages", plan.cluster, plan.delay_levels_ms, plan.read_ms, plan.sql_topics, plan.topics
        )
        self._bronze(trail.MESSAGE_META, sql)
        self._duck.unregister("stored_messages")

    def gaps(self, rows: Sequence[Row]) -> None:
        """Write offset ranges that expired before they were read."""
        self._append(trail.GAPS, rows)

    def files(self) -> list[tuple[str, LakePath, int]]:
        """Everything written: table, file, rows."""
        return [(name, path, rows) for path, (name, rows) in self._written.items()]

    def finish(self) -> None:
        """Write waiting rows, then silver of all bronze, and close the files."""
        self._open.close()
        if trail.TRACE_EVENTS.name in self._writers:
            path = self._folder(trail.TRACE_EVENTS) / LATE
            self._waiting.append((trail.TRACE_EVENTS, path, self._written[path][1]))
            self._types |= self._late_types
        self._writers.clear()
        self._silver()
        self._indexes()

    def _append(self, relation: Relation, rows: Sequence[Row]) -> None:
        """Append rows that were made one by one to their file."""
        if not rows:
            return
        path = self._folder(relation) / LATE
        if relation.name not in self._writers:
            target = self._open.enter_context(sink(path))
            writer = pq.ParquetWriter(target, arrow_schema(relation), compression="zstd", version="2.6")
            self._writers[relation.name] = self._open.enter_context(writer)
        self._writers[relation.name].write_table(arrow_rows(relation, rows))
        self._written[path] = relation.name, self._written.get(path, ("", 0))[1] + len(rows)
        if relation is trail.TRACE_EVENTS:
            self._late_types.update(row["record_type"] for row in rows)
            self._note_types(row["record_type"] for row in rows)

    def _bronze(self, relation: Relation, rows: str) -> None:
        path = self._folder(relation) / f"part-{len(self._written)}.parquet"
        count = self._copy(rows, path)
        self._written[path] = relation.name, count
        self._waiting.append((relation, path, count))
        if sum(rows for _, _, rows in self._waiting) >= SILVER_ROWS:
            self._silver()

    def _silver(self) -> None:
        """Write the attempts of the files that wait: one file an hour."""
        waiting, self._waiting = self._waiting, []
        types, self._types = self._types, set()
        if not sum(rows for _, _, rows in waiting):
            return
        sources = {
            relation.name: _rows_of(relation, [path for of, path, _ in waiting if of is relation])
            for relation in (trail.TRACE_EVENTS, trail.MESSAGE_META)
        }
        sql = trail.folded_attempts_sql(
            sources[trail.TRACE_EVENTS.name],
            sources[trail.MESSAGE_META.name],
            types,
            messages=any(of is trail.MESSAGE_META for of, _, _ in waiting),
            twins=self._duck.execute(trail.twins_sql(sources[trail.TRACE_EVENTS.name])).fetchone() is not None,
        )
        folder = self._folder(trail.ATTEMPTS) / f"part-{len(self._written)}"
        columns = ", ".join(trail.ATTEMPTS.names)
        rows = f"SELECT {columns}, publish_hour AS hour FROM ({sql}) AS made"
        self._copy(rows, folder, ", PARTITION_BY (hour)")
        made: list[LakePath] = sorted(folder.rglob("*.parquet"), key=str)
        for path in made:
            self._written[path] = trail.ATTEMPTS.name, pq.read_metadata(parquet_source(path)).num_rows

    def _note_types(self, types: Iterable[str]) -> None:
        self._has_client_records = self._has_client_records or not set(types).isdisjoint(trail.CONTEXT_RECORDS)

    def _indexes(self) -> None:
        """Write what bronze says of clients and of clocks, and where message_meta has which offsets."""
        for relation, source, sql in (
            (trail.CLIENT_RECORDS, trail.TRACE_EVENTS, trail.client_records_sql),
            (trail.QUEUE_SPANS, trail.MESSAGE_META, trail.queue_spans_sql),
            (trail.CLOCK_BOUNDS, trail.TRACE_EVENTS, trail.trace_bounds_sql),
        ):
            bronze = [str(path) for path, (name, _) in self._written.items() if name == source.name]
            if bronze and (relation is not trail.CLIENT_RECORDS or self._has_client_records):
                path = self._folder(relation) / "part-0.parquet"
                self._written[path] = relation.name, self._copy(sql(parquet_of(bronze)), path)

    def _copy(self, rows: str, path: LakePath, more: str = "") -> int:
        (count,) = self._duck.execute(f"COPY ({rows}) TO {literal(str(path))} ({LAYOUT}{more})").fetchone() or (0,)
        return int(count)

    def _folder(self, relation: Relation) -> LakePath:
        folder = place_of(self._plan.folders[relation.name])
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _rows_of(relation: Relation, paths: Sequence[LakePath]) -> str:
    """SQL, for a FROM: the rows of files of a relation; none of no file."""
    if paths:
        return parquet_of([str(path) for path in paths])
    nothing = ", ".join(f"NULL::{column.type} AS {column.name}" for column in relation)
    return f"(SELECT {nothing} WHERE false)"
