"""The messages of a lake as spans for OpenTelemetry. Requires the extra `otel`."""

from .export import FOLDER, ExportedSpans, SpanExport, SpanPosition
from .otlp import Collector, CollectorError
from .spans import Span, SpanEvent, SpanKind, SpanNames, spans_of

__all__ = [
    "FOLDER",
    "Collector",
    "CollectorError",
    "ExportedSpans",
    "Span",
    "SpanEvent",
    "SpanExport",
    "SpanKind",
    "SpanNames",
    "SpanPosition",
    "spans_of",
]
