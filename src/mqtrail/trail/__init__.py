"""What happened to a message: evidence, trajectory, verdicts.

This room defines the judgement as SQL text for DuckDB and runs nothing itself. `lake` runs the SQL over the evidence of
one message; `pipeline` runs it in Spark tasks over whole tables. Relations (columns with type, meaning and fold) and
verdict codes are data. The room `incidents` finds the causes of bad messages.
"""

from .alike import SENT_BEFORE, alike_copies_sql, alike_found_sql, alike_known_sql, sent_before_sql
from .appended import APPENDED, latest_sql
from .attempts import attempts_sql, attempts_stage, folded_attempts_sql, merge_sql, twins_sql, with_requests_sql
from .client_records import (
    CONTEXT_RECORDS,
    SETTLED_MS,
    client_records_sql,
    client_records_stage,
    folded_client_records_sql,
)
from .clocks import (
    CLOCK_WINDOW_MS,
    clock_window,
    clocks_sql,
    corrected_splits_sql,
    folded_clock_bounds_sql,
    host_of,
    judged_bounds_sql,
    trace_bounds_sql,
)
from .codes import CODES, GROUP_CODES, STATES, TRANSITIONS, Code
from .columns import Column, Relation
from .companions import BUCKETS_A_DOUBLING, key_tokens, latency_counts
from .context import IN_ORDER, NOT_IN_ORDER, group_orders_sql
from .coverage import COVERAGE_LACKS, COVERAGE_TABLES, coverage_sql
from .due import STATE, Cause, causes
from .evidence import (
    CLIENTS,
    EVIDENCE,
    GAPS,
    GROUP_OFFSETS,
    MESSAGE_META,
    PROBLEMS,
    QUEUE_RANGES,
    SAMPLES,
    SUBSCRIPTIONS,
    TRACE_COLUMN_OF,
    TRACE_EVENTS,
    TRACE_REJECTS,
    UNREAD_RANGES,
)
from .group_rows import group_rows
from .hours import DAY_MS, HOUR_MS, UNKNOWN_HOUR, ZONE_MS, born_ms, publish_hour_select, publish_hours
from .judge import COMPARED, INPUTS, READ_WHOLE, fact_stages, judge, state_stages, verdict_stages
from .judgement import OPEN_STATES
from .kinds import (
    business_group,
    business_topic,
    retry_group,
    stored_kind,
)
from .lags import folded_queue_spans_sql, lag_stages, queue_spans_sql
from .overtaking import OVERTAKEN, finishes_sql, overtaken_found_sql, overtaken_known_sql, overtaken_sql
from .proofs import ProofResult
from .results import (
    ATTEMPTS,
    CLIENT_RECORDS,
    CLOCK_BOUNDS,
    EVENT_FIELDS,
    GROUP_FOLDS,
    INDEXES,
    KEY_INDEX,
    LAG,
    LATENCY_MINUTE,
    OPEN_IDS,
    PUBLISHED_FROM,
    QUEUE_SPANS,
    RESULTS,
    TRAJECTORIES,
    VERDICTS,
)
from .rounds import Round, rounds
from .samples import SAMPLED, member_stages
from .settings import Settings, changed_settings
from .stages import Stage
from .stored_sql import POP_GROUP, message_meta_sql
from .trace_rows import (
    BODY_RECORD_NO,
    RECORD_TEXT_LENGTH_MAX,
    TRACE_BODY_SIZE_MAX,
    TRACE_PARTS_MAX,
    TracePlace,
    body_reject,
    oversize_problem,
    parts_problem,
    record_rows,
    trace_client_id,
    trace_rows,
)
from .trace_sql import TRACE_PLACE, TraceShape, trace_events_sql, trace_records_sql
from .watches import SETTLED

__all__ = [
    "APPENDED",
    "ATTEMPTS",
    "BODY_RECORD_NO",
    "BUCKETS_A_DOUBLING",
    "CLIENTS",
    "CLIENT_RECORDS",
    "CLOCK_BOUNDS",
    "CLOCK_WINDOW_MS",
    "CODES",
    "COMPARED",
    "CONTEXT_RECORDS",
    "COVERAGE_LACKS",
    "COVERAGE_TABLES",
    "DAY_MS",
    "EVENT_FIELDS",
    "EVIDENCE",
    "GAPS",
    "GROUP_CODES",
    "GROUP_FOLDS",
    "GROUP_OFFSETS",
    "HOUR_MS",
    "INDEXES",
    "INPUTS",
    "IN_ORDER",
    "KEY_INDEX",
    "LAG",
    "LATENCY_MINUTE",
    "MESSAGE_META",
    "NOT_IN_ORDER",
    "OPEN_IDS",
    "OPEN_STATES",
    "OVERTAKEN",
    "POP_GROUP",
    "PROBLEMS",
    "PUBLISHED_FROM",
    "QUEUE_RANGES",
    "QUEUE_SPANS",
    "READ_WHOLE",
    "RECORD_TEXT_LENGTH_MAX",
    "RESULTS",
    "SAMPLED",
    "SAMPLES",
    "SENT_BEFORE",
    "SETTLED",
    "SETTLED_MS",
    "STATE",
    "STATES",
    "SUBSCRIPTIONS",
    "TRACE_BODY_SIZE_MAX",
    "TRACE_COLUMN_OF",
    "TRACE_EVENTS",
    "TRACE_PARTS_MAX",
    "TRACE_PLACE",
    "TRACE_REJECTS",
    "TRAJECTORIES",
    "TRANSITIONS",
    "UNKNOWN_HOUR",
    "UNREAD_RANGES",
    "VERDICTS",
    "ZONE_MS",
    "Cause",
    "Code",
    "Column",
    "ProofResult",
    "Relation",
    "Round",
    "Settings",
    "Stage",
    "TracePlace",
    "TraceShape",
    "alike_copies_sql",
    "alike_found_sql",
    "alike_known_sql",
    "attempts_sql",
    "attempts_stage",
    "body_reject",
    "born_ms",
    "business_group",
    "business_topic",
    "causes",
    "changed_settings",
    "client_records_sql",
    "client_records_stage",
    "clock_window",
    "clocks_sql",
    "corrected_splits_sql",
    "coverage_sql",
    "fact_stages",
    "finishes_sql",
    "folded_attempts_sql",
    "folded_client_records_sql",
    "folded_clock_bounds_sql",
    "folded_queue_spans_sql",
    "group_orders_sql",
    "group_rows",
    "host_of",
    "judge",
    "judged_bounds_sql",
    "key_tokens",
    "lag_stages",
    "latency_counts",
    "latest_sql",
    "member_stages",
    "merge_sql",
    "message_meta_sql",
    "oversize_problem",
    "overtaken_found_sql",
    "overtaken_known_sql",
    "overtaken_sql",
    "parts_problem",
    "publish_hour_select",
    "publish_hours",
    "queue_spans_sql",
    "record_rows",
    "retry_group",
    "rounds",
    "sent_before_sql",
    "state_stages",
    "stored_kind",
    "trace_bounds_sql",
    "trace_client_id",
    "trace_events_sql",
    "trace_records_sql",
    "trace_rows",
    "twins_sql",
    "verdict_stages",
    "with_requests_sql",
]
