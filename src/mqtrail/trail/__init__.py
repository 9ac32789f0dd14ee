"""What happened to a message: evidence, trajectory, verdicts. One definition, no engine in it.

The definition is SQL text for DuckDB. `lake` runs it over the evidence of one message; `pipeline` runs it inside the
tasks of Spark over whole tables. Relations (columns with type, meaning and fold) are data, and so is the table of
verdict codes.
"""

from .attempts import attempts_sql, attempts_stage, folded_attempts_sql, merge_sql
from .codes import CODES, GROUP_CODES, NOT_YET_JUDGED, STATES, TRANSITIONS, Code
from .columns import Column, Relation
from .companions import lag_stages
from .context import CONTEXT_RECORDS
from .evidence import (
    CLIENTS,
    EVIDENCE,
    GAPS,
    GROUP_OFFSETS,
    MESSAGE_META,
    QUEUE_RANGES,
    SAMPLES,
    SUBSCRIPTIONS,
    TRACE_COLUMN_OF,
    TRACE_EVENTS,
    TRACE_REJECTS,
)
from .group_rows import group_rows
from .groups import KNOWN_COLUMNS, KNOWN_VERDICTS, with_known_verdicts
from .hours import UNKNOWN_HOUR, publish_hour_select, publish_hours
from .judge import INPUTS, judge
from .judgement import OPEN_STATES
from .kinds import (
    business_group,
    business_topic,
    retry_group,
    stored_kind,
)
from .results import (
    ATTEMPTS,
    EVENT_FIELDS,
    KEY_INDEX,
    LAG,
    LATENCY_MINUTE,
    RESULTS,
    TRAJECTORIES,
    VERDICTS,
)
from .rounds import Round, rounds
from .samples import SAMPLED
from .settings import Settings, changed_settings
from .stages import Stage
from .stored_sql import message_meta_sql
from .trace_rows import (
    BODY_RECORD_NO,
    RECORD_TEXT_LENGTH_MAX,
    TRACE_BODY_SIZE_MAX,
    TracePlace,
    body_reject,
    oversize_problem,
    record_rows,
    trace_client_id,
    trace_rows,
)
from .trace_sql import TRACE_PLACE, TraceShape, trace_events_sql, trace_records_sql

__all__ = [
    "ATTEMPTS",
    "BODY_RECORD_NO",
    "CLIENTS",
    "CODES",
    "CONTEXT_RECORDS",
    "EVENT_FIELDS",
    "EVIDENCE",
    "GAPS",
    "GROUP_CODES",
    "GROUP_OFFSETS",
    "INPUTS",
    "KEY_INDEX",
    "KNOWN_COLUMNS",
    "KNOWN_VERDICTS",
    "LAG",
    "LATENCY_MINUTE",
    "MESSAGE_META",
    "NOT_YET_JUDGED",
    "OPEN_STATES",
    "QUEUE_RANGES",
    "RECORD_TEXT_LENGTH_MAX",
    "RESULTS",
    "SAMPLED",
    "SAMPLES",
    "STATES",
    "SUBSCRIPTIONS",
    "TRACE_BODY_SIZE_MAX",
    "TRACE_COLUMN_OF",
    "TRACE_EVENTS",
    "TRACE_PLACE",
    "TRACE_REJECTS",
    "TRAJECTORIES",
    "TRANSITIONS",
    "UNKNOWN_HOUR",
    "VERDICTS",
    "Code",
    "Column",
    "Relation",
    "Round",
    "Settings",
    "Stage",
    "TracePlace",
    "TraceShape",
    "attempts_sql",
    "attempts_stage",
    "body_reject",
    "business_group",
    "business_topic",
    "changed_settings",
    "folded_attempts_sql",
    "group_rows",
    "judge",
    "lag_stages",
    "merge_sql",
    "message_meta_sql",
    "oversize_problem",
    "publish_hour_select",
    "publish_hours",
    "record_rows",
    "retry_group",
    "rounds",
    "stored_kind",
    "trace_client_id",
    "trace_events_sql",
    "trace_records_sql",
    "trace_rows",
    "with_known_verdicts",
]
