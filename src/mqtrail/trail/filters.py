"""Subscriptions: which messages a group's filter excludes, by samples of its subscriptions.

    subscription_states → filter_runs (each expression of a group, and when it was in force)
    messages × filter_runs → sql_answers (SQL92 expressions, evaluated by the engine)
    messages, topic_sends → offers (one row per message and topic that it was sent to)
    offers × filter_runs × sql_answers → filters (one row per message, topic and group, if it can exclude)

The expression that counts is the one in force when the message became visible. If no sample has one for that time, the
nearest samples on both sides count, and must agree.
"""

from __future__ import annotations

from mqtrail.wire import EXPRESSION_SQL92, EXPRESSION_TAG, SubscriptionParseFailed, compile_sql

from .packing import WIDTH, padded
from .settings import Settings
from .stages import Stage

EXCLUDED, UNKNOWN_INPUTS, INVALID, ACCEPTED = range(4)
"""What an expression says of a message. UNKNOWN_INPUTS: its properties were not kept. INVALID: no expression."""
_BITS = 4  # more than the largest of these
_EXPRESSION_LENGTH_MAX = 200  # characters of an expression in a reason
_NEVER_MS = 1 << 60


def sql92_answer(expression: str, properties: str) -> int:
    """Return what an SQL92 expression says of a message, as a broker evaluates it. properties: as stored."""
    try:
        matches = compile_sql(expression).matches(properties.encode())
    except SubscriptionParseFailed:
        return INVALID
    return ACCEPTED if matches else EXCLUDED


def filter_runs_stage(settings: Settings) -> Stage:
    """Each expression of a group for a topic: the first and the last sample that has it, and when it may be in force.

    until_ms: last_ms, if the latest sample lacks it. [from_ms, to_ms]: the time between these samples; without until_ms
    it has no end. A group can change to an expression and back. So where another expression has samples on both sides
    of a run's end, the run may also be in force for a sample interval beyond it.
    """
    pause = settings.sample_pause_ms_max
    keys = "cluster, group_name, topic, expression_type, expression"
    own = ", ".join(f"r.{name.strip()} AS {name.strip()}" for name in keys.split(","))
    return Stage(
        "filter_runs",
        f"""
WITH seen AS (SELECT {keys}, min(sampled_ms) AS first_ms, max(sampled_ms) AS last_ms
  FROM subscription_states GROUP BY {keys}),
runs AS (SELECT s.*, CASE WHEN q.now_ms > s.last_ms THEN s.last_ms END AS until_ms,
    count(*) OVER (PARTITION BY s.cluster, s.group_name, s.topic) AS run_count
  FROM seen s LEFT JOIN question_times q ON s.cluster = q.cluster AND q.what = 'SAMPLE')
SELECT {own}, r.first_ms AS first_ms, r.last_ms AS last_ms, r.until_ms AS until_ms,
    min(CASE WHEN b.first_ms < r.first_ms THEN r.first_ms - {pause} ELSE r.first_ms END) AS from_ms,
    max(CASE WHEN r.until_ms IS NULL THEN {_NEVER_MS} WHEN b.last_ms > r.last_ms THEN r.last_ms + {pause}
      ELSE r.last_ms END) AS to_ms,
    r.run_count AS run_count,
    'SUBSCRIPTION(' || r.expression_type || '=' || replace(substr(r.expression, 1, {_EXPRESSION_LENGTH_MAX}), ';', ',')
      || CASE WHEN length(r.expression) > {_EXPRESSION_LENGTH_MAX} THEN '…)' ELSE ')' END AS shown
FROM runs r LEFT JOIN runs b ON r.cluster = b.cluster AND r.group_name = b.group_name AND r.topic = b.topic
  AND (r.expression_type <> b.expression_type OR r.expression <> b.expression)
  AND b.first_ms <= r.last_ms AND b.last_ms >= r.first_ms
GROUP BY r.cluster, r.group_name, r.topic, r.expression_type, r.expression, r.first_ms, r.last_ms, r.until_ms,
  r.run_count""",
        ("subscription_states", "question_times"),
    )


def filter_stages() -> list[Stage]:
    """filtered_groups, sql_answers, offers, filters. Of topics without filters the others have no rows."""
    return [
        Stage("filtered_groups", _FILTERED_GROUPS, ("filter_runs",)),
        Stage("sql_answers", _SQL_ANSWERS, ("messages", "filter_runs"), answer=sql92_answer),
        Stage("offers", _OFFERS, ("messages", "topic_sends")),
        Stage("filters", _FILTERS, ("offers", "filtered_groups", "filter_runs", "sql_answers")),
    ]


_FILTERED_GROUPS = f"""
SELECT DISTINCT cluster, topic, group_name FROM filter_runs
WHERE expression_type <> '{EXPRESSION_TAG}' OR expression NOT IN ('*', '')"""

# Copies of one message with different properties: which of them was filtered is not known.
_SQL_ANSWERS = f"""
SELECT m.cluster AS cluster, m.msg_id AS msg_id, e.expression AS expression, m.properties AS properties
FROM messages m JOIN (SELECT DISTINCT cluster, topic, expression FROM filter_runs
    WHERE expression_type = '{EXPRESSION_SQL92}') e ON m.cluster = e.cluster AND m.topic = e.topic
WHERE m.properties <> '' AND m.properties = m.properties_least"""

# A message that is stored several times is offered with each copy. Its copies in one topic can have different tags.
_OFFERS = """
SELECT cluster, msg_id, topic, tags, tags_known, first_offer_ms, last_offer_ms FROM messages m
ANTI JOIN (SELECT * FROM topic_sends WHERE offered_count > 0) s ON m.cluster = s.cluster AND m.msg_id = s.msg_id
UNION ALL
SELECT cluster, msg_id, topic, tags_most, CASE WHEN tags_least = tags_most THEN 1 ELSE 0 END, first.visible_ms, last_ms
FROM topic_sends WHERE offered_count > 0 AND in_topic"""

_VISIBLE = "m.first_offer_ms"
_SAYS = f"""CASE WHEN r.expression_type = '{EXPRESSION_SQL92}' THEN coalesce(a.answer, {UNKNOWN_INPUTS})
      WHEN r.expression_type <> '{EXPRESSION_TAG}' THEN {INVALID} WHEN r.expression IN ('*', '') THEN {ACCEPTED}
      WHEN m.tags <> '' AND instr('|' || replace(replace(r.expression, ' ', ''), '||', '|') || '|',
        '|' || replace(m.tags, ' ', '') || '|') > 0 THEN {ACCEPTED} ELSE {EXCLUDED} END"""
_SIDE = f"""CASE WHEN {_VISIBLE} >= r.from_ms AND m.last_offer_ms <= r.to_ms THEN 'AT'
      WHEN r.first_ms > {_VISIBLE} THEN 'AFTER' ELSE 'BEFORE' END"""

_FROM = WIDTH + 2  # of the text after a padded number and a separator

_DECIDED = f"""(SELECT m.cluster AS cluster, m.msg_id AS msg_id, m.topic AS topic, r.group_name AS group_name,
        r.first_ms AS first_ms, r.last_ms AS last_ms, r.shown AS shown, r.run_count AS run_count,
        {_SIDE} AS side, {_SAYS} AS says
      FROM offers m JOIN filtered_groups f ON m.cluster = f.cluster AND m.topic = f.topic
      JOIN filter_runs r ON f.cluster = r.cluster AND f.topic = r.topic AND f.group_name = r.group_name
      LEFT JOIN sql_answers a ON m.cluster = a.cluster AND m.msg_id = a.msg_id AND r.expression = a.expression
        AND r.expression_type = '{EXPRESSION_SQL92}'
      WHERE m.tags_known = 1 AND {_VISIBLE} IS NOT NULL) AS decided"""

# A group that always had one expression needs no comparison.
_OF_ONE_RUN = f"""
SELECT cluster, msg_id, topic, group_name, CASE WHEN says = {EXCLUDED} AND side = 'AT' THEN 1 ELSE 0 END AS excluded,
    CASE WHEN says = {INVALID} THEN 'FILTER_INVALID' WHEN says = {UNKNOWN_INPUTS} THEN 'PROPERTIES_NOT_KEPT'
      WHEN side <> 'AT' THEN 'FILTER_SAMPLED_AT' ELSE '' END AS filter_why,
    CASE WHEN side = 'BEFORE' THEN last_ms END AS filter_from_ms,
    CASE WHEN side = 'AFTER' THEN first_ms END AS filter_to_ms, shown AS judged_by
FROM {_DECIDED} WHERE run_count = 1 AND says <> {ACCEPTED}"""

# least, most: what the expressions of that time say; of several with one time both ends.
_FILTERS = f"""
{_OF_ONE_RUN}
UNION ALL
SELECT cluster, msg_id, topic, group_name,
    CASE WHEN most = {EXCLUDED} AND (is_at OR both_sides) THEN 1 ELSE 0 END AS excluded,
    CASE WHEN least = {ACCEPTED} OR most = {EXCLUDED} AND (is_at OR both_sides) THEN ''
      WHEN most = {EXCLUDED} THEN 'FILTER_SAMPLED_AT'
      WHEN least = {EXCLUDED} AND most = {ACCEPTED} THEN CASE WHEN is_at THEN 'FILTERS_DIFFER' ELSE 'FILTER_CHANGED' END
      WHEN {INVALID} IN (least, most) THEN 'FILTER_INVALID' ELSE 'PROPERTIES_NOT_KEPT' END AS filter_why,
    before_ms AS filter_from_ms, after_ms AS filter_to_ms,
    first_shown || CASE WHEN last_shown <> first_shown THEN ';' || last_shown ELSE '' END AS judged_by
FROM (SELECT cluster, msg_id, topic, group_name, at_least IS NOT NULL AS is_at,
    before_ms IS NOT NULL AND after_ms IS NOT NULL AS both_sides, before_ms, after_ms,
    coalesce(at_least, least({_BITS - 1} - before_least % {_BITS}, after_least % {_BITS})) AS least,
    coalesce(at_most, greatest(before_most % {_BITS}, {_BITS - 1} - after_most % {_BITS})) AS most,
    coalesce(at_first, substr(before_shown, {_FROM}), substr(after_shown, {_FROM})) AS first_shown,
    coalesce(at_last, substr(after_shown, {_FROM}), substr(before_shown, {_FROM})) AS last_shown
  FROM (SELECT cluster, msg_id, topic, group_name,
      min(says) FILTER (side = 'AT') AS at_least, max(says) FILTER (side = 'AT') AS at_most,
      min(shown) FILTER (side = 'AT') AS at_first, max(shown) FILTER (side = 'AT') AS at_last,
      max(last_ms) FILTER (side = 'BEFORE') AS before_ms, min(first_ms) FILTER (side = 'AFTER') AS after_ms,
      max(last_ms * {_BITS} + {_BITS - 1} - says) FILTER (side = 'BEFORE') AS before_least,
      max(last_ms * {_BITS} + says) FILTER (side = 'BEFORE') AS before_most,
      min(first_ms * {_BITS} + says) FILTER (side = 'AFTER') AS after_least,
      min(first_ms * {_BITS} + {_BITS - 1} - says) FILTER (side = 'AFTER') AS after_most,
      max({padded("last_ms")} || '|' || shown) FILTER (side = 'BEFORE') AS before_shown,
      min({padded("first_ms")} || '|' || shown) FILTER (side = 'AFTER') AS after_shown
    FROM {_DECIDED} WHERE run_count > 1
    GROUP BY cluster, msg_id, topic, group_name) AS sides) AS filtered"""
