"""Labelled synthetic lakes for incidents: traffic of many groups, and faults that are put into it.

Tables of a lake's gold and samples, made in DuckDB. Every random choice follows the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from mqtrail import trail
from mqtrail.lake import Lake, copy
from mqtrail.trail import Relation

BEGIN_MS = 1_790_000_000_000
LENGTH_MS = 7_200_000
END_MS = BEGIN_MS + LENGTH_MS
AS_OF_MS = END_MS + 60_000
CLUSTER = "shop"
TOPICS, QUEUES, HOSTS, PRODUCERS = 5, 8, 4, 6
VERSION = 453
READ = (
    trail.TRAJECTORIES,
    trail.VERDICTS,
    trail.ATTEMPTS,
    trail.CLIENTS,
    trail.SAMPLES,
    trail.GROUP_OFFSETS,
    trail.SUBSCRIPTIONS,
    trail.QUEUE_RANGES,
    trail.GAPS,
    trail.CLIENT_RECORDS,
    trail.CLOCK_BOUNDS,
    trail.BROKER_EVENTS,
)


def host_of(group: str, number: int) -> str:
    """The address of a consumer host of a group."""
    return f"10.{1 + int(group[1])}.{'ab'.index(group[2])}.{number}"


def client_of(group: str, number: int, process: int = 100) -> str:
    """The id of a consumer client."""
    return f"{host_of(group, number)}@{process}#7"


class IncidentLake:
    """A cluster of ten groups over two hours, healthy except for a few single failures."""

    def __init__(self, seed: int, messages: int = 20_000) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.duck = duckdb.connect(":memory:", config={"threads": 2})
        for relation in READ:
            names = relation.typed({c.name: "NULL" for c in relation})
            self.duck.execute(f"CREATE TABLE {relation.name} AS SELECT {names} WHERE false")
        self._messages(messages)
        self._deliveries()
        self._samples()
        self._noise()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL; return its rows."""
        return self.duck.execute(sql).fetchall()

    def span(self, minutes: int) -> tuple[int, int]:
        """A random time of some minutes, not at the edges."""
        begin = BEGIN_MS + self.chance.randrange(LENGTH_MS // 4, LENGTH_MS - minutes * 60_000 - 600_000)
        return begin, begin + minutes * 60_000

    def group(self) -> str:
        """A random group."""
        return f"G{self.chance.randrange(TOPICS)}{self.chance.choice('ab')}"

    def insert(self, relation: Relation, **values: Any) -> None:
        """Add one row; texts that are not given are ''."""
        row = {c.name: "" if c.type == "string" else None for c in relation if c.type != "events"} | values
        row.setdefault("cluster", CLUSTER)
        row["cluster"] = CLUSTER
        marks = ", ".join("?" for _ in row)
        self.duck.execute(f"INSERT INTO {relation.name} ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    def likely(self, share: float, salt: str = "fault") -> str:
        """SQL: true for a share of messages."""
        return f"hash(msg_id || '{salt}{self.seed}') % 1000 < {int(share * 1000)}"

    def _messages(self, count: int) -> None:
        r = {name: f"(hash(n || '{name}{self.seed}') % 10000)" for name in ("t", "q", "p", "tag", "c", "size", "ms")}
        at = f"{BEGIN_MS} + n * {LENGTH_MS} // {count}"
        values = {
            "cluster": f"'{CLUSTER}'",
            "publish_hour": f"({at}) // 3600000",
            "msg_id": f"format('{{:032X}}', n::hugeint + {self.seed + 1} * 1000000000::hugeint)",
            "as_of_ms": str(AS_OF_MS),
            "topic": f"'T' || {r['t']} % {TOPICS}",
            "keys": f"'order-' || n || ' cust-' || {r['c']} % 100",
            "tags": f"'tag-' || {r['tag']} % 3",
            "producer_group": f"'P' || {r['p']} % 2",
            "producer_host": f"'10.9.0.' || {r['p']} % {PRODUCERS} || ':4000'",
            "broker_name": f"CASE WHEN {r['q']} % {QUEUES} < 4 THEN 'broker-a' ELSE 'broker-b' END",
            "queue_id": f"{r['q']} % {QUEUES}",
            "queue_offset": "n",
            "body_size": f"power(2, 6 + {r['size']} % 10)::bigint",
            "send_start_ms": at,
            "stored_ms": f"{at} + 1 + {r['ms']} % 3",
            "visible_ms": f"{at} + 1 + {r['ms']} % 3",
            "acked_ms": f"{at} + 4 + {r['ms']} % 5",
            "send_ms": f"4 + {r['ms']} % 5",
            "send_codes": "'SEND_OK'",
            "message_codes": "''",
            "group_codes": "'CONSUMED'",
            "knowledge": "'COMPLETE'",
        }
        self._fill(trail.TRAJECTORIES, values, f"(SELECT range AS n FROM range({count}))")

    def _deliveries(self) -> None:
        groups = ", ".join(f"('T{topic}', 'G{topic}{side}', '10.{1 + topic}.{number}.')" for topic in range(TOPICS)
                           for number, side in enumerate("ab"))  # fmt: skip
        ms = f"(hash(msg_id || group_name || '{self.seed}') % 10000)"
        values = {
            "cluster": "t.cluster",
            "publish_hour": "t.publish_hour",
            "msg_id": "t.msg_id",
            "as_of_ms": "t.as_of_ms",
            "topic": "t.topic",
            "group_name": "g.group_name",
            "state": "'CONSUMED'",
            "codes": "'CONSUMED'",
            "message_model": "'CLUSTERING'",
            "delivery_count": "1",
            "success_count": "1",
            "failure_count": "0",
            "client": f"g.net || (t.queue_id % {HOSTS}) || '@100#7'",
            "to_stored_ms": "t.stored_ms - t.send_start_ms",
            "to_delivered_ms": f"5 + {ms} % 50",
            "first_delivered_ms": f"t.visible_ms + 5 + {ms} % 50",
            "handler_ms": f"10 + {ms} // 50 % 60",
        }
        self._fill(
            trail.VERDICTS,
            values,
            f"trajectories t JOIN (VALUES {groups}) AS g(topic, group_name, net) ON t.topic = g.topic",
        )

    def _fill(self, relation: Relation, values: dict[str, str], source: str) -> None:
        empty = {"string": "''"}
        picks = relation.typed({c.name: values.get(c.name, empty.get(c.type, "NULL")) for c in relation})
        self.duck.execute(f"INSERT INTO {relation.name} SELECT {picks} FROM {source}")

    def _samples(self) -> None:
        for at in (BEGIN_MS - 60_000, END_MS):
            self.insert(trail.SAMPLES, sampled_ms=at, what="SAMPLE", status="OK", keyframe_ms=at)
        for topic in range(TOPICS):
            for side in "ab":
                for number in range(HOSTS):
                    self.client(f"G{topic}{side}", number, BEGIN_MS - 60_000)

    def client(self, group: str, number: int, at_ms: int, *, process: int = 100, version: int = VERSION) -> None:
        """A client appears in a sample."""
        self.insert(
            trail.CLIENTS, sampled_ms=at_ms, group_name=group, status="OK", change="SEEN", first_ms=at_ms,
            client_id=client_of(group, number, process), client_host=f"{host_of(group, number)}:5{number}00",
            language="JAVA", version=version,
        )  # fmt: skip

    def gone(self, group: str, number: int, at_ms: int, process: int = 100) -> None:
        """A client disappears in a sample."""
        self.insert(
            trail.CLIENTS, sampled_ms=at_ms, seen_ms=at_ms - 10_000, group_name=group, status="OK", change="GONE",
            client_id=client_of(group, number, process), client_host=f"{host_of(group, number)}:5{number}00",
            language="JAVA", version=VERSION,
        )  # fmt: skip

    def _noise(self) -> None:
        """Single failures everywhere, as in every cluster."""
        self.verdict("codes = 'CONSUMED,CONSUMED_SLOW', handler_ms = 1500", self.likely(0.002, "slow"))
        error = "'IOError: reset by peer ' || hash(msg_id) % 100"
        fails = f"codes = 'CONSUMED,CONSUMED_AFTER_RETRY', failure_count = 1, detail = {error}"
        self.verdict(fails, self.likely(0.002, "fail"))
        self.duck.execute(
            "UPDATE trajectories SET send_codes = 'SEND_OK,SEND_SLOW', send_ms = 1400, "
            f"acked_ms = send_start_ms + 1400 WHERE {self.likely(0.001, 'send')}"
        )

    def verdict(self, changes: str, condition: str) -> None:
        """Change verdicts."""
        self.duck.execute(f"UPDATE verdicts SET {changes} WHERE {condition}")

    def of_group(self, group: str, span: Sequence[int], share: float, more: str = "true") -> str:
        """SQL: verdicts of a group in a time."""
        at = "(SELECT t.visible_ms FROM trajectories t WHERE t.msg_id = verdicts.msg_id)"
        own = self.likely(share, f"{group}{span[0]}")
        return f"group_name = '{group}' AND {at} >= {span[0]} AND {at} < {span[1]} AND {own} AND {more}"


def commit_all(made: IncidentLake, path: Path) -> None:
    """Write a synthetic lake to a folder, an hour a file, as compaction does."""
    lake = Lake.create(path)
    fields = ", ".join(f"{field.name} {field.type}" for field in trail.EVENT_FIELDS)
    for relation in READ:
        table, hours = lake[relation.name], [None]
        if table.table.partition_by:
            hours = [hour for (hour,) in made.ask(f"SELECT DISTINCT publish_hour FROM {relation.name} ORDER BY 1")]
        picks = relation.typed({c.name: f"cast([] AS struct({fields})[])" for c in relation if c.type == "events"})
        files = []
        for hour in hours:
            where = "" if hour is None else f" WHERE publish_hour = {hour}"
            files.append(table.path / f"compact-{hour}" / "part.parquet")
            files[-1].parent.mkdir(parents=True)
            copy(made.duck, f"SELECT {picks} FROM {relation.name}{where}", files[-1], table.table)
        table.commit(files, app="test", batch=0)
