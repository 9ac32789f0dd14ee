"""Decides: where topics are, and which brokers live. Pure, and built as the broker is.

`NameServer` is the front; routes keeps what brokers told.
"""

from .config import NameServerConfig
from .name_server import NameServer
from .routes import RouteTable

__all__ = ["NameServer", "NameServerConfig", "RouteTable"]
