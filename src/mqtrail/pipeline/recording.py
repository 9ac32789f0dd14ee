"""Writes samples into a lake, as changes, each commit one batch over the sampled relations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from mqtrail import trail
from mqtrail.lake import Change, Lake, arrow_rows, lake_errors, own_folder, write_parquet

from .changes import Changes, Row, Rows
from .sampling import ClusterSample
from .spool import SampleSpool, Waiting

APP: Final = "samples"
"""App of its batches, which are numbered from 1."""
SAMPLES_MAX: Final = 100  # most samples of the spool that one batch records
NEW_MAX: Final = 8  # samples of a cluster that are kept in memory until a cycle of it takes them


class Recorder:
    """Records the samples of one cluster in a lake. One call at a time, by the lake's writer."""

    def __init__(self, lake: Lake, cluster: str, retention_ms: int) -> None:
        self._lake = lake
        self._cluster = cluster
        self._retention_ms = retention_ms
        self._changes: Changes | None = None
        self._number = 0  # batch that _changes is as of

    @property
    def sampled_ms(self) -> int | None:
        """The latest sample in the lake."""
        return self._known().sampled_ms

    @property
    def groups(self) -> list[str]:
        """The groups in the lake's samples."""
        return self._known().groups

    @property
    def sql_topics(self) -> frozenset[str]:
        """The topics that groups of the lake's samples subscribe to by SQL92."""
        return self._known().sql_topics

    @property
    def left_topics(self) -> frozenset[str]:
        """The topics of queues that were sampled and are no more. See Changes.left_topics."""
        return self._known().left_topics

    def record(self, samples: Iterable[ClusterSample]) -> None:
        """Record samples, oldest first. Skip those that the lake already has."""
        changes = self._known()
        rows: Rows = {}
        self._changes = None  # read again unless all of it is committed
        for found in samples:
            if changes.sampled_ms is None or found.sampled_ms > changes.sampled_ms:
                for name, some in changes.add(found).items():
                    rows.setdefault(name, []).extend(some)
        self._commit(rows)
        self._changes = changes

    def add_unread(self, rows: list[Row]) -> None:
        """Add rows of trail.UNREAD_RANGES that no sample shows."""
        self._known()  # or the commit would hide batches of another process from it
        self._commit({trail.UNREAD_RANGES.name: rows} if rows else {})

    def trace_read(self, at_ms: int, left: Mapping[str, bool]) -> None:
        """Record which brokers have trace that was not read by now, if that changed. See Changes.trace_read."""
        changes = self._known()
        self._changes = None
        self._commit(changes.trace_read(at_ms, left))
        self._changes = changes

    def read_up_to(self, sampled_ms: int, topics: Iterable[str]) -> None:
        """Record that the messages of these topics were read up to a sample, and those of no other topic."""
        changes = self._known()
        self._changes = None
        self._commit(changes.read_up_to(sampled_ms, topics))
        self._changes = changes

    def _known(self) -> Changes:
        number = self._last_number()  # another process may have recorded samples since
        if self._changes is None or self._number != number:
            self._number = number
            self._changes = Changes.load(self._lake, self._cluster, self._retention_ms)
        return self._changes

    def _commit(self, rows: Rows) -> None:
        if not rows:
            return
        number = self._last_number() + 1
        made: dict[str, Change] = {}
        with lake_errors(self._lake.path):
            for name, some in rows.items():
                table = self._lake[name]
                file = own_folder(table.path / f"batch={APP}-{number}") / "part-0.parquet"
                file.parent.mkdir(parents=True, exist_ok=True)
                write_parquet(arrow_rows(table.table.relation, some), file)
                made[name] = Change(added=[file])
        self._lake.batches.commit(APP, number, made, {"cluster": self._cluster})
        self._number = number

    def _last_number(self) -> int:
        last = self._lake.batches.last(APP)
        return last.number if last else 0


class Recorders:
    """Records the samples of any cluster in one lake."""

    def __init__(self, lake: Lake, retention_ms: int) -> None:
        self._lake = lake
        self._retention_ms = retention_ms
        self._recorders: dict[str, Recorder] = {}
        self._new: dict[str, list[ClusterSample]] = {}  # recorded, and not taken yet

    def of(self, cluster: str) -> Recorder:
        """The recorder of a cluster."""
        if cluster not in self._recorders:
            self._recorders[cluster] = Recorder(self._lake, cluster, self._retention_ms)
        return self._recorders[cluster]

    def record_spool(self, spool: SampleSpool) -> None:
        """Record the samples that are in the spool now. A crash repeats nothing."""
        found = spool.waiting()  # no later ones, or samplers that are faster than the commits would keep this call busy
        while waiting := list(islice(found, SAMPLES_MAX)):
            clusters: dict[str, list[Waiting]] = {}
            for one in waiting:
                clusters.setdefault(one.cluster, []).append(one)
            for cluster, some in clusters.items():
                self.of(cluster).record([one.found for one in some])
                self._new[cluster] = [*self._new.get(cluster, ()), *(one.found for one in some)][-NEW_MAX:]
            spool.delete(waiting)

    def take(self, cluster: str, until_ms: int) -> ClusterSample | None:
        """The latest sample that was recorded since the last call, and taken until a time; later ones stay."""
        new = self._new.get(cluster, [])
        taken = [found for found in new if found.sampled_ms <= until_ms]
        self._new[cluster] = new[len(taken) :]
        return taken[-1] if taken else None
