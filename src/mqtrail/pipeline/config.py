"""Configuration and report of a pipeline job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from mqtrail import trail
from mqtrail.client import InstanceConfig
from mqtrail.lake import LakePath
from mqtrail.trail import DAY_MS
from mqtrail.wire import TRACE_TOPIC, MQError, setting

from .session import SessionConfig

GAP_INTERVALS: Final = 3  # a pause of more sample intervals than this between two samples is a gap
NOT_RUNNING: Final = "no sampler was running"


class StartingOffsets(Enum):
    """Where the first read of a cluster begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What to read and where to write it. Times are ms."""

    namesrv: str  # host:port;host:port
    lake: LakePath
    cluster: str = setting("", "cluster name in the lake; empty: as registered with the name server")
    clusters: tuple[str, ...] = setting(
        (),
        "`run` and `sample`: several clusters, each `NAME=HOST:PORT[;…]`, the name in the lake and its name servers; "
        "other commands read the one that `--cluster` names; empty: one, by `namesrv` and `cluster`",
    )
    topics: tuple[str, ...] | None = setting(
        None, "business topics whose messages are read as evidence; none: all of mqtrail brokers"
    )
    trace_topic: str = setting(TRACE_TOPIC, "trace topic of the clients")
    settings: trail.Settings = field(default_factory=trail.Settings)
    session: SessionConfig = field(default_factory=SessionConfig)
    instance: InstanceConfig = field(default_factory=InstanceConfig)  # credentials and TLS are taken from it
    read_rate_max: int = setting(0, "maximum messages per second, of all queues together; 0: no limit")
    interval_ms: int = setting(2_000, "`run` only: time between the starts of two cycles")
    metrics_port: int | None = setting(
        None, "`run` only: port of the [Prometheus metrics](metrics.md#the-pipelines-metrics); 0: any free; none: off"
    )
    metrics_host: str = setting("127.0.0.1", "IP address to serve the metrics on")
    sample_interval_ms: int = setting(
        5_000, "time between the starts of two samples; after a slow sample the pause is at least as long as it took"
    )
    fail_on_data_loss: bool = setting(
        True, "`once` only: fail when unread messages are gone; `run` records a gap and continues"
    )
    starting_offsets: StartingOffsets = setting(
        StartingOffsets.EARLIEST,
        "start of the first read of a cluster, in the queues that exist then: `earliest`, or `latest` (older messages: "
        "`mqtrail pipeline backfill`); queues that appear later are read from their first message",
    )
    backfill_messages_max: int = setting(
        2_000, "`run` only: maximum number of messages that a backfill reads after a cycle that is caught up"
    )
    driver_messages_max: int = setting(
        4_000, "maximum number of messages of a batch that the driver reads itself; Spark's tasks read larger batches"
    )
    driver_attempts_max: int = setting(
        1_000_000,
        "number of attempts, about five per message, at or above which Spark's tasks judge them; below it the driver "
        "does",
    )
    offsets_per_batch_max: int = setting(200_000, "maximum number of messages per batch")
    messages_per_cycle_max: int = setting(
        1_000_000, "`run` only: maximum number of messages per cycle; it judges them before it reads the rest"
    )
    retry_timeout_ms: int = setting(15_000, "time to retry a request before its broker is left for the next cycle")
    task_memory: str = setting(
        "1GB", "memory of DuckDB in one task, in addition to the heap; larger data goes to files"
    )
    retention_ms: int = setting(90 * DAY_MS, "time that the lake keeps its data")

    def __post_init__(self) -> None:
        names = [name for name, _ in self._named()]
        for text, (name, address) in zip(self.clusters, self._named(), strict=True):
            if not name or not address or names.count(name) > 1:
                raise JobFailed(
                    f"found cluster {text!r}, expected NAME=HOST:PORT[;…] with a name that no other cluster has"
                )

    def each(self) -> list[JobConfig]:
        """The settings of each cluster alone."""
        return [replace(self, clusters=(), cluster=name, namesrv=at) for name, at in self._named()] or [self]

    def _named(self) -> list[tuple[str, str]]:
        """Name and name servers of each of several clusters."""
        parted = (text.partition("=") for text in self.clusters)
        return [(name.strip(), address.strip()) for name, _, address in parted]

    @property
    def judged_with(self) -> trail.Settings:
        """The thresholds of judgements, which must know how far samples are apart."""
        pause_ms = max(self.settings.sample_pause_ms_max, GAP_INTERVALS * self.sample_interval_ms)
        return replace(self.settings, sample_pause_ms_max=pause_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What one cycle did, in rows. problems: what could not be read or queried, a sentence each."""

    cluster: str = ""
    as_of_ms: int
    trace_messages: int
    trace_records: int
    rejects: int
    messages: int
    gaps: int
    trajectories: int  # number judged
    seconds: float
    problems: tuple[str, ...] = ()
    behind: int = 0  # messages that are there and are left for the next cycle


class JobFailed(MQError):
    """A cycle failed. Its committed data stays, and the next cycle continues from there."""
