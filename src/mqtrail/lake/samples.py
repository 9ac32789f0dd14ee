"""Selects the files of the sampled relations that have the state of the clusters at an instant: a limited number.

`trail.samples` describes their rows. Each file holds rows of one cluster, so that its statistics name the cluster.
"""

from __future__ import annotations

from mqtrail.trail import SAMPLED, SAMPLES

from .edge import lake_errors
from .lake import Lake
from .parquet import of_cluster
from .places import parquet_source
from .tables import DataFile, LakeTable


def sample_files(lake: Lake, from_ms: int, cluster: str | None = None) -> dict[str, list[DataFile]]:
    """Return the files of each sampled relation that are enough for every instant from from_ms on.

    These are the files with rows of the last keyframe at or before from_ms, or later ones, of each cluster, or of one.
    """
    keyframes = keyframes_at(lake, from_ms, cluster)
    return {
        name: [
            file
            for file in _of_cluster(lake[name].files(), cluster)
            if _last_ms(file) >= keyframes.get(cluster or _cluster(file), 0)
        ]
        for name in SAMPLED
    }


def keyframes_at(lake: Lake, at_ms: int, cluster: str | None = None) -> dict[str, int]:
    """Return the last keyframe at or before an instant by cluster; a cluster that has none is absent."""
    table = lake[SAMPLES.name]
    files: dict[str, list[DataFile]] = {}
    for file in sorted(table.readable(_of_cluster(table.files(), cluster)), key=_last_ms, reverse=True):
        files.setdefault(cluster or _cluster(file), []).append(file)
    found = {name: _keyframe(table, own, name, at_ms) for name, own in files.items()}
    return {name: keyframe_ms for name, keyframe_ms in found.items() if keyframe_ms is not None}


def _keyframe(table: LakeTable, files: list[DataFile], cluster: str, at_ms: int) -> int | None:
    """The keyframe that the last sample of a cluster at or before at_ms names. files: the latest first."""
    import pyarrow.parquet as pq

    for file in files:
        if _first_ms(file) <= at_ms:
            with lake_errors(table.path):
                rows = pq.read_table(
                    parquet_source(table.path / file.path),
                    columns=["sampled_ms", "keyframe_ms"],
                    filters=[("what", "=", "SAMPLE"), ("cluster", "=", cluster), ("sampled_ms", "<=", at_ms)],
                    partitioning=None,
                ).to_pylist()
            if rows:
                return int(max(rows, key=lambda row: row["sampled_ms"])["keyframe_ms"])
    return None


def _of_cluster(files: list[DataFile], cluster: str | None) -> list[DataFile]:
    return files if cluster is None else of_cluster(files, cluster)


def _cluster(file: DataFile) -> str:
    return str(file.minimum.get("cluster", ""))


def _first_ms(file: DataFile) -> int:
    return int(file.minimum.get("sampled_ms", 0))


def _last_ms(file: DataFile) -> int:
    return int(file.maximum.get("sampled_ms", 0))
