"""Raw trace rows as a cluster has them, created by DuckDB; and DuckDB's own conversion to trajectories and verdicts.

The trace is that of Apache's Java client 5.x: for each message a Pub, and in two groups a SubBefore and a SubAfter.
Three deliveries in a hundred fail and are retried. About 40 records make a trace message, in time order.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from mqtrail import trail
from mqtrail.lake import TABLES, connect, define_compared, run_stages
from mqtrail.trail import Relation

HOURS = 5
GROUPS = ("billing", "shipping")
RECORDS_A_MESSAGE = 40
CLUSTER = "BenchCluster"
FIRST_MS = (
    1_767_225_600_000  # 2026-01-01 00:00 UTC: the start of a month, so that the milliseconds in ids are easy to compute
)
AS_OF_MS = FIRST_MS + (HOURS + 24) * 3_600_000
_PRODUCERS = 8
_FAILED_OF_100 = 3
_RETRY_MS = 10_000
_FIELD, _RECORD = "chr(1)", "chr(2)"

# An id: ip (10.0.0.producer), pid and loader hash, ms since the start of the month, counter.
_MESSAGES = f"""
SELECT n, at_ms, format('{{{{:032X}}}}', (({{ip}} + n % {_PRODUCERS})::hugeint * {1 << 48} + {0x12675BE20A66})
    * {1 << 48} + (at_ms - {FIRST_MS})::hugeint * 65536 + n % 65536) AS msg_id
FROM (SELECT range AS n, {{from_ms}} + range * {{span_ms}} // {{count}} AS at_ms FROM range({{count}}))"""


def write_raw(
    target: Path,
    count: int,
    records_a_message: int = RECORDS_A_MESSAGE,
    *,
    hours: tuple[float, float] = (0, HOURS),
    network: int = 0,
) -> int:
    """Write a Parquet file with the trace of `count` messages, as rows of the source; return the number of records.

    hours: of the first month, in which they were sent. network: messages of different ones have different ids.
    """
    duck = connect()
    duck.execute("SET preserve_insertion_order = false")
    first, end = (round(hour * 3_600_000) for hour in hours)
    ip = 0x0A000000 + 256 * network
    sent = _MESSAGES.format(count=count, ip=ip, from_ms=FIRST_MS + first, span_ms=end - first)
    duck.execute(f"CREATE TABLE sent AS {sent}")
    duck.execute(f"CREATE TABLE records AS {_records()}")
    duck.execute(f"""
    COPY (SELECT 'RMQ_SYS_TRACE_TOPIC' AS topic, 'broker-a' AS broker_name, 0::int AS queue_id, m AS queue_offset,
        NULL::bigint AS lost_until, NULL::varchar AS lost_reason, max(at_ms) + 100 AS born_timestamp_ms,
        '10.0.0.' || (m % 8) || ':40' || (m % 8 + 100) AS born_host, max(at_ms) + 101 AS store_timestamp_ms,
        string_agg(text, '' ORDER BY at_ms) AS body_text, NULL::varchar AS body_problem
      FROM (SELECT *, (row_number() OVER (ORDER BY at_ms) - 1) // {records_a_message} AS m FROM records) AS numbered
      GROUP BY m ORDER BY m) TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 4096)""")
    (records,) = duck.execute("SELECT count(*) FROM records").fetchone() or (0,)
    return int(records)


def _records() -> str:
    """Return SQL with one row per record: its time and its text."""
    pub = _joined(
        "'Pub'", "at_ms", "'DefaultRegion'", "'shop'", "'orders-' || n % 20", "msg_id", "'paid'", "'order-' || n",
        "'10.0.1.1:10911'", "400 + n % 200", "2 + n % 7", "0", _offset_id(), "'true'",
    )  # fmt: skip
    parts = [f"SELECT at_ms, {pub} AS text FROM sent"]
    for number, group in enumerate(GROUPS):
        for again in (0, 1):
            failed = f"(n + {number} * 7) % 100 < {_FAILED_OF_100}"
            begun_ms = f"at_ms + 3 + n % 5 + {again * _RETRY_MS}"
            request = f"md5(n || '{group}' || {again})"
            where = failed if again else "true"
            before = _joined(
                "'SubBefore'", begun_ms, "'DefaultRegion'", f"'{group}'", request, "msg_id", str(again), "'order-' || n"
            )
            good = "'true'" if again else f"CASE WHEN {failed} THEN 'false' ELSE 'true' END"
            code = "'0'" if again else f"CASE WHEN {failed} THEN '4' ELSE '0' END"
            after = _joined(
                "'SubAfter'", request, "msg_id", "5 + n % 40", good, "'order-' || n", code,
                f"{begun_ms} + 5 + n % 40", f"'{group}'",
            )  # fmt: skip
            parts.append(f"SELECT {begun_ms}, {before} FROM sent WHERE {where}")
            parts.append(f"SELECT {begun_ms} + 5 + n % 40, {after} FROM sent WHERE {where}")
    return " UNION ALL ".join(parts)


def _offset_id() -> str:
    return "format('0A00010100002A9F{:016X}', n * 700)"


def _joined(*fields: str) -> str:
    return f" || {_FIELD} || ".join(f"({field})" for field in fields) + f" || {_RECORD}"


class DuckPipeline:
    """Raw trace to gold with DuckDB alone: the same tables in Parquet files, the same order, the same SQL of trail.

    The decoding handles only the three record types of the raw file, so it does less than ours.
    """

    def __init__(self, raw: Path, folder: Path, *, threads: int) -> None:
        self._raw, self._folder = raw, folder
        self.duck = connect(threads=threads)
        self.duck.execute("SET memory_limit = '4GB'")
        self.duck.execute("SET preserve_insertion_order = false")

    def run(self) -> None:
        """Decode, make attempts, judge; write each table."""
        events = self._write(trail.TRACE_EVENTS, _decoded(self._raw))
        self.duck.execute(f"CREATE VIEW trace_events AS SELECT * FROM {events}")
        for relation in trail.EVIDENCE:
            if relation.name != trail.TRACE_EVENTS.name:
                columns = ", ".join(f"NULL::{column.type} AS {column.name}" for column in relation)
                self.duck.execute(f"CREATE VIEW {relation.name} AS SELECT {columns} WHERE false")
        nothing = dict.fromkeys(trail.GROUP_FOLDS.names, "NULL")
        self.duck.execute(f"CREATE VIEW group_folds AS SELECT {trail.GROUP_FOLDS.typed(nothing)} WHERE false")
        attempts = self._write(trail.ATTEMPTS, trail.attempts_sql())
        self.duck.execute(f"CREATE VIEW attempts AS SELECT {', '.join(trail.ATTEMPTS.names)} FROM {attempts}")
        self.duck.execute(f"CREATE VIEW client_records AS {trail.client_records_sql('trace_events')}")
        define_compared(self.duck, AS_OF_MS, trail.Settings())
        run_stages(self.duck, trail.judge(AS_OF_MS, batches=False))
        for relation in (trail.TRAJECTORIES, trail.VERDICTS, trail.LATENCY_MINUTE, trail.KEY_INDEX):
            self._write(relation, f"SELECT {', '.join(relation.names)} FROM {relation.name}")

    def codes(self) -> dict[str, int]:
        """Return the number of verdicts of each kind, to compare with Spark's."""
        return codes_of(self.duck, f"read_parquet('{self._folder}/verdicts/**/*.parquet', hive_partitioning = false)")

    def _write(self, relation: Relation, rows: str) -> str:
        table, folder = TABLES[relation.name], self._folder / relation.name
        by_hour = "PARTITION_BY (hour), " if table.partition_by else ""
        hour = ", publish_hour AS hour" if table.partition_by else ""
        order = f" ORDER BY {', '.join(table.sort_by)}" if table.partition_by and table.sort_by else ""
        target = folder if table.partition_by else folder / "part.parquet"
        folder.mkdir(parents=True)
        self.duck.execute(
            f"COPY (SELECT *{hour} FROM ({rows}) AS made{order}) TO '{target}' "
            f"(FORMAT parquet, COMPRESSION zstd, {by_hour}OVERWRITE_OR_IGNORE)"
        )
        return f"read_parquet('{folder}/**/*.parquet', hive_partitioning = false)"


def codes_of(duck: duckdb.DuckDBPyConnection, verdicts: str) -> dict[str, int]:
    """Count the verdicts of a table by code."""
    return {
        str(codes): int(n) for codes, n in duck.execute(f"SELECT codes, count(*) FROM {verdicts} GROUP BY 1").fetchall()
    }


_OF_TYPE = {
    # column: values for Pub, SubBefore and SubAfter; positions count from 1, which is the type
    "event_ms": ("f[2]", "f[2]", "f[8]"),
    "region_id": ("f[3]", "f[3]", ""),
    "group_name": ("f[4]", "f[4]", "f[9]"),
    "topic": ("f[5]", "", ""),
    "msg_id": ("f[6]", "f[6]", "f[3]"),
    "tags": ("f[7]", "", ""),
    "keys": ("f[8]", "f[8]", "f[6]"),
    "store_host": ("f[9]", "", ""),
    "body_size": ("f[10]", "", ""),
    "cost_ms": ("f[11]", "", "f[4]"),
    "msg_type": ("f[12]", "", ""),
    "offset_msg_id": ("f[13]", "", ""),
    "success": ("f[14]", "", "f[5]"),
    "request_id": ("", "f[5]", "f[2]"),
    "retry_times": ("", "f[7]", ""),
    "context_code": ("", "", "f[7]"),
}
_PLACES = {
    "broker_name": "broker_name",
    "trace_topic": "topic",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "trace_born_ms": "born_timestamp_ms",
    "trace_store_ms": "store_timestamp_ms",
    "trace_born_host": "born_host",
    "record_no": "record_no",
    "item_no": "0",
    "item_count": "1",
    "record_type": "f[1]",
    "cluster": f"'{CLUSTER}'",
}


def _decoded(raw: Path) -> str:
    """Return SQL for raw trace as rows of trace_events."""
    picks = []
    for column in trail.TRACE_EVENTS:
        if column.name in _PLACES:
            value = _PLACES[column.name]
        elif column.name in _OF_TYPE:
            kinds = zip(("Pub", "SubBefore", "SubAfter"), _OF_TYPE[column.name], strict=True)
            value = "CASE f[1] " + " ".join(f"WHEN '{kind}' THEN {text}" for kind, text in kinds if text) + " END"
        else:
            value = "NULL"
        cast = f"try_cast({value} AS {column.type})"
        picks.append(
            f"coalesce({cast}, '') AS {column.name}" if column.type == "string" else f"{cast} AS {column.name}"
        )
    return f"""
    SELECT {", ".join(picks)} FROM (SELECT *, string_split(piece, {_FIELD}) AS f FROM (
      SELECT * EXCLUDE (pieces), unnest(pieces) AS piece, generate_subscripts(pieces, 1) - 1 AS record_no FROM (
        SELECT *, string_split(body_text, {_RECORD}) AS pieces FROM read_parquet('{raw}')) AS messages) AS records
      WHERE piece <> '') AS fields"""
