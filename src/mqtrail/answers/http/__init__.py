"""The HTTP API: the answers of this room as JSON, with an OpenAPI description, for this machine alone.

It changes nothing unless it gets a `Changing`.

`make_api` returns the application. Each answer has its scope; errors are problem details (RFC 9457).
"""

from .api import API_PREFIX, make_api
from .changes import Changing, actor_of
from .workers import Workers

__all__ = ["API_PREFIX", "Changing", "Workers", "actor_of", "make_api"]
