"""What happened to a message: evidence, trajectory, verdicts. One definition, no engine in it.

The definition is SQL text in the subset that Spark SQL and DuckDB share; `pipeline` and `lake` run the same text.
Relations (columns with type, meaning and fold) are data, and so is the table of verdict codes.
"""

from mqtrail.trail.attempts import attempts_sql, merge_sql
from mqtrail.trail.batches import ACROSS_IDS, MEETING_POINTS
from mqtrail.trail.codes import CODES, GROUP_CODES, NOT_YET_JUDGED, STATES, TRANSITIONS, Code
from mqtrail.trail.columns import Column, Relation
from mqtrail.trail.companions import lag_sql
from mqtrail.trail.context import CONTEXT_RECORDS
from mqtrail.trail.evidence import (
    CLIENTS,
    EVIDENCE,
    GAPS,
    GROUP_OFFSETS,
    MESSAGE_META,
    QUEUE_RANGES,
    SUBSCRIPTIONS,
    TRACE_COLUMN_OF,
    TRACE_EVENTS,
    TRACE_REJECTS,
)
from mqtrail.trail.hours import UNKNOWN_HOUR, publish_hour_select, publish_hours
from mqtrail.trail.judge import INPUTS, judge
from mqtrail.trail.judgement import OPEN_STATES
from mqtrail.trail.kinds import (
    business_group,
    business_topic,
    is_business_group,
    is_business_topic,
    retry_group,
    stored_kind,
)
from mqtrail.trail.results import (
    ATTEMPTS,
    EVENT_FIELDS,
    KEY_INDEX,
    LAG,
    LATENCY_MINUTE,
    RESULTS,
    TRAJECTORIES,
    VERDICTS,
)
from mqtrail.trail.settings import Settings, changed_settings
from mqtrail.trail.shares import Round, columns_read, rounds
from mqtrail.trail.stages import DUCKDB, SPARK, Engine, Nesting, Stage, relations_read, run
from mqtrail.trail.trace_rows import RECORD_TEXT_LENGTH_MAX, TracePlace, trace_rows

__all__ = [
    "ACROSS_IDS",
    "ATTEMPTS",
    "CLIENTS",
    "CODES",
    "CONTEXT_RECORDS",
    "DUCKDB",
    "EVENT_FIELDS",
    "EVIDENCE",
    "GAPS",
    "GROUP_CODES",
    "GROUP_OFFSETS",
    "INPUTS",
    "KEY_INDEX",
    "LAG",
    "LATENCY_MINUTE",
    "MEETING_POINTS",
    "MESSAGE_META",
    "NOT_YET_JUDGED",
    "OPEN_STATES",
    "QUEUE_RANGES",
    "RECORD_TEXT_LENGTH_MAX",
    "RESULTS",
    "SPARK",
    "STATES",
    "SUBSCRIPTIONS",
    "TRACE_COLUMN_OF",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRAJECTORIES",
    "TRANSITIONS",
    "UNKNOWN_HOUR",
    "VERDICTS",
    "Code",
    "Column",
    "Engine",
    "Nesting",
    "Relation",
    "Round",
    "Settings",
    "Stage",
    "TracePlace",
    "attempts_sql",
    "business_group",
    "business_topic",
    "changed_settings",
    "columns_read",
    "is_business_group",
    "is_business_topic",
    "judge",
    "lag_sql",
    "merge_sql",
    "publish_hour_select",
    "publish_hours",
    "relations_read",
    "retry_group",
    "rounds",
    "run",
    "stored_kind",
    "trace_rows",
]
