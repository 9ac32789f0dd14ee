"""The name server's core: routes of topics and live brokers. Pure, and built like the broker.

`NameServer` serves requests: requests has a row for each code, whose handler is in registrations, queries, key_values
or settings. routes keeps the tables; access checks the account that a request needs.
"""

from .config import NameServerConfig
from .name_server import NameServer
from .route_tables import RouteTable

__all__ = ["NameServer", "NameServerConfig", "RouteTable"]
