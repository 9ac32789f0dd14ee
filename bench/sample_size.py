"""Bytes of samples a day in a lake, and the cost of reading the context then: python -m bench.sample_size [ACTIVE].

Generated: 1 250 topics of 8 queues on 4 brokers, 1 000 groups that read two topics each with four clients each, sampled
each 5 s. ACTIVE: the share of topics whose offsets all move in every sample (default 0.1). A part of a day is recorded,
six samples a batch, joined by compaction, and multiplied; the keyframes in that part count.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from mqtrail import trail
from mqtrail.lake import Lake, arrow_rows, compact, connect, define, relation_of, run_stages, sample_files
from mqtrail.pipeline.recording import Recorder
from mqtrail.pipeline.sampling import ClusterSample
from mqtrail.trail import Stage
from mqtrail.trail.context import context_stages

TOPICS, QUEUES, GROUPS, CLIENTS = 1250, 8, 1000, 4
BROKERS = ("broker-a", "broker-b", "broker-c", "broker-d")
INTERVAL_MS, DAY_MS, START_MS = 5_000, 86_400_000, 1_790_000_000_000
SAMPLES, SAMPLES_A_BATCH = 96, 6
Queue = tuple[str, str, int]


class Generated:
    """A cluster in which a share of the topics is busy."""

    def __init__(self, active: float) -> None:
        self._chance = random.Random(1)
        topics = [f"topic-{number:04d}" for number in range(TOPICS)]
        self._queues = {topic: [(topic, BROKERS[i // 2], i) for i in range(QUEUES)] for topic in topics}
        self._reads = {f"group-{number:04d}": self._chance.sample(topics, 2) for number in range(GROUPS)}
        self._ends: dict[Queue, int] = dict.fromkeys((q for some in self._queues.values() for q in some), 10**6)
        self._offsets = {(g, q): 10**6 for g, some in self._reads.items() for t in some for q in self._queues[t]}
        self._busy = {topic for topic in topics if self._chance.random() < active}
        self._answers = {("OFFSETS", broker, ""): "" for broker in BROKERS}
        self._answers |= {("RANGES", broker, topic): "" for broker in BROKERS for topic in topics}

    def sample(self, sampled_ms: int) -> ClusterSample:
        """Let the busy topics move, and sample."""
        for queue in self._ends:
            if queue[0] in self._busy:
                self._ends[queue] += self._chance.randrange(1, 100)
        for key in self._offsets:
            if key[1][0] in self._busy:
                self._offsets[key] = self._ends[key[1]] - self._chance.randrange(20)
        found = ClusterSample(sampled_ms, answers=self._answers)
        stamp = {"cluster": "C", "sampled_ms": sampled_ms}
        for (group, (topic, broker, queue_id)), offset in self._offsets.items():
            place = {"group_name": group, "topic": topic, "broker_name": broker, "queue_id": queue_id}
            found.add(trail.GROUP_OFFSETS, {**stamp, **place, "consumer_offset": offset})
        for (topic, broker, queue_id), end in self._ends.items():
            place = {"topic": topic, "broker_name": broker, "queue_id": queue_id}
            found.add(trail.QUEUE_RANGES, {**stamp, **place, "min_offset": 0, "max_offset": end})
        for group, topics in self._reads.items():
            for number in range(CLIENTS):
                client = {"client_id": f"10.0.0.{number}@{group}", "client_host": f"10.0.0.{number}:50000"}
                about = {"group_name": group, "status": "OK", "language": "JAVA", "version": 493}
                found.add(trail.CLIENTS, {**stamp, **about, **client})
            for topic in topics:
                wanted = {"topic": topic, "expression_type": "TAG", "expression": "*"}
                how = {"consume_type": "CONSUME_PASSIVELY", "message_model": "CLUSTERING"}
                found.add(trail.SUBSCRIPTIONS, {**stamp, "group_name": group, **wanted, **how})
        return found


def size_of(lake: Lake) -> int:
    """Bytes of the sampled relations."""
    lake.refresh()
    return sum(file.size for name in trail.SAMPLED for file in lake[name].files())


def read_context(lake: Lake, as_of_ms: int) -> int:
    """Make the relations of the context as of an instant; return the number of rows that were read."""
    settings = trail.Settings()
    found = sample_files(lake, as_of_ms - settings.trace_delay_ms)
    duck = connect(threads=1)
    for relation in trail.EVIDENCE:
        if relation.name in found:
            define(duck, Stage(relation.name, relation_of(lake[relation.name], found[relation.name]), ()))
        else:
            duck.register(relation.name, arrow_rows(relation, []))
    stages = context_stages(as_of_ms, settings)
    run_stages(duck, stages, also_read=[stage.name for stage in stages] * 2)
    return sum(file.row_count for files in found.values() for file in files)


def main(active: float) -> None:
    """Print the figures as one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.create(Path(folder) / "lake")
        cluster, recorder = Generated(active), Recorder(lake, "C", 90 * DAY_MS)
        times = [START_MS + number * INTERVAL_MS for number in range(SAMPLES)]
        spent = 0.0
        with lake.writing():
            for first in range(0, SAMPLES, SAMPLES_A_BATCH):
                found = [cluster.sample(at_ms) for at_ms in times[first : first + SAMPLES_A_BATCH]]
                begun = time.process_time()
                recorder.record(found)
                spent += time.process_time() - begun
            written = size_of(lake)
            compact(lake, 0, now_ms=times[-1])
        begun = time.process_time()
        rows = read_context(lake, times[-1])
        context_ms = (time.process_time() - begun) * 1000
        a_day = DAY_MS / INTERVAL_MS / SAMPLES / 1e6
        figures = {
            "active": active,
            "mb_a_day_written": round(written * a_day),
            "mb_a_day_compacted": round(size_of(lake) * a_day),
            "record_cpu_ms_a_sample": round(spent / SAMPLES * 1000),
            "context_rows": rows,
            "context_cpu_ms": round(context_ms),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
