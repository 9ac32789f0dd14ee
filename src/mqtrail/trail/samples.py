"""Samples as of an instant: of each sampled relation the rows that decide, from the changes that samples recorded.

A sample asks a cluster for everything, and its writer records only what differs from the sample before. So a row of a
sampled relation has one of three forms, by its column `change`:

    ''      the row was in this sample; it says nothing about other samples
    SEEN    the row was in this sample and in each later one that its question was answered in, up to the next row of
            its key (in `clients` and `subscriptions` all other columns together are the key)
    GONE    its question was answered without it; it was last in the sample of seen_ms, with these values

`samples` has a row for each sample (what = SAMPLE), and one for each question whose answer began or ceased to come:
OFFSETS of a broker, RANGES of a topic on a broker. A SEEN row was last seen in the last sample that its question was
answered in. A sample that was not taken has no row, and nothing is claimed for its time.

A keyframe is a sample that repeats every row and every question, with the first sight of each row. The last keyframe
at or before the horizon, and what follows it, is enough to read; older rows change nothing. `mqtrail.pipeline.changes`
writes this form.
"""

from __future__ import annotations

from .columns import Relation
from .evidence import CLIENTS, GROUP_OFFSETS, QUEUE_RANGES, SAMPLES, SUBSCRIPTIONS
from .stages import Stage

SAMPLED = tuple(each.name for each in (GROUP_OFFSETS, CLIENTS, SUBSCRIPTIONS, QUEUE_RANGES, SAMPLES))
"""Names of the relations that samples are recorded in."""

_OWN = ("sampled_ms", "change", "first_ms", "seen_ms")  # columns that tell of a row, not of what was sampled


def sample_stages(as_of_ms: int, horizon: int) -> list[Stage]:
    """The stages that a judgement reads in place of the sampled relations."""
    return [
        question_times(as_of_ms, horizon),
        offset_states(as_of_ms, horizon),
        Stage("client_states", _contents(CLIENTS, as_of_ms), ("clients", "question_times")),
        Stage("subscription_states", _contents(SUBSCRIPTIONS, as_of_ms), ("subscriptions", "question_times")),
    ]


def question_times(as_of_ms: int, horizon: int) -> Stage:
    """The last sample that each question was answered in, as of the instant (now_ms) and as of the horizon (then_ms).

    SAMPLE is the question that every sample answers. NULL: no sample until then has an answer.
    """
    state = "max_by(struct_pack(status := status, seen_ms := seen_ms), sampled_ms)"
    now, then = (
        f"CASE a.{each}_state.status WHEN 'OK' THEN t.{each}_ms ELSE a.{each}_state.seen_ms END AS {each}_ms"
        for each in ("now", "then")
    )
    return Stage(
        "question_times",
        f"""
WITH taken AS (SELECT cluster, max(sampled_ms) AS now_ms, max(sampled_ms) FILTER (sampled_ms <= {horizon}) AS then_ms
  FROM samples WHERE what = 'SAMPLE' AND sampled_ms <= {as_of_ms} GROUP BY cluster),
asked AS (SELECT cluster, what, broker_name, topic, {state} AS now_state,
    {state} FILTER (sampled_ms <= {horizon}) AS then_state
  FROM samples WHERE what IN ('OFFSETS', 'RANGES') AND sampled_ms <= {as_of_ms}
  GROUP BY cluster, what, broker_name, topic)
SELECT cluster, 'SAMPLE' AS what, '' AS broker_name, '' AS topic, now_ms, then_ms FROM taken
UNION ALL
SELECT a.cluster, a.what, a.broker_name, a.topic, {now}, {then} FROM asked a JOIN taken t ON a.cluster = t.cluster""",
        ("samples",),
    )


def offset_states(as_of_ms: int, horizon: int) -> Stage:
    """Of each committed offset: its first row, the last one as of the horizon, and the last one as of the instant."""
    key = "cluster, group_name, topic, broker_name, queue_id"
    state = "max_by(struct_pack(change := change, consumer_offset := consumer_offset, seen_ms := seen_ms), sampled_ms)"
    last = " UNION ALL ".join(
        f"""SELECT c.cluster, {_last_seen(each)}, group_name, c.topic, c.broker_name, queue_id,
    {each}_state.consumer_offset
  FROM changed c JOIN question_times q ON c.cluster = q.cluster AND c.broker_name = q.broker_name
  WHERE q.what = 'OFFSETS'"""
        for each in ("now", "then")
    )
    return Stage(
        "offset_states",
        f"""
WITH changed AS (SELECT {key}, {state} AS now_state, {state} FILTER (sampled_ms <= {horizon}) AS then_state,
    min(first_ms) AS first_ms, min_by(first_offset, first_ms) AS first_offset
  FROM group_offsets WHERE change <> '' AND sampled_ms <= {as_of_ms} GROUP BY {key})
SELECT * FROM (
  SELECT cluster, sampled_ms, group_name, topic, broker_name, queue_id, consumer_offset
  FROM group_offsets WHERE change = '' AND sampled_ms <= {as_of_ms}
  UNION ALL SELECT cluster, first_ms, group_name, topic, broker_name, queue_id, first_offset FROM changed
  UNION ALL {last}) AS states
WHERE sampled_ms IS NOT NULL""",
        ("group_offsets", "question_times"),
    )


def range_states(as_of_ms: int) -> Stage:
    """The range of each queue in the last sample that has it."""
    key = "cluster, broker_name, topic, queue_id"
    values = "change := change, min_offset := min_offset, max_offset := max_offset, seen_ms := seen_ms"
    return Stage(
        "range_states",
        f"""
WITH changed AS (SELECT {key}, max_by(struct_pack({values}), sampled_ms) AS now_state
  FROM queue_ranges WHERE change <> '' AND sampled_ms <= {as_of_ms} GROUP BY {key})
SELECT cluster, sampled_ms, broker_name, topic, queue_id, min_offset, max_offset
FROM queue_ranges WHERE change = '' AND sampled_ms <= {as_of_ms}
UNION ALL
SELECT c.cluster, {_last_seen("now")}, c.broker_name, c.topic, queue_id, now_state.min_offset, now_state.max_offset
FROM changed c JOIN question_times q ON c.cluster = q.cluster AND c.broker_name = q.broker_name AND c.topic = q.topic
WHERE q.what = 'RANGES'""",
        ("queue_ranges", "question_times"),
    )


def _contents(relation: Relation, as_of_ms: int) -> str:
    """SQL: each row of a relation whose rows are keys, in its first sample and in the last one that has it."""
    names = [name for name in relation.names if name not in _OWN]
    key = ", ".join(names)
    state = "max_by(struct_pack(change := change, seen_ms := seen_ms), sampled_ms)"
    return f"""
WITH changed AS (SELECT {key}, {state} AS now_state, min(first_ms) AS first_ms
  FROM {relation.name} WHERE change <> '' AND sampled_ms <= {as_of_ms} GROUP BY {key})
SELECT {key}, sampled_ms FROM {relation.name} WHERE change = '' AND sampled_ms <= {as_of_ms}
UNION ALL
SELECT DISTINCT * FROM (
  SELECT {key}, first_ms AS sampled_ms FROM changed
  UNION ALL
  SELECT {", ".join(f"c.{name}" for name in names)}, {_last_seen("now")}
  FROM changed c JOIN question_times q ON c.cluster = q.cluster WHERE q.what = 'SAMPLE') AS states
WHERE sampled_ms IS NOT NULL"""


def _last_seen(instant: str) -> str:
    """SQL: the last sample that has a row, as of an instant; NULL: none has it until then."""
    state = f"{instant}_state"
    return f"CASE {state}.change WHEN 'SEEN' THEN q.{instant}_ms WHEN 'GONE' THEN {state}.seen_ms END"
