"""The fast lane: the frequent requests (send, batch, pull, transaction end), all frames of one socket read at a time.

`Lane.process` serves the frames that it supports, with one append, and passes all others to `Broker.handle`. It
supports less than `handle` and never differs from it: a frame with anything unusual (an unknown field, a delay, a retry
topic, a refusal) goes to `handle`. headers and layouts read the two kinds of header, caches keeps what was looked up
before, half_messages keeps half messages until their end arrives, process has the loop.
"""

from .process import Lane, Served

__all__ = ["Lane", "Served"]
