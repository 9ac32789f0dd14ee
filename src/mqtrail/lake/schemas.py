"""The lake's tables: the relation of each, the layout of its files, and the schema version.

    <lake>/<table>/_delta_log/            the Delta log: names the committed files
    <lake>/<table>/batch=<app>-<number>/….parquet    files of one commit

Files that the log does not name are left over from a crash; `lake.sweep` deletes them. `trail` defines columns, types
and meanings; this module adds partitions, sort order and statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mqtrail import trail
from mqtrail.trail import Column, Relation
from mqtrail.trail.incidents import INCIDENTS

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
"""Version of all tables together; written into each table's Delta metadata as `mqtrail.schema`."""
MIGRATED_VERSION = 1
"""The earlier version that `migration` brings to this one."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the lake.

    partition_by: column with one value per file ('' for none).
    time_column: compared by retention, ms (hours for publish_hour). sort_by: row order in compacted files. bloom:
    columns with bloom filters in files of one row group. counted: further columns whose least and greatest
    values the log has, as it has those of the cluster.
    """

    relation: Relation
    layer: Literal["bronze", "silver", "gold"]
    partition_by: str = ""
    time_column: str = ""
    sort_by: tuple[str, ...] = ()
    bloom: tuple[str, ...] = ()
    joined_size_max: int = 256 * 1024 * 1024
    """Compaction joins the files of a table without partitions up to this size, and none above an eighth of it."""
    is_sampled: bool = False
    """Rows of samples: a file holds one cluster, and retention keeps what the oldest kept instant reads."""
    counted: tuple[str, ...] = ()

    @property
    def with_bounds(self) -> set[str]:
        """The columns whose least and greatest values in each file are in the log."""
        return {"cluster", self.partition_by, self.time_column, *self.sort_by[:1], *self.bloom, *self.counted} - {""}

    @property
    def name(self) -> str:
        """The table's folder and its name in SQL."""
        return self.relation.name


def _sampled(relation: Relation, *key: str) -> Table:
    """A table of samples. Its files are small, because readers choose files by their time."""
    return Table(
        relation,
        "bronze",
        time_column="sampled_ms",
        sort_by=("cluster", *key, "sampled_ms"),
        joined_size_max=4 * 1024 * 1024,
        is_sampled=True,
    )


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(trail.TRACE_EVENTS, "bronze", time_column="trace_store_ms", sort_by=("msg_id",)),
        Table(trail.TRACE_REJECTS, "bronze", time_column="trace_store_ms"),
        Table(
            trail.BROKER_EVENTS,
            "bronze",
            time_column="trace_store_ms",
            sort_by=("event_broker_name", "event_ms"),
        ),
        Table(
            trail.MESSAGE_META,
            "bronze",
            time_column="store_ms",
            sort_by=("topic", "broker_name", "queue_id", "queue_offset"),
        ),
        _sampled(trail.GROUP_OFFSETS, "group_name", "topic", "broker_name", "queue_id"),
        _sampled(trail.CLIENTS, "group_name", "client_id"),
        _sampled(trail.SUBSCRIPTIONS, "group_name", "topic"),
        _sampled(trail.QUEUE_RANGES, "topic", "broker_name", "queue_id"),
        _sampled(trail.SAMPLES, "what", "topic", "broker_name"),
        Table(trail.GAPS, "bronze", time_column="detected_ms"),
        Table(trail.UNREAD_RANGES, "bronze", time_column="sampled_ms"),
        Table(trail.PROBLEMS, "bronze", time_column="noted_ms"),
        Table(
            trail.ATTEMPTS,
            "silver",
            "publish_hour",
            "publish_hour",
            ("msg_id", "kind", "attempt_key"),
            bloom=("msg_id",),
            counted=("batch_id",),
        ),
        Table(
            trail.CLIENT_RECORDS,
            "silver",
            time_column="trace_store_ms",
            sort_by=("record_type", "cluster", "client_id", "start_id", "first_sequence"),
        ),
        Table(
            trail.QUEUE_SPANS,
            "silver",
            time_column="last_ms",
            sort_by=("cluster", "topic", "broker_name", "queue_id", "first_offset"),
        ),
        Table(
            trail.CLOCK_BOUNDS,
            "silver",
            time_column="window_ms",
            sort_by=("cluster", "host", "broker_name", "window_ms"),
        ),
        Table(
            trail.TRAJECTORIES,
            "gold",
            "publish_hour",
            "publish_hour",
            ("msg_id",),
            bloom=("msg_id",),
            counted=("as_of_ms", *trail.PUBLISHED_FROM),
        ),
        Table(trail.VERDICTS, "gold", "publish_hour", "publish_hour", ("msg_id", "group_name"), ("msg_id",)),
        Table(trail.LATENCY_MINUTE, "gold", "publish_hour", "publish_hour", ("minute_ms",)),
        Table(trail.LAG, "gold", time_column="sampled_ms"),
        Table(
            trail.OPEN_IDS,
            "gold",
            time_column="as_of_ms",
            sort_by=("cluster", "group_name", "topic", "broker_name", "queue_id", "queue_offset"),
        ),
        Table(trail.GROUP_FOLDS, "gold", sort_by=("cluster", "kind", "group_name")),
        Table(trail.KEY_INDEX, "gold", "publish_hour", "publish_hour", ("key_token", "msg_id"), ("key_token",)),
        Table(INCIDENTS, "gold", time_column="end_ms", sort_by=("cluster", "begin_ms")),
    )
}
"""Every table by name, bronze first."""


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column; `events` is a list of structs with trail.EVENT_FIELDS."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
    if column.type == "events":
        return pa.list_(pa.struct([(field.name, types[field.type]) for field in trail.EVENT_FIELDS]))
    return types[column.type]


def arrow_schema(relation: Relation) -> pa.Schema:
    """Return the Arrow schema of a relation: all columns nullable, in order, meanings as field metadata."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column), metadata={"doc": column.doc}) for column in relation])


def ddl(relation: Relation) -> str:
    """Return a relation's columns as SQL ('name type, …') for Spark and DuckDB, without nested columns."""
    return ", ".join(f"{c.name} {c.type}" for c in relation if c.type != "events")
