"""The name server's core: routes of topics and live brokers. Pure, and built like the broker.

`NameServer` serves requests, routes keeps the registrations, access decides which account each request needs.
"""

from .access import AccountKey, Accounts, Level, no_accounts
from .config import NameServerConfig
from .name_server import NameServer
from .routes import RouteTable

__all__ = ["AccountKey", "Accounts", "Level", "NameServer", "NameServerConfig", "RouteTable", "no_accounts"]
