"""Pop consumption: the broker tracks the messages in process, and the client acknowledges each message.

`calls.py` holds the requests and their replies, `queues.py` the queues that one consumer pops.
"""

from .queues import PoppedQueues, PopQueue

__all__ = [
    "PopQueue",
    "PoppedQueues",
]
