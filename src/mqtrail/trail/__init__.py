"""What happened to a message: evidence, trajectory, verdicts. One definition, no engine in it.

The definition is SQL text in the subset that Spark SQL and DuckDB share; `pipeline` and `lake` run the same text.
Relations (columns with type, meaning and fold) are data, and so is the table of verdict codes.
"""

from mqtrail.trail.columns import Column, Relation
from mqtrail.trail.evidence import (
    CLIENTS,
    EVIDENCE,
    GAPS,
    GROUP_OFFSETS,
    MESSAGE_META,
    QUEUE_RANGES,
    SUBSCRIPTIONS,
    TRACE_EVENTS,
    TRACE_REJECTS,
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

__all__ = [
    "ATTEMPTS",
    "CLIENTS",
    "EVENT_FIELDS",
    "EVIDENCE",
    "GAPS",
    "GROUP_OFFSETS",
    "KEY_INDEX",
    "LAG",
    "LATENCY_MINUTE",
    "MESSAGE_META",
    "QUEUE_RANGES",
    "RESULTS",
    "SUBSCRIPTIONS",
    "TRACE_EVENTS",
    "TRACE_REJECTS",
    "TRAJECTORIES",
    "VERDICTS",
    "Column",
    "Relation",
]
