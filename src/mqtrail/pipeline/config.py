"""What a job is told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mqtrail import trail
from mqtrail.client import InstanceConfig
from mqtrail.pipeline.session import SessionConfig
from mqtrail.wire import TRACE_TOPIC, MQError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What to read and where to keep it. Times are ms."""

    namesrv: str  # host:port;host:port
    lake: Path
    cluster: str = ""  # its name in the lake; the name server's where empty
    # Business topics whose messages are read as evidence. "*": all; None: all of our own brokers, none of others'.
    topics: tuple[str, ...] | None = None
    trace_topic: str = TRACE_TOPIC
    settings: trail.Settings = field(default_factory=trail.Settings)
    session: SessionConfig = field(default_factory=SessionConfig)
    instance: InstanceConfig = field(default_factory=InstanceConfig)  # credentials and TLS are taken from it
    read_rate_max: int = 0  # messages a second of each stream; 0: no limit
    fail_on_data_loss: bool = True  # of `once`; `run` records a gap and goes on
    offsets_per_batch_max: int = 200_000  # messages of one micro-batch
    retry_timeout_ms: int = 15_000  # how long one request is tried again before its broker is left for the next cycle
    task_memory: str = "1GB"  # of DuckDB in one task of the judgement, beside the heap; what needs more goes to files
    retention_ms: int = 90 * DAY_MS  # what the lake keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What one cycle did, counted in rows. problems: what could not be read or asked, each a sentence."""

    as_of_ms: int
    trace_messages: int
    trace_records: int
    rejects: int
    messages: int
    gaps: int
    trajectories: int  # that were judged
    seconds: float
    problems: tuple[str, ...] = ()


class JobFailed(MQError):
    """A cycle could not be brought to its end; what it committed stays, and the next one goes on from there."""
