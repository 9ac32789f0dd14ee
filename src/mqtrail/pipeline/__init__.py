"""PySpark: the rocketmq source and sink, stages for DataFrames, the job that turns trace into verdicts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backfills import Backfill, BackfillFiles, shown
    from .behind import BehindListener, QueueBehind, SourceBehind
    from .bounds import Bounds, bounds_of
    from .cluster import BrokerUnreachable, Cluster, Retrying, connect
    from .config import JobConfig, JobFailed, JobReport, StartingOffsets
    from .java import JavaNotFound
    from .job import PipelineJob
    from .offsets import QueueOffsets, QueueRange, advance, offsets_to_json, ranges_between
    from .options import OPTIONS, SourceOptionError, parse_options, security_options
    from .reading import DataLoss, read_ranges
    from .replay import SinkFailed
    from .rows import SINK_COLUMNS, SinkRowError
    from .sampler import sample_alone
    from .session import LONG_SESSION, SHORT_SESSION, SessionConfig, spark_session
    from .sinkoptions import SINK_OPTIONS
    from .source import RocketMQDataSource
    from .stages import TRACE_SCHEMA, attempts, decoded, rejected, trajectories, verdicts
    from .status import ClusterStatus, PipelineStatus, StatusFile, pipeline_faults

__all__ = [
    "LONG_SESSION",
    "OPTIONS",
    "SHORT_SESSION",
    "SINK_COLUMNS",
    "SINK_OPTIONS",
    "TRACE_SCHEMA",
    "Backfill",
    "BackfillFiles",
    "BehindListener",
    "Bounds",
    "BrokerUnreachable",
    "Cluster",
    "ClusterStatus",
    "DataLoss",
    "JavaNotFound",
    "JobConfig",
    "JobFailed",
    "JobReport",
    "PipelineJob",
    "PipelineStatus",
    "QueueBehind",
    "QueueOffsets",
    "QueueRange",
    "Retrying",
    "RocketMQDataSource",
    "SessionConfig",
    "SinkFailed",
    "SinkRowError",
    "SourceBehind",
    "SourceOptionError",
    "StartingOffsets",
    "StatusFile",
    "advance",
    "attempts",
    "bounds_of",
    "connect",
    "decoded",
    "offsets_to_json",
    "parse_options",
    "pipeline_faults",
    "ranges_between",
    "read_ranges",
    "rejected",
    "sample_alone",
    "security_options",
    "shown",
    "spark_session",
    "trajectories",
    "verdicts",
]

_MODULES = {
    "backfills": ("Backfill", "BackfillFiles", "shown"),
    "behind": ("BehindListener", "QueueBehind", "SourceBehind"),
    "bounds": ("Bounds", "bounds_of"),
    "cluster": ("BrokerUnreachable", "Cluster", "Retrying", "connect"),
    "config": ("JobConfig", "JobFailed", "JobReport", "StartingOffsets"),
    "java": ("JavaNotFound",),
    "job": ("PipelineJob",),
    "offsets": ("QueueOffsets", "QueueRange", "advance", "offsets_to_json", "ranges_between"),
    "options": ("OPTIONS", "SourceOptionError", "parse_options", "security_options"),
    "reading": ("DataLoss", "read_ranges"),
    "replay": ("SinkFailed",),
    "rows": ("SINK_COLUMNS", "SinkRowError"),
    "sinkoptions": ("SINK_OPTIONS",),
    "sampler": ("sample_alone",),
    "session": ("LONG_SESSION", "SHORT_SESSION", "SessionConfig", "spark_session"),
    "source": ("RocketMQDataSource",),
    "status": ("ClusterStatus", "PipelineStatus", "StatusFile", "pipeline_faults"),
    "stages": ("TRACE_SCHEMA", "attempts", "decoded", "rejected", "trajectories", "verdicts"),
}

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import on first use: every Python worker of Spark imports this room for its source, and none of them needs
        DuckDB, Delta and the job, which take as long to import as all the rest."""
        for module, names in _MODULES.items():
            if name in names:
                from importlib import import_module

                return getattr(import_module(f"mqtrail.pipeline.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
