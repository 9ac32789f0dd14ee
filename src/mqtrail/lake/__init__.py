"""Tables of evidence and trajectories: schemas, commit, compaction, retention, look-up with DuckDB. No Spark.

The tables are Delta tables, written by delta-rs. DuckDB runs the SQL of `trail` over committed files and newer rows.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .batches import Batches, Change, LakeBatch
from .cycles import BULK_RESULTS, Bulk, Cycle, LastJudgement, StatePrint
from .duck import arrow_rows, connect, define, define_compared, fetch, judge_rows, run_stages
from .edge import lake_errors
from .errors import (
    FileRefused,
    LakeBusy,
    LakeDamaged,
    LakeError,
    LakeLost,
    LakeMissing,
    LakeUnreadable,
    LakeUnsupported,
    SchemaVersionError,
)
from .fresh import judge_messages
from .incidents import keep_incidents, record_incidents, with_waiting
from .judged import JUDGED, JUDGED_APP, note_settings, settings_at, unfinished_judgement
from .known import LakeKnown, lost_judgements
from .lags import define_lag
from .lake import Lake
from .lock import WriteLock
from .lookup import Answer, LookUp, relation_of
from .maintenance import Join, compact, expire, joins_due, settled_ms, sweep, sweeping
from .migration import migrate
from .objects import ObjectPath
from .parquet import copy, copy_hours, of_cluster, parquet_of, rows_of
from .places import (
    LakePath,
    emptied,
    is_remote,
    own_folder,
    parquet_source,
    place_of,
    remove_tree,
    write_parquet,
    write_whole,
)
from .rebuild import rebuild
from .samples import keyframes_at, sample_files
from .schemas import SCHEMA_VERSION, TABLES, Table, arrow_schema, arrow_type, ddl
from .storeerrors import ObjectStoreError
from .tables import DataFile, LakeTable, cluster_of

if TYPE_CHECKING:
    from .decoding import STORED, DecodedTrace, EvidencePlan, EvidenceWriter, stored_rows

_LATE: Final = {
    "STORED": ".decoding",
    "DecodedTrace": ".decoding",
    "EvidencePlan": ".decoding",
    "EvidenceWriter": ".decoding",
    "stored_rows": ".decoding",
}
"""Name -> its module. They need Arrow, 30 MB that a process spares which only looks up: at their first use."""

__all__ = [
    "BULK_RESULTS",
    "JUDGED",
    "JUDGED_APP",
    "SCHEMA_VERSION",
    "STORED",
    "TABLES",
    "Answer",
    "Batches",
    "Bulk",
    "Change",
    "Cycle",
    "DataFile",
    "DecodedTrace",
    "EvidencePlan",
    "EvidenceWriter",
    "FileRefused",
    "Join",
    "Lake",
    "LakeBatch",
    "LakeBusy",
    "LakeDamaged",
    "LakeError",
    "LakeKnown",
    "LakeLost",
    "LakeMissing",
    "LakePath",
    "LakeTable",
    "LakeUnreadable",
    "LakeUnsupported",
    "LastJudgement",
    "LookUp",
    "ObjectPath",
    "ObjectStoreError",
    "SchemaVersionError",
    "StatePrint",
    "Table",
    "WriteLock",
    "arrow_rows",
    "arrow_schema",
    "arrow_type",
    "cluster_of",
    "compact",
    "connect",
    "copy",
    "copy_hours",
    "ddl",
    "define",
    "define_compared",
    "define_lag",
    "emptied",
    "expire",
    "fetch",
    "is_remote",
    "joins_due",
    "judge_messages",
    "judge_rows",
    "keep_incidents",
    "keyframes_at",
    "lake_errors",
    "lost_judgements",
    "migrate",
    "note_settings",
    "of_cluster",
    "own_folder",
    "parquet_of",
    "parquet_source",
    "place_of",
    "rebuild",
    "record_incidents",
    "relation_of",
    "remove_tree",
    "rows_of",
    "run_stages",
    "sample_files",
    "settings_at",
    "settled_ms",
    "stored_rows",
    "sweep",
    "sweeping",
    "unfinished_judgement",
    "with_waiting",
    "write_parquet",
    "write_whole",
]

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name], __name__), name)
