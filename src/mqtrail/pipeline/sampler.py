"""The sampler: samples a cluster every few seconds, beside the cycles of a pipeline or alone.

It has separate connections and passes its samples on as files (`spool`), so that sampler and pipeline do not wait for
each other. A broker that does not answer is left out for the rest of a sample. A time without samples is recorded as a
gap, with its reason.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from random import Random
from threading import Event, Lock
from typing import Final

import pyarrow.parquet as pq

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.clock import now_ms
from mqtrail.lake import Lake, LakeBusy, LakeError, LakePath, LakeUnreadable, lake_errors, parquet_source
from mqtrail.wire import MQError, is_business_group

from .changes import Changes
from .cluster import connect as connect_cluster
from .config import NOT_RUNNING, JobConfig
from .group_masters import MasterEpochs
from .names import ClusterNames, positions_in
from .orders import ConsumeOrders
from .recording import Recorders
from .sampling import sample, survey
from .spool import SampleSpool, SampleSpoolFull

JITTER: Final = 0.1  # a pause varies by this part, so that samplers of several lakes do not run at the same time
REQUEST_TIMEOUT_MS: Final = 3_000
GROUPS_AGE_MS_MAX: Final = 60_000  # how often groups are looked for in the trace
TRACED_HOURS: Final = 2  # latest publish hours whose verdicts are searched for groups that brokers may not know
RECORD_INTERVAL_MS: Final = 600_000  # how often a sampler without a pipeline takes the lake's lock for a commit


class Sampler:
    """Samples one cluster for one lake. Use it from one thread."""

    def __init__(
        self,
        config: JobConfig,
        say: Callable[[str], None] = lambda text: None,
        *,
        spool: SampleSpool | None = None,
        now_ms: Callable[[], int] = now_ms,
        chance: Random | None = None,
    ) -> None:
        """spool: shared with the samplers of other clusters in this process."""
        self._config = config
        self._say = say
        self._now_ms = now_ms
        self._chance = chance or Random()
        self._spool = spool or SampleSpool(config.lake)
        self._instance = dataclasses.replace(
            config.instance, request_timeout_ms=min(config.instance.request_timeout_ms, REQUEST_TIMEOUT_MS)
        )
        self._groups: set[str] = set()
        self._traced = TracedGroups()
        self._orders = ConsumeOrders()
        self._epochs = MasterEpochs()
        self._groups_ms = 0
        self._last_ms = 0
        self._gap = NOT_RUNNING
        self._reported = ""
        self._names: ClusterNames | None = None

    def run(self, stop: Event, after: Callable[[], None] = lambda: None) -> None:
        """Take samples until stop is set. after: called after each one.

        Only one process samples for a lake; another one waits until it ends.
        """
        while not stop.is_set():
            with ExitStack() as stack:
                try:
                    is_ours = stack.enter_context(self._spool.sampling())
                except LakeUnreadable as error:  # an object store that does not answer
                    is_ours, why = False, f"no sample was taken: {error}"
                else:
                    why = "another process samples for this lake"
                if is_ours:
                    self._run(stop, after)
                else:
                    self._report(why)
            stop.wait(self._config.sample_interval_ms / 1000)

    def _run(self, stop: Event, after: Callable[[], None]) -> None:
        with SyncAdmin(self._config.namesrv, config=self._instance) as admin:
            while not stop.is_set():
                begun = time.monotonic()
                self.take(admin)
                after()
                stop.wait(self._pause_s(time.monotonic() - begun))

    def take(self, admin: SyncAdmin) -> bool:
        """Take a sample and put it into the spool. False: that failed, and the next sample records a gap."""
        try:
            topology = survey(admin, self._config.trace_topic, self._config.topics)
            cluster = self._config.cluster or topology.cluster
            self._check_name(cluster, topology.masters)
            self._look_for_groups(cluster)
            sampled_ms = max(self._now_ms(), self._last_ms + 1)
            found = sample(admin, topology, cluster, sampled_ms, self._groups, self._orders, self._epochs)
            self._groups = found.groups
            found.gap = self._gap
            if self._last_ms and sampled_ms - self._last_ms > self._config.judged_with.sample_pause_ms_max:
                found.gap = self._gap or "samples took longer than their interval"
            elif self._last_ms and self._gap == NOT_RUNNING:
                found.gap = ""  # another sampler ended just now
            self._spool.put(cluster, found)
        except (MQError, OSError, SampleSpoolFull, LakeError) as error:
            self._gap = str(error)
            self._report(f"no sample was taken: {error}")
            return False
        self._last_ms, self._gap = sampled_ms, ""
        self._report("; ".join(found.problems))
        return True

    def _check_name(self, cluster: str, brokers: Mapping[str, str]) -> None:
        """JobFailed: see ClusterNames.check."""
        if self._names is None:
            self._names = ClusterNames(Lake.open(self._config.lake))
        lake, config = self._names.lake, self._config
        self._names.check(
            cluster,
            brokers,
            lambda: positions_in(lake),
            lambda: closing(connect_cluster(config.namesrv, None, config.instance.credentials, config.instance.tls)),
            is_registered=not config.cluster,
        )

    def _look_for_groups(self, cluster: str) -> None:
        """Add groups of the lake's samples and of recent verdicts to those that are queried."""
        at_ms = self._now_ms()
        if self._groups_ms and at_ms - self._groups_ms < GROUPS_AGE_MS_MAX:
            return
        lake = Lake.open(self._config.lake)
        if not self._groups_ms:
            known = Changes.load(lake, cluster, self._config.retention_ms)
            self._groups |= set(known.groups)
            self._last_ms = max(known.sampled_ms or 0, self._spool.last_ms(cluster))
        self._groups |= self._traced.of(lake, cluster)
        self._groups_ms = at_ms

    def _pause_s(self, taken_s: float) -> float:
        """The rest of the interval, and at least as long as the sample took, so that half the time is free."""
        interval_s = self._config.sample_interval_ms / 1000 * self._chance.uniform(1 - JITTER, 1 + JITTER)
        return float(max(interval_s - taken_s, taken_s))

    def _report(self, text: str) -> None:
        """Report a state once."""
        if text and text != self._reported:
            self._say(text)
        self._reported = text


def sample_alone(config: JobConfig, stop: Event, say: Callable[[str], None] = lambda text: None) -> None:
    """Sample until stop is set, with or without a pipeline on the same lake.

    A running pipeline records the samples in its cycles. Without one they wait in the spool and are recorded every
    RECORD_INTERVAL_MS, so that the lake's lock is rarely taken.
    """
    lake = Lake.create(config.lake)
    spool, recorders = SampleSpool(config.lake), Recorders(lake, config.retention_ms)
    recorded = time.monotonic()
    turn = Lock()  # of the samplers, to record

    def record() -> None:
        nonlocal recorded
        recorded = time.monotonic()
        try:
            with lake.writing():
                recorders.record_spool(spool)
        except LakeBusy:
            return  # a pipeline is the writer, and records them

    def record_now_and_then() -> None:
        with turn:
            if time.monotonic() - recorded >= RECORD_INTERVAL_MS / 1000:
                record()

    record()
    samplers = [Sampler(one, named(say, one, config), spool=spool) for one in config.each()]
    with ThreadPoolExecutor(len(samplers), "mqtrail-sampler") as threads:
        running = [threads.submit(one.run, stop, record_now_and_then) for one in samplers]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for each in running:
        each.result()
    record()


def named(say: Callable[[str], None], one: JobConfig, config: JobConfig) -> Callable[[str], None]:
    """Return `say` with the name of one of the clusters before each text, if there are several."""
    return (lambda text: say(f"{one.cluster}: {text}")) if config.clusters else say


class TracedGroups:
    """The groups of recent verdicts: the trace may show deliveries to a group that no broker knows."""

    def __init__(self) -> None:
        self._found: dict[str, frozenset[tuple[str, str]]] = {}  # path of a file -> cluster and group of its rows

    def of(self, lake: Lake, cluster: str) -> set[str]:
        """The groups of one cluster. A file is read once, because it does not change after its commit."""
        verdicts = lake[trail.VERDICTS.name]
        verdicts.refresh()
        files = verdicts.readable(verdicts.files(verdicts.hours()[-TRACED_HOURS:]))
        with lake_errors(lake.path):
            self._found = {
                file.path: self._found.get(file.path) or groups_in(verdicts.path / file.path) for file in files
            }
        every = frozenset().union(*self._found.values())
        return {name for found, name in every if found == cluster and is_business_group(name)}


def groups_in(path: LakePath) -> frozenset[tuple[str, str]]:
    """Return cluster and group of the rows of a file of verdicts."""
    columns = ["cluster", "group_name"]
    rows = pq.read_table(parquet_source(path), columns=columns, partitioning=None).group_by(columns).aggregate([])
    return frozenset(zip(*(rows[name].to_pylist() for name in columns), strict=True))
