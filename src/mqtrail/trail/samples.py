"""Rebuilds the samples that a judgement needs from recorded changes.

A sample queries everything in a cluster, but only differences from the previous sample are recorded. The column
`change` of a sampled relation says what a row means:

    ''      the row was in this sample; nothing is known about other samples
    SEEN    the row was in this sample and in each later sample with an answer to its query, up to the next row of its
            key (the key of `clients` and `subscriptions`: all other columns)
    GONE    this sample has an answer without the row; it was last in the sample of seen_ms, with these values

`samples` has a row for each sample (what = SAMPLE), and one for each query that began or ceased to be answered: OFFSETS
of a broker, RANGES of a topic on a broker, GROUPS of a broker (its offsets, group table and clients, so that every
group that it knows is in the sample), GROUPS of broker '' (of all brokers). A SEEN row was last seen in the last sample
with an answer to its query. If no sample was taken, there is no row, and the state at that time is unknown. A GAP row
says between which samples the GROUPS of a broker were not known: no sample was taken, or the broker did not answer. A
TRACE row says that the trace topics of a broker were not read to their ends (FAILED, GONE) when a judgement began, or
were again (OK). A broker without such a row was always read.

A keyframe is a sample that repeats every row, every query, every gap and every TRACE row, with the first sample of
each row. Of clients that left it also has the GONE row of the sample that showed it. It is enough to read from the last
keyframe at or before the horizon. `mqtrail.pipeline.changes` writes this format.
"""

from __future__ import annotations

from .columns import Relation
from .evidence import CLIENTS, GROUP_OFFSETS, QUEUE_RANGES, SAMPLES, SUBSCRIPTIONS
from .stages import Stage

SAMPLED = tuple(each.name for each in (GROUP_OFFSETS, CLIENTS, SUBSCRIPTIONS, QUEUE_RANGES, SAMPLES))
"""Names of the relations in which samples are recorded."""
OF_SAMPLES = ("sampled_ms", "change", "first_ms", "seen_ms")
"""Columns about the row itself, not about the sampled state."""


def sample_stages(as_of_ms: int, horizon: int) -> list[Stage]:
    """Return the stages that a judgement reads instead of the sampled relations."""
    return [
        question_times(as_of_ms, horizon),
        offset_states(as_of_ms, horizon),
        Stage("whole_samples", _WHOLE_SAMPLES, ("question_times",)),
        Stage("sample_gaps", _sample_gaps(as_of_ms), ("samples",)),
        client_states(as_of_ms),
        subscription_states(as_of_ms),
    ]


def member_stages(sampled_ms: int) -> list[Stage]:
    """client_states and subscription_states as of one sample."""
    return [question_times(sampled_ms, sampled_ms), client_states(sampled_ms), subscription_states(sampled_ms)]


def client_states(as_of_ms: int) -> Stage:
    """Each client in the first and in the last sample that has it."""
    return Stage("client_states", _contents(CLIENTS, as_of_ms), ("clients", "question_times"))


def subscription_states(as_of_ms: int) -> Stage:
    """Each subscription in the first and in the last sample that has it."""
    return Stage("subscription_states", _contents(SUBSCRIPTIONS, as_of_ms), ("subscriptions", "question_times"))


def question_times(as_of_ms: int, horizon: int) -> Stage:
    """The last sample with an answer to each query, as of the judgement (now_ms) and as of the horizon (then_ms).

    Every sample answers the query SAMPLE. NULL: no sample until then has an answer.
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
  FROM samples WHERE what IN ('OFFSETS', 'RANGES', 'GROUPS') AND sampled_ms <= {as_of_ms}
  GROUP BY cluster, what, broker_name, topic)
SELECT cluster, 'SAMPLE' AS what, '' AS broker_name, '' AS topic, now_ms, then_ms FROM taken
UNION ALL
SELECT a.cluster, a.what, a.broker_name, a.topic, {now}, {then} FROM asked a JOIN taken t ON a.cluster = t.cluster""",
        ("samples",),
    )


# The last sample in which a broker (all brokers: broker_name '') reported every group that it knew.
_WHOLE_SAMPLES = """
SELECT cluster, broker_name, now_ms AS whole_ms FROM question_times WHERE what = 'GROUPS' AND now_ms IS NOT NULL"""


def _sample_gaps(as_of_ms: int) -> str:
    """Times before whole_ms in which groups of a broker were not known: between two samples, and before the first."""
    return f"""
SELECT DISTINCT cluster, broker_name, coalesce(seen_ms, 0) AS from_ms, sampled_ms AS to_ms
FROM samples WHERE what = 'GAP' AND sampled_ms <= {as_of_ms}"""


def offset_states(as_of_ms: int, horizon: int) -> Stage:
    """Of each committed offset the first row, the last one as of the horizon, and the last one as of the judgement."""
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
    """SQL: each row of a relation whose rows are keys, in the first and in the last sample that have it."""
    names = [name for name in relation.names if name not in OF_SAMPLES]
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
    """SQL: the last sample with the row, as of "now" or "then"; NULL: no sample until then has it."""
    state = f"{instant}_state"
    return f"CASE {state}.change WHEN 'SEEN' THEN q.{instant}_ms WHEN 'GONE' THEN {state}.seen_ms END"
