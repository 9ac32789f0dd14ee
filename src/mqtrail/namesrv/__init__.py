"""Decides: where topics are, and which brokers live. Pure, and built as the broker is.

`NameServer` is the front; routes keeps what brokers told; access says which account each request needs.
"""

from .access import AccountKey, Accounts, Level, no_accounts
from .config import NameServerConfig
from .name_server import NameServer
from .routes import RouteTable

__all__ = ["AccountKey", "Accounts", "Level", "NameServer", "NameServerConfig", "RouteTable", "no_accounts"]
