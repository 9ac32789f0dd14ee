"""Tables of evidence and trajectories: schemas, commit, compaction, retention, look-up with DuckDB. No Spark.

The tables are Parquet files named by open Delta logs, written through delta-rs; what `trail` defines is run here on
DuckDB, over the committed files and over rows that came after them.
"""

from mqtrail.lake.duck import DuckEngine, arrow_rows, connect, judge_rows
from mqtrail.lake.edge import lake_errors
from mqtrail.lake.errors import (
    FileRefused,
    LakeBusy,
    LakeDamaged,
    LakeError,
    LakeMissing,
    LakeUnreadable,
    LakeUnsupported,
    SchemaVersionError,
)
from mqtrail.lake.fresh import judge_messages
from mqtrail.lake.judged import note_settings, settings_at
from mqtrail.lake.lookup import Answer, LookUp, relation_of
from mqtrail.lake.maintenance import compact, copy_hours, expire, parquet_of, sweep
from mqtrail.lake.schemas import SCHEMA_VERSION, TABLES, Table, arrow_schema, arrow_type, ddl
from mqtrail.lake.tables import DataFile, Lake, LakeTable

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "Answer",
    "DataFile",
    "DuckEngine",
    "FileRefused",
    "Lake",
    "LakeBusy",
    "LakeDamaged",
    "LakeError",
    "LakeMissing",
    "LakeTable",
    "LakeUnreadable",
    "LakeUnsupported",
    "LookUp",
    "SchemaVersionError",
    "Table",
    "arrow_rows",
    "arrow_schema",
    "arrow_type",
    "compact",
    "connect",
    "copy_hours",
    "ddl",
    "expire",
    "judge_messages",
    "judge_rows",
    "lake_errors",
    "note_settings",
    "parquet_of",
    "relation_of",
    "settings_at",
    "sweep",
]
