"""How far a lake knows each of its sources: samples of brokers, their traces, the messages of topics.

The table `samples` has a row for each change (trail/samples.py): the last one of a source says whether it is read.
"""

from __future__ import annotations

from typing import Final

from mqtrail.lake import fetch

from .lakeview import LakeView
from .summaries import FreshnessAnswer, FreshSource, KnownSource

_STATE: Final = "max_by(struct_pack(status := status, seen_ms := seen_ms, reason := reason), sampled_ms) AS state"


def freshness(view: LakeView, now_ms: int) -> FreshnessAnswer:
    """Return the sources of the lake, of each until when it is known."""
    rows = fetch(view.connection, _sql(view.sampled())) if view.is_sampled else []
    sources = tuple(
        KnownSource(row["cluster"], FreshSource(row["source"]), row["broker_name"], row["known_ms"], row["why"])
        for row in rows
    )
    return FreshnessAnswer(view.scope(now_ms), sources)


def _sql(samples: str) -> str:
    """SQL: cluster, source, broker_name, known_ms (NULL: never), why.

    The trace of a broker without a TRACE row is read. Messages and traces are read together, up to the sample that the
    latest row (READ, topic '') names.
    """
    brokers = "SELECT cluster, broker_name, {0} FROM sampled WHERE what = '{1}' GROUP BY cluster, broker_name"
    return f"""
WITH sampled AS ({samples}),
taken AS (SELECT cluster, max(sampled_ms) AS last_ms FROM sampled WHERE what = 'SAMPLE' GROUP BY cluster),
passed AS (SELECT cluster, max(seen_ms) AS read_ms FROM sampled WHERE what = 'READ' AND topic = '' GROUP BY cluster),
topics AS (SELECT cluster, topic, max_by(status, sampled_ms) AS status FROM sampled
  WHERE what = 'READ' AND topic <> '' GROUP BY cluster, topic),
offsets AS ({brokers.format(_STATE, "OFFSETS")}),
traces AS ({brokers.format(_STATE, "TRACE")})
SELECT cluster, '{FreshSource.SAMPLES}' AS source, '' AS broker_name, last_ms AS known_ms, '' AS why FROM taken
UNION ALL
SELECT cluster, '{FreshSource.OFFSETS}', broker_name, CASE state.status WHEN 'OK' THEN last_ms ELSE state.seen_ms END,
  CASE state.status WHEN 'OK' THEN '' ELSE state.reason END
FROM offsets JOIN taken USING (cluster)
UNION ALL
SELECT o.cluster, '{FreshSource.TRACE}', o.broker_name,
  CASE WHEN coalesce(t.state.status, 'OK') = 'OK' THEN read_ms ELSE t.state.seen_ms END,
  CASE coalesce(t.state.status, 'OK') WHEN 'OK' THEN '' WHEN 'GONE'
    THEN 'the broker or its trace topic was gone before all of it was read' ELSE 'not read to its end' END
FROM offsets o LEFT JOIN traces t USING (cluster, broker_name) LEFT JOIN passed USING (cluster)
UNION ALL
SELECT cluster, '{FreshSource.MESSAGES}', '', read_ms, ''
FROM passed WHERE cluster IN (SELECT cluster FROM topics WHERE status = 'OK')
ORDER BY cluster, known_ms NULLS FIRST, source, broker_name"""
