"""The fast lane for the frequent requests: send, batch, pull, transaction end.

`Lane.process` takes all frames of one socket read. It serves those that it supports, with one append, and passes all
others to `Broker.handle`. Its answers never differ from those of `handle`, but it supports less: a frame with anything
unusual (an unknown field, a delay, a retry topic, a refusal) goes to `handle`.

    process           the loop
    headers, layouts  the two kinds of header: JSON, binary
    caches            results of earlier look-ups
    half_messages     half messages until their end arrives
"""

from .process import Lane, Served

__all__ = ["Lane", "Served"]
