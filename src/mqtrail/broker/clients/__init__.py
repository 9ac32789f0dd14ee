"""Connected clients: their heartbeats and queue locks, consumer offsets, and requests forwarded to them."""

from .forward import ForwardedRequests
from .heartbeats import ClientRequests
from .offset_requests import OffsetRequests

__all__ = [
    "ClientRequests",
    "ForwardedRequests",
    "OffsetRequests",
]
