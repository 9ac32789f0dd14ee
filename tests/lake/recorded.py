"""Samples of stories as the lake stores them: changes, in batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from mqtrail import trail
from mqtrail.pipeline.changes import Changes
from mqtrail.pipeline.sampling import ClusterSample
from tests.trail.histories import Row

RETENTION_MS = 90 * 86_400_000
Evidence = Mapping[str, Sequence[Row]]
Batch = dict[str, list[Row]]
_FULL = {each.name: each for each in (trail.GROUP_OFFSETS, trail.CLIENTS, trail.SUBSCRIPTIONS, trail.QUEUE_RANGES)}


def full_samples(rows: Evidence, chance: random.Random) -> Iterator[tuple[ClusterSample, set[str]]]:
    """Return each sample of one cluster, oldest first, and the topics whose messages were read up to it.

    Rows with equal sampled_ms are one sample. Some brokers are silent, or not asked about topics without rows.
    """
    brokers = {row["broker_name"] for name in ("group_offsets", "queue_ranges") for row in rows.get(name, ())}
    for sampled_ms in sorted({row["sampled_ms"] for name in _FULL for row in rows.get(name, ())}):
        found = ClusterSample(sampled_ms)
        silent = {broker for broker in brokers if chance.random() < 0.1}
        found.answers |= {("OFFSETS", broker, ""): "silent" if broker in silent else "" for broker in brokers}
        found.answers |= {("GROUPS", broker, ""): "silent" if broker in silent else "" for broker in brokers}
        found.answers["GROUPS", "", ""] = "silent" if silent else ""
        found.gap = "stopped" if chance.random() < 0.1 else ""
        read = set()
        for name, relation in _FULL.items():
            for row in rows.get(name, ()):
                broker = row.get("broker_name", "")
                if row["sampled_ms"] != sampled_ms:
                    continue
                if name == trail.QUEUE_RANGES.name:
                    found.answers["RANGES", broker, row["topic"]] = "silent" if broker in silent else ""
                    if row.get("read_offset") is not None:
                        read.add(row["topic"])
                if broker not in silent:
                    empty = {column.name: "" if column.type == "string" else None for column in relation}
                    found.add(relation, {**empty, **row, "change": ""})
        yield found, read


def as_changes(rows: Evidence, chance: random.Random) -> list[tuple[int, Batch]]:
    """Return the batches of samples of all clusters, as the pipeline writes them, with the time of each, in order."""
    clusters = sorted({row["cluster"] for name in _FULL for row in rows.get(name, ())})
    batches: list[tuple[int, Batch]] = []
    for cluster in clusters:
        own = {name: [row for row in rows.get(name, ()) if row["cluster"] == cluster] for name in _FULL}
        changes = Changes(cluster, RETENTION_MS)
        for found, read in full_samples(own, chance):
            batches.append((found.sampled_ms, changes.add(found)))
            if read or chance.random() < 0.3:
                batches.append((found.sampled_ms, changes.read_up_to(found.sampled_ms, read)))
    return sorted(batches, key=lambda batch: batch[0])


def keyframes(batches: Sequence[Batch], horizon_ms: int) -> dict[str, int]:
    """Return the last keyframe of each cluster at or before an instant."""
    found: dict[str, int] = {}
    for batch in batches:
        for row in batch.get(trail.SAMPLES.name, ()):
            if row["what"] == "SAMPLE" and row["sampled_ms"] <= horizon_ms:
                found[row["cluster"]] = max(found.get(row["cluster"], 0), row["keyframe_ms"])
    return found


def needed(batches: Sequence[Batch], horizon_ms: int) -> Batch:
    """Return the rows of the batches that a reader from an instant on reads."""
    first = keyframes(batches, horizon_ms)
    rows: Batch = {name: [] for name in trail.SAMPLED}
    for batch in batches:
        for name, some in batch.items():
            if name in rows and max(row["sampled_ms"] for row in some) >= first.get(some[0]["cluster"], 0):
                rows[name] += some
    return rows
