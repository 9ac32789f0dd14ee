"""Publish and receive over the HTTP door of `mqtrail pmq up`, asyncio first, each with a synchronous twin.

`Publisher` publishes, each message once also when a request is repeated; `Subscriber` receives and acknowledges. Both
need one address, http://host:port, and no name server. Nothing runs at import.
"""

from mqtrail.wire import Message

from .door import PmqConfig, PmqError, RequestFailed, RequestRefused
from .publisher import Published, Publisher
from .subscriber import Broadcast, ReceivedMessage, Subscriber
from .sync import SyncPublisher, SyncReceivedMessage, SyncSubscriber

__all__ = [
    "Broadcast",
    "Message",
    "PmqConfig",
    "PmqError",
    "Published",
    "Publisher",
    "ReceivedMessage",
    "RequestFailed",
    "RequestRefused",
    "Subscriber",
    "SyncPublisher",
    "SyncReceivedMessage",
    "SyncSubscriber",
]
