"""The client's trace: writes the events of producers and consumers, as their hooks report them, to the trace topic.

The records have Apache RocketMQ's layouts, byte for byte, and further ones for events that those do not cover
(docs/design/trace-text.md; sending: docs/design/client-trace.md). The dispatcher never blocks a send. It keeps records
in memory, then in one spool file per process; it counts what is lost and writes the count into the trace.
"""

from .dispatcher import Dispatcher, TraceCounts, TraceRefused
from .text import detail
from .tracer import ClientTracer

__all__ = ["ClientTracer", "Dispatcher", "TraceCounts", "TraceRefused", "detail"]
