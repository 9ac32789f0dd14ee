"""Pop consumption: the broker tracks which messages are out, the client acknowledges each message.

`calls.py` holds the requests and their replies, `queues.py` the queues that one consumer pops.
"""

from .queues import PoppedQueues, PopQueue

__all__ = [
    "PopQueue",
    "PoppedQueues",
]
