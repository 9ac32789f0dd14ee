"""The HTTP API: the answers of this room as JSON, with an OpenAPI description. Read-only, for this machine alone.

`make_api` returns the application. Each answer has its scope; errors are problem details (RFC 9457).
"""

from .api import API_PREFIX, make_api
from .guard import LocalGuard
from .problems import Problem, ProblemDetails
from .workers import Workers

__all__ = ["API_PREFIX", "LocalGuard", "Problem", "ProblemDetails", "Workers", "make_api"]
