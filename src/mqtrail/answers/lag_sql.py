"""SQL of the lag of groups as of a lake's last sample, with an earlier sample for its trend.

    lag (one row per queue, group and sample) → samples: the last one and an earlier one → queues → groups
    message_meta → delayed copies, if the pipeline reads their topics

A queue of the earlier sample that the last one lacks is unknown: its broker did not answer, or its offset is gone. So
are those of a broker that has not answered for longer, as of its last answer.
`mqtrail lag --lake` has the same rules in `mqtrail.client` (backlog.py); a test holds both to the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqtrail.wire import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC

OVER_MS: Final = 600_000
"""Time between the two samples of a trend, at least, if the lake has an earlier one."""
NOT_ASKED: Final = "not asked"
"""What the reason begins with for which a broker that has left has no answer."""
_PLACE = ("cluster", "group_name", "topic", "broker_name", "queue_id")
_DELAY_TOPICS = f"('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}')"
TREND: Final = """CASE WHEN l.lag_count IS NULL OR l.consumed_per_second IS NULL OR l.produced_per_second IS NULL
    THEN 'UNKNOWN'
  WHEN l.lag_count = 0 THEN 'EMPTY' WHEN l.consumed_per_second > l.produced_per_second THEN 'DRAINS'
  WHEN l.consumed_per_second < l.produced_per_second THEN 'GROWS' ELSE 'STEADY' END"""
"""SQL: the trend of a row `l` of queues or groups."""
DRAIN_SECONDS: Final = """CASE WHEN l.consumed_per_second IS NULL OR l.produced_per_second IS NULL THEN NULL
  WHEN l.lag_count = 0 THEN 0 WHEN l.consumed_per_second > l.produced_per_second
    THEN l.lag_count / (l.consumed_per_second - l.produced_per_second) END"""
"""SQL: the seconds until nothing waits, of the same row."""


@dataclass(frozen=True, slots=True)
class LagSql:
    """The queries over tables of a schema ('': temporary views). over_ms: between the two samples."""

    schema: str = ""
    over_ms: int = OVER_MS

    def _table(self, name: str) -> str:
        return f"{self.schema}.{name}" if self.schema else name

    @property
    def samples(self) -> str:
        """cluster, last_ms, earlier_ms: the latest sample that is older by over_ms, or the first one of all."""
        lag = self._table("lag")
        return f"""
SELECT cluster, last_ms, coalesce(max(sampled_ms) FILTER (sampled_ms <= last_ms - {self.over_ms}),
    min(sampled_ms) FILTER (sampled_ms < last_ms)) AS earlier_ms
FROM (SELECT DISTINCT cluster, sampled_ms, max(sampled_ms) OVER (PARTITION BY cluster) AS last_ms FROM {lag}) AS taken
GROUP BY cluster, last_ms"""

    @property
    def silent(self) -> str:
        """cluster, broker_name, known_ms: brokers that did not answer at the last sample, and their last lag."""
        return f"""
SELECT cluster, broker_name, max(sampled_ms) AS known_ms
FROM (SELECT cluster, broker_name, max_by(struct_pack(status := status, seen_ms := seen_ms, reason := reason),
    sampled_ms) AS state
  FROM {self._table("samples")} WHERE what = 'OFFSETS' GROUP BY cluster, broker_name) AS asked
JOIN (SELECT DISTINCT cluster, sampled_ms FROM {self._table("lag")}) AS taken USING (cluster)
WHERE state.status = 'FAILED' AND NOT starts_with(state.reason, '{NOT_ASKED}') AND sampled_ms <= state.seen_ms
GROUP BY cluster, broker_name"""

    @property
    def queues(self) -> str:
        """One row per group and queue: both samples, and the messages per second between them; NULL: unknown."""
        values = ("sampled_ms", "consumer_offset", "min_offset", "max_offset", "lag_count", "lag_ms")
        both = ", ".join(
            f"any_value({value}) FILTER (sampled_ms = {each}_ms) AS {each}_{value}"
            for each in ("last", "earlier")
            for value in values
        )
        passed = """CASE WHEN last_sampled_ms IS NULL OR earlier_sampled_ms IS NULL
      OR last_max_offset < earlier_max_offset OR last_consumer_offset < earlier_consumer_offset
      OR (last_consumer_offset IS NULL) <> (earlier_consumer_offset IS NULL) THEN NULL
    ELSE {} * 1000.0 / (last_ms - earlier_ms) END"""
        return f"""
SELECT {", ".join(_PLACE)}, starts_with(topic, '{RETRY_PREFIX}') AS is_retry, last_ms, earlier_sampled_ms AS earlier_ms,
  last_sampled_ms IS NOT NULL AS is_sampled, last_consumer_offset AS consumer_offset, last_min_offset AS min_offset,
  last_max_offset AS max_offset, last_lag_count AS lag_count, last_lag_ms AS lag_ms, earlier_consumer_offset,
  earlier_min_offset, earlier_max_offset,
  {passed.format("coalesce(last_consumer_offset - earlier_consumer_offset, 0)")} AS consumed_per_second,
  {passed.format("(last_max_offset - earlier_max_offset)")} AS produced_per_second
FROM (SELECT {", ".join(_PLACE)}, last_ms, earlier_ms, {both}
  FROM {self._table("lag")} JOIN ({self.samples}) AS samples USING (cluster)
  LEFT JOIN ({self.silent}) AS silent USING (cluster, broker_name)
  WHERE sampled_ms IN (last_ms, earlier_ms, known_ms) GROUP BY ALL) AS places"""

    @property
    def groups(self) -> str:
        """One row per group: sums over the queues of its topics, and of its retry topics."""

        def sums(prefix: str, where: str) -> str:
            return f"""count(*) FILTER ({where}) AS {prefix}queues,
  count(*) FILTER ({where} AND (lag_count IS NULL OR lag_ms IS NULL)) AS {prefix}unknown_queues,
  sum(lag_count) FILTER ({where}) AS {prefix}known_count,
  max(lag_ms) FILTER ({where} AND lag_count > 0) AS {prefix}waiting_ms,"""

        def values(prefix: str) -> str:
            return f"""CASE WHEN {prefix}queues = 0 THEN 0 ELSE {prefix}known_count::bigint END AS {prefix}lag_count,
  CASE WHEN {prefix}unknown_queues = 0 THEN coalesce({prefix}waiting_ms, 0) ELSE {prefix}waiting_ms END
    AS {prefix}lag_ms, {prefix}unknown_queues,"""

        def rate(name: str) -> str:
            return f"""CASE WHEN count(*) FILTER (NOT is_retry AND (lag_count IS NULL OR {name} IS NULL)) = 0
    THEN coalesce(sum({name}) FILTER (NOT is_retry), 0) END AS {name}"""

        return f"""
SELECT cluster, group_name, last_ms, {values("")} {values("retry_")} consumed_per_second, produced_per_second
FROM (SELECT cluster, group_name, last_ms, {sums("", "NOT is_retry")} {sums("retry_", "is_retry")}
    {rate("consumed_per_second")}, {rate("produced_per_second")}
  FROM ({self.queues}) AS queues GROUP BY cluster, group_name, last_ms) AS sums"""

    @property
    def delayed(self) -> str:
        """cluster, group_name: copies that were not due at the last sample, and when the first of them is."""
        return f"""
SELECT cluster, group_name, count(*) AS delayed_count, min(due_ms) AS next_due_ms
FROM {self._table("message_meta")} JOIN ({self.samples}) AS samples USING (cluster)
WHERE topic IN {_DELAY_TOPICS} AND stored_kind = 'RETRY_WAIT' AND due_ms > last_ms AND store_ms <= last_ms
GROUP BY cluster, group_name"""

    @property
    def delayed_read(self) -> str:
        """cluster, is_read: whether the topics of these copies were read up to the sample. No row: they were not."""
        return f"""
SELECT topics.cluster, bool_and(status = 'OK') AND max(read_ms) >= max(last_ms) AS is_read
FROM (SELECT cluster, topic, max_by(status, sampled_ms) AS status FROM {self._table("samples")}
  WHERE what = 'READ' AND topic IN {_DELAY_TOPICS} GROUP BY ALL) AS topics
JOIN (SELECT cluster, max(seen_ms) AS read_ms FROM {self._table("samples")}
  WHERE what = 'READ' AND topic = '' GROUP BY ALL) AS reads USING (cluster)
JOIN ({self.samples}) AS samples USING (cluster)
GROUP BY topics.cluster"""
