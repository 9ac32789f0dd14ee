"""Tables of evidence and trajectories: schemas, commit, compaction, retention, look-up with DuckDB. No Spark.

The tables are Parquet files named by open Delta logs, written through delta-rs; what `trail` defines is run here on
DuckDB, over the committed files and over rows that came after them.
"""

from mqtrail.lake.duck import DuckEngine, arrow_rows, connect, judge_rows
from mqtrail.lake.schemas import SCHEMA_VERSION, TABLES, Table, arrow_schema, arrow_type, ddl

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "DuckEngine",
    "Table",
    "arrow_rows",
    "arrow_schema",
    "arrow_type",
    "connect",
    "ddl",
    "judge_rows",
]
