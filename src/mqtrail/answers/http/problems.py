"""Errors as problem details (RFC 9457, application/problem+json)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mqtrail.wire import MQError, visible_json

from ..changes import AuditFailed, ChangedMeanwhile, InvalidChange, NothingToChange
from ..sources import NoSource

MEDIA_TYPE: Final = "application/problem+json"


class ProblemDetails(BaseModel):
    """Why there is no answer. title: the kind of problem. detail: found, expected, remedy."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Problem(Exception):
    """An answer that cannot be given."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


STATUSES: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    int(status): {
        "description": status.phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
    for status in STATUSES
}
"""What every operation may answer instead, for the OpenAPI description."""


class VisibleJson(JSONResponse):
    """JSON with control and invisible characters escaped, as `--json` of commands: curl prints it in a terminal."""

    def render(self, content: Any) -> bytes:
        return visible_json(super().render(content).decode()).encode()


def problem_response(status: HTTPStatus, detail: str) -> JSONResponse:
    """Return a problem as a response."""
    content = ProblemDetails(title=status.phrase, status=int(status), detail=detail).model_dump()
    headers = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return VisibleJson(content, int(status), headers, MEDIA_TYPE)


def problem_of(error: MQError) -> Problem:
    """Return the problem of an error of lake or cluster: there is no such source, or it could not be queried."""
    if isinstance(error, NoSource | NothingToChange):
        return Problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, InvalidChange):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
    if isinstance(error, ChangedMeanwhile):
        return Problem(HTTPStatus.CONFLICT, str(error))
    if isinstance(error, AuditFailed):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    from mqtrail.lake import LakeError  # late: it imports DuckDB

    from ..lakeview import UnknownCluster

    if isinstance(error, UnknownCluster):
        return Problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, LakeError):
        return Problem(HTTPStatus.BAD_GATEWAY, f"lake: {error}")
    return Problem(HTTPStatus.BAD_GATEWAY, f"cluster: {error}")


def add_problems(app: FastAPI) -> None:
    """Let every error of the application be a problem."""

    async def problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return problem_response(error.status, error.detail)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        parts = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()]
        return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(parts))

    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = problem_response(HTTPStatus(error.status_code), str(error.detail))
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
