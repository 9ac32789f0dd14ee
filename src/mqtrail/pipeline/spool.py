"""The spool of samples: files of full samples, which the lake's writer records and then deletes.

    <lake>/_samples/<sampled_ms>-<checksum of the cluster's name>.json.gz
                              one sample; written under another name and renamed, so that it is complete
    <lake>/_samples/_lock     held by the one process that samples for the lake, until it ends

So a sampler never waits for the writer of the lake, and continues while no writer runs.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from mqtrail.lake import LakeBusy, LakePath, WriteLock, lake_errors, write_whole

from .sampling import ClusterSample

FOLDER: Final = "_samples"
COUNT_MAX: Final = 20_000  # a day at one sample in 5 s
SIZE_MAX: Final = 1024 * 1024 * 1024
_SUFFIX: Final = ".json.gz"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sample in the spool, of one cluster."""

    path: LakePath
    cluster: str
    found: ClusterSample


class SampleSpoolFull(Exception):
    """The spool is full: no pipeline has recorded its samples for a long time."""


class SampleSpool:
    """The spool of one lake: one process writes, one reads. Samplers of one process share one object."""

    def __init__(self, lake: LakePath) -> None:
        self._folder = lake / FOLDER
        self._lock = WriteLock(self._folder)

    @contextmanager
    def sampling(self) -> Iterator[bool]:
        """Hold the lock of the lake's samplers while the block runs; False: another process or object holds it."""
        with lake_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = self._lock.held()
            lock.__enter__()
        except LakeBusy:
            yield False
            return
        try:
            yield True
        finally:
            lock.__exit__(None, None, None)

    def put(self, cluster: str, found: ClusterSample) -> None:
        """Write a sample. SampleSpoolFull: the waiting samples exceed COUNT_MAX or SIZE_MAX."""
        waiting = self._paths()
        if len(waiting) >= COUNT_MAX or sum(map(_size, waiting)) >= SIZE_MAX:
            raise SampleSpoolFull(
                f"{len(waiting)} samples wait in {self._folder}: start `mqtrail pipeline run` on this lake"
            )
        values = {
            "cluster": cluster,
            "sampled_ms": found.sampled_ms,
            "rows": found.rows,
            "problems": found.problems,
            "answers": [[*each, why] for each, why in found.answers.items()],
            "gap": found.gap,
            "topics": found.topics,
        }
        path = self._folder / f"{found.sampled_ms:015d}-{zlib.crc32(cluster.encode()):08x}{_SUFFIX}"
        with lake_errors(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, gzip.compress(json.dumps(values, separators=(",", ":")).encode(), 1))

    def last_ms(self, cluster: str) -> int:
        """The time of the latest sample of a cluster in the spool; 0: there is none."""
        for path in reversed(self._paths()):
            try:
                values = json.loads(gzip.decompress(path.read_bytes()))
                if values["cluster"] == cluster:
                    return int(values["sampled_ms"])
            except (ValueError, TypeError, KeyError, EOFError, OSError):
                continue  # damaged, or the writer of the lake has recorded and deleted it
        return 0

    def waiting(self) -> Iterator[Waiting]:
        """The samples, oldest first. A damaged file is deleted, and its cluster's next sample records a gap."""
        damage: dict[str, str] = {}  # by what the names of a cluster's files end in
        for path in self._paths():
            with lake_errors(path):
                text = path.read_bytes()
            try:
                values = json.loads(gzip.decompress(text))
                cluster = values.pop("cluster")
                answers = {(what, broker, topic): why for what, broker, topic, why in values.pop("answers")}
                found = ClusterSample(**values, answers=answers)
            except (ValueError, TypeError, KeyError, AttributeError, EOFError, OSError) as error:
                damage[_cluster_part(path)] = f"a sample of the spool was damaged ({error})"
                path.unlink(missing_ok=True)
                continue
            found.gap = found.gap or damage.pop(_cluster_part(path), "")
            yield Waiting(path, cluster, found)

    def delete(self, samples: list[Waiting]) -> None:
        """Delete samples that are recorded."""
        for one in samples:
            one.path.unlink(missing_ok=True)

    def _paths(self) -> list[LakePath]:
        with lake_errors(self._folder):
            if not self._folder.is_dir():
                return []
            return sorted(path for path in self._folder.iterdir() if path.name.endswith(_SUFFIX))


def _size(path: LakePath) -> int:
    """Return the size of a file; 0: the writer of the lake has recorded and deleted it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _cluster_part(path: LakePath) -> str:
    return path.name.partition("-")[2]
