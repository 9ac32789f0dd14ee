"""The client's trace: listens to the hooks of producers and consumers and writes what it hears to the trace topic.

The records are Apache RocketMQ's own layouts, byte for byte, and further ones for what those cannot say
(docs/design/trace-text.md; how they travel: docs/design/client-trace.md). The dispatcher never blocks a send and loses
nothing in silence: memory, then one spool file a process, then a count of what was lost, written into the trace itself.
"""

from .dispatcher import Dispatcher, TraceCounts, TraceRefused
from .text import detail
from .tracer import ClientTracer

__all__ = ["ClientTracer", "Dispatcher", "TraceCounts", "TraceRefused", "detail"]
