"""The fast lane: what fills a broker's day (send, batch, pull, transactions), whole pieces at a time.

`Lane.process` serves every whole frame of a piece that it knows exactly, with one append, and hands the rest to
`Broker.handle`. It knows less than `handle` and never differs: what is not literally as expected (an unknown field, a
delay, a retry topic, a refusal) goes the general road. headers and layouts read the two kinds of header, routes keeps
what was already looked up, halves the half messages whose end has not come, process is the loop.
"""

from .process import Lane, Served

__all__ = ["Lane", "Served"]
