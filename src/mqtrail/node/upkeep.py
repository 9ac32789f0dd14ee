"""The background jobs of a store: flushes, queue files, index, checkpoints, expiry.

    index        in slices of some milliseconds while there are records to index
    flush        every 500 ms, in the flush thread (SYNC_FLUSH also flushes on request)
    queue files  written every second, in slices: the first entry of a queue creates its file
    checkpoint   every 10 s: queue files and index are made durable in the flush thread, so that recovery starts there.
                 Queue files alone also after 256 MiB of appends, which limits what recovery has to read
    expiry       every 10 s

Everything except syncing runs in the event loop's thread, in slices that are short compared with a request.
Source: FlushConsumeQueueService, ReputMessageService, CleanCommitLogService, apache/rocketmq store/.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from mqtrail.net import Log
from mqtrail.store import MessageStore, StoreError, StoreFull

from .clock import wall_clock_ms
from .flusher import Flusher
from .watchdog import Watchdog

QUEUES_WRITE_S = 1.0  # flushIntervalConsumeQueue
CHECKPOINT_S = 10.0
CHECKPOINT_SIZE = 256 * 1024 * 1024
SLICE_COUNT_MIN, SLICE_COUNT_MAX = 100, 10_000  # records indexed in one slice

log = Log()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepTimes:
    """Intervals of the jobs, and the longest time of a slice, in ms."""

    flush_ms: int
    expire_ms: int
    index_ms: int
    slice_ms: int


class Upkeep:
    """Runs the jobs of one store. Call `appended` after appends: it is cheap while a slice is scheduled."""

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        times: UpkeepTimes,
        *,
        expires: bool = True,
        clock: Callable[[], int] = wall_clock_ms,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._watchdog = watchdog or Watchdog()
        self._flusher = flusher
        self._index_pause_s = times.index_ms / 1000
        self._slice_s = times.slice_ms / 1000
        self._slice_count = SLICE_COUNT_MIN
        self._loop = asyncio.get_running_loop()
        self._slice: asyncio.TimerHandle | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failing: set[str] = set()
        self._checkpointed = store.end_offset
        self._writing: Generator[None, None, Callable[[], None] | None] | None = (
            None  # the write of queue files under way
        )
        self._expiring: Generator[None, None, int] | None = None  # the removal under way
        self._checkpoint_waits: bool | None = None  # a checkpoint is due; True: with the index
        self._index_damages = 0  # that were reported
        self._away: dict[str, str] = {}  # databases of queues that were reported
        self._away_replicas: dict[str, str] = {}
        jobs: list[tuple[str, float, Callable[[], None]]] = [
            ("flush", times.flush_ms / 1000, self._flush),
            ("write_queues", QUEUES_WRITE_S, self._write_queues),
            ("checkpoint", CHECKPOINT_S, self._checkpoint),
        ]
        if expires:
            jobs.append(("expire", times.expire_ms / 1000, self._expire))
        self._jobs = jobs

    def start(self) -> None:
        """Start all jobs, and index what a previous run left."""
        for name, interval_s, job in self._jobs:
            self._plan(name, interval_s, job)
        self.appended()

    def stop(self) -> None:
        """Stop all jobs. Closing the store writes and flushes the rest."""
        for timer in self._timers.values():
            timer.cancel()
        if self._slice is not None:
            self._slice.cancel()
        self._jobs = []

    def appended(self) -> None:
        """Schedule a slice of indexing."""
        if self._slice is None and self._jobs:
            self._slice = self._loop.call_later(self._index_pause_s, self._index)

    def _index(self) -> None:
        self._slice = None
        began_s = time.monotonic()
        done = 0

        def index_slice() -> None:
            nonlocal done
            done = self._store.dispatch_index(self._slice_count)

        worked = self._attempt("index", index_slice)
        took_s = time.monotonic() - began_s
        # A record in memory costs a tenth of one read back from the log, so the count adapts to the time used.
        if took_s > self._slice_s:
            self._slice_count = max(SLICE_COUNT_MIN, self._slice_count // 2)
        elif done >= self._slice_count and took_s < self._slice_s / 2:
            self._slice_count = min(SLICE_COUNT_MAX, self._slice_count * 2)
        if worked and self._store.behind_size > 0:
            self.appended()

    def _plan(self, name: str, interval_s: float, job: Callable[[], None]) -> None:
        def run() -> None:
            self._attempt(name, job)
            self._plan(name, interval_s, job)

        self._timers[name] = self._loop.call_later(interval_s, run)

    def _attempt(self, name: str, job: Callable[[], object]) -> bool:
        """Run a job. Log its first failure, and once when it works again. A failed job runs again at its next time."""
        began_s = self._watchdog.begin()
        try:
            job()
        except (OSError, StoreFull, StoreError) as error:
            if name not in self._failing:
                self._failing.add(name)
                log.error(
                    "store.job_failed",
                    job=name,
                    error=str(error),
                    remedy="none needed: the job is retried and no message is lost",
                )
            return False
        except Exception:
            log.exception("store.job_failed", job=name)
            return False
        finally:
            self._watchdog.end(began_s, name)
        if name in self._failing:
            self._failing.discard(name)
            log.info("store.job_works_again", job=name)
        return True

    def _flush(self) -> None:
        store = self._store
        if store.end_offset > store.flushed_offset or store.fault is not None or store.away is not None:
            self._flusher.ask()  # if the store has a fault, this reports it and the node stops
        if self._store.end_offset - self._checkpointed > CHECKPOINT_SIZE:
            self._checkpoint(index=False)

    def _checkpoint(self, *, index: bool = True) -> None:
        end_offset = self._store.end_offset
        is_due = end_offset > self._checkpointed or (index and not self._store.is_index_saved)
        if is_due and self._store.fault is None:
            self._checkpointed = end_offset
            self._checkpoint_waits = index or bool(self._checkpoint_waits)
            self._write_queues()

    def _write_queues(self) -> None:
        """Write queue files for one slice of time, for a checkpoint the index too. Once all are written, sync it."""
        self._report_damage()
        self._report_away()
        writing = self._writing or self._pass()
        self._writing = None  # if this slice fails, the next write starts over
        began_s = time.monotonic()
        while True:
            try:
                next(writing)
            except StopIteration as end:
                if end.value is not None:
                    self._flusher.run(end.value)
                if self._checkpoint_waits is None:
                    return
                writing = self._pass()  # it was asked for while the pass was under way
            if time.monotonic() - began_s > self._slice_s:
                break
        self._writing = writing
        self._timers["write_more"] = self._loop.call_later(self._index_pause_s, self._write_more)

    def _pass(self) -> Generator[None, None, Callable[[], None] | None]:
        """Begin to write buffered data; return the function that completes a checkpoint; None: none is due."""
        index, self._checkpoint_waits = self._checkpoint_waits, None
        if index is None:
            yield from self._store.write_queues_in_slices()
            return None
        try:
            return (yield from self._store.begin_checkpoint_in_slices(index=index))
        except Exception:
            self._checkpoint_waits = index or bool(self._checkpoint_waits)  # the next pass tries again
            raise

    def _report_damage(self) -> None:
        """Report damage of the index that was found since the last call, and have it built again."""
        count, found = self._store.index_damage
        if count > self._index_damages:
            self._index_damages = count
            log.error(
                "store.index_damaged",
                found=found,
                remedy="check the disk and the kernel's log; queries are rejected until the index is built again",
            )
            self.appended()

    def _report_away(self) -> None:
        """Report databases of queues that have begun or ceased to be away since the last call."""
        away = dict(self._store.away_nodes)
        for name in away.keys() - self._away.keys():
            log.error(
                "store.node_away",
                node=name,
                error=away[name],
                remedy="start its server; the other nodes are not affected",
            )
        for name in self._away.keys() - away.keys():
            log.info("store.node_back", node=name)
        self._away = away
        replicas = dict(self._store.away_replicas)
        for name in replicas.keys() - self._away_replicas.keys():
            log.warning(
                "store.replica_away",
                node=name,
                error=replicas[name],
                remedy="check its server and its replication; meanwhile everything is read from the node itself",
            )
        for name in self._away_replicas.keys() - replicas.keys():
            log.info("store.replica_back", node=name)
        self._away_replicas = replicas

    def _write_more(self) -> None:
        if self._writing is not None:
            self._attempt("write_queues", self._write_queues)

    def _expire(self) -> None:
        """Begin to remove expired data, unless that is under way."""
        if self._expiring is None:
            self._expiring = self._store.expire_in_slices(self._clock())
            self._expire_more()

    def _expire_more(self) -> None:
        expiring, self._expiring = self._expiring, None  # if this slice fails, the next time starts over
        if expiring is None:
            return
        began_s = time.monotonic()
        while True:
            try:
                next(expiring)
            except StopIteration:
                return
            if time.monotonic() - began_s > self._slice_s:
                break
        self._expiring = expiring
        self._timers["expire_more"] = self._loop.call_later(
            self._index_pause_s, lambda: self._attempt("expire", self._expire_more)
        )
