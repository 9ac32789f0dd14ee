"""Parts of requests and answers that all operations of the plain interface share."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import msgspec
from fastapi import Request
from fastapi.responses import Response

from mqtrail.wire import ACTS_FOR_HEADER, OWN_HOST, Host, visible_json

from .problems import Problem
from .shapes import JSON_TYPE, REF


def ref_of(kind: type) -> dict[str, str]:
    """Return a reference to the schema of a shape."""
    return {"$ref": REF.format(name=kind.__name__)}


def body_of(kind: type) -> dict[str, Any]:
    """Return what the OpenAPI description says of a body of this shape."""
    return {"requestBody": {"required": True, "content": {JSON_TYPE: {"schema": ref_of(kind)}}}}


def answer_of(kind: type) -> dict[int | str, dict[str, Any]]:
    """Return what the OpenAPI description says of an answer of this shape."""
    return {200: {"description": kind.__doc__ or "", "content": {JSON_TYPE: {"schema": ref_of(kind)}}}}


def media_type_of(request: Request) -> str:
    """Return the media type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_body(request: Request) -> bytes:
    """Return the body of a request that must be JSON. Problem: its type is another one."""
    found = media_type_of(request)
    if found != JSON_TYPE:
        detail = f"found Content-Type {found[:60]!r}, expected {JSON_TYPE}: set Content-Type"
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    return await request.body()


def json_answer(value: msgspec.Struct | dict[str, Any]) -> Response:
    """Return a value as JSON with control and invisible characters escaped, as `VisibleJson`."""
    return Response(visible_json(msgspec.json.encode(value).decode()).encode(), media_type=JSON_TYPE)


def token_of(request: Request) -> str | None:
    """Return the token that a request carries."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def acts_for_of(request: Request) -> str | None:
    """Return the operator for whom a console asks; None: it asks for itself."""
    found = request.headers.get(ACTS_FOR_HEADER)
    return None if found is None else unquote(found)


def host_of(request: Request) -> Host:
    """Return the address of the client."""
    return OWN_HOST if request.client is None else Host(*request.client)
