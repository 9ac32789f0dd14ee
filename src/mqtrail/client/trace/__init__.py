"""The client's trace: writes the events that the hooks of producers and consumers report to the trace topic.

The records have Apache RocketMQ's layouts, byte for byte; events that those do not cover have records of mqtrail
(docs/design/trace-text.md; sending: docs/design/client-trace.md). The dispatcher never blocks a send. It keeps records
in memory, then in one spool file per process. It counts lost records and writes the count into the trace.
"""

from .dispatcher import Dispatcher, TraceCounts, TraceRefused
from .text import detail
from .tracer import ClientTracer

__all__ = ["ClientTracer", "Dispatcher", "TraceCounts", "TraceRefused", "detail"]
