"""The context of OpenTelemetry that producers put into messages: the property `traceparent`.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/#traceparent-header
"""

from __future__ import annotations

TRACEPARENT = "traceparent"
"""Property of a message: version-traceid-spanid-flags, all hexadecimal; later versions may append fields."""
TRACEPARENT_SIZE = 55
_PATTERN = "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
_ZEROS = "0" * 32


def traceparent_sql(text: str) -> str:
    """SQL: the four fields of a message's traceparent; '' if it has none (NULL) or an invalid one."""
    is_valid = f"regexp_full_match({text}, '{_PATTERN}', 's') AND substr({text}, 4, 32) <> '{_ZEROS}'"
    return f"CASE WHEN {is_valid} THEN substr({text}, 1, {TRACEPARENT_SIZE}) ELSE '' END"


def otel_trace_id(traceparent: str) -> str:
    """SQL: the trace id of a valid traceparent; '' of ''."""
    return f"substr({traceparent}, 4, 32)"
