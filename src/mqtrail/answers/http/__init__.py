"""The HTTP API: the answers of this room as JSON, with an OpenAPI description, for this machine alone.

Without a `Changing` it makes no changes; without an `AccessDesk` it requires no log-in.

`make_api` returns the application. Each answer has its scope; errors are problem details (RFC 9457).
"""

from .api import make_api
from .changes import Changing
from .door import API_PREFIX, LOGIN, PROVIDER, PUBLIC, actor_of, cookie_name, forwarded_for, seen_by, visitor_of
from .workers import Workers

__all__ = [
    "API_PREFIX",
    "LOGIN",
    "PROVIDER",
    "PUBLIC",
    "Changing",
    "Workers",
    "actor_of",
    "cookie_name",
    "forwarded_for",
    "make_api",
    "seen_by",
    "visitor_of",
]
