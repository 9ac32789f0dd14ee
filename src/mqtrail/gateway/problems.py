"""Errors as problem details (RFC 9457, application/problem+json)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mqtrail.wire import visible_json

MEDIA_TYPE: Final = "application/problem+json"
RETRY_LATER: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)  # they carry Retry-After


class ProblemDetails(BaseModel):
    """Why there is no answer. title: the kind of problem. detail: found, expected, remedy."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Problem(Exception):
    """An answer that cannot be given."""

    def __init__(self, status: HTTPStatus, detail: str, *, retry_after_s: int = 1) -> None:
        """retry_after_s: with a status that asks to try later."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


STATUSES: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def described(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """Return these statuses as responses of an OpenAPI description."""
    return {
        int(status): {
            "description": status.phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in statuses
    }


RESPONSES: Final = described(*STATUSES)
"""What every operation may answer instead, for the OpenAPI description."""


class VisibleJson(JSONResponse):
    """JSON with control and invisible characters escaped, as `--json` of commands: curl prints it in a terminal."""

    def render(self, content: Any) -> bytes:
        return visible_json(super().render(content).decode()).encode()


def problem_response(status: HTTPStatus, detail: str, *, retry_after_s: int = 1) -> JSONResponse:
    """Return a problem as a response."""
    content = ProblemDetails(title=status.phrase, status=int(status), detail=detail).model_dump()
    headers = {"Retry-After": str(retry_after_s)} if status in RETRY_LATER else None
    if status is HTTPStatus.UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"}
    return VisibleJson(content, int(status), headers, MEDIA_TYPE)


class DescribedApi(FastAPI):
    """An application without pages, whose OpenAPI description has the schema of problems."""

    def __init__(self, *, schemas: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """schemas: further schemas of the description, by name."""
        super().__init__(docs_url=None, redoc_url=None, **settings)
        self._schemas = {"ProblemDetails": ProblemDetails.model_json_schema(), **(schemas or {})}

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description; it is made once."""
        if self.openapi_schema is None:
            made = get_openapi(title=self.title, version=self.version, routes=self.routes, description=self.description)
            made.setdefault("components", {}).setdefault("schemas", {}).update(self._schemas)
            self.openapi_schema = made
        return self.openapi_schema


def add_problems(app: FastAPI) -> None:
    """Let every error of the application be a problem."""

    async def problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return problem_response(error.status, error.detail, retry_after_s=error.retry_after_s)

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
