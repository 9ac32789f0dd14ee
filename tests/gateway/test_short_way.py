"""The short way: what it serves, what it hands on, and that its answers are those of FastAPI."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from mqtrail.gateway.problems import Problem
from mqtrail.gateway.short_way import ShortWay

from .conftest import Door

ANY_QUERY = "?any=1"  # with it, a request goes through FastAPI, which ignores it


async def named(name: str, request: Request) -> Response:
    if name == "bad":
        raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "found too many, expected fewer: wait", retry_after_s=7)
    return PlainTextResponse(f"short {name} {(await request.body()).decode()}")


async def exact(request: Request) -> Response:
    return PlainTextResponse("short exact")


async def handed_on(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("handed on")(scope, receive, send)


@pytest.fixture
def client() -> TestClient:
    return TestClient(ShortWay(handed_on, {"/v1/topics/*/messages": named}, {"/api/pull": exact}))


@pytest.mark.parametrize("path", ["/v1/topics/orders/messages", "/v1/topics/%2Aa%20b/messages"])
def test_a_post_with_a_name_and_without_a_query_is_served(client: TestClient, path: str) -> None:
    """The name is decoded, as FastAPI does."""
    name = "*a b" if "%" in path else "orders"
    assert client.post(path, content="x").text == f"short {name} x"
    assert client.post("/api/pull").text == "short exact"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics/orders/messages"),
        ("POST", "/v1/topics/orders/messages?key=k"),
        ("POST", "/v1/topics/orders/messages/"),
        ("POST", "/v1/topics//messages"),
        ("POST", "/v1/topics/a/b/messages"),
        ("POST", "/v1/topics/orders/others"),
        ("POST", "/v1/groups/orders/messages"),
        ("POST", f"/v1/topics/{'n' * 256}/messages"),
        ("POST", "/v1/topics/orders%0A/messages"),
        ("POST", "/api/pull?x=1"),
        ("GET", "/api/pull"),
    ],
)
def test_any_other_request_is_handed_on(client: TestClient, method: str, path: str) -> None:
    """FastAPI serves or refuses it."""
    assert client.request(method, path).text == "handed on"


def test_a_problem_is_an_answer(client: TestClient) -> None:
    """With the status, the detail and the time of a problem."""
    answer = client.post("/v1/topics/bad/messages")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "found too many, expected fewer: wait"


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/v1/topics/there/messages", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("/v1/topics/there/messages", {"json": {"text": "x"}}),
        ("/v1/topics/there/messages", {"json": []}),
        ("/v1/topics/there/messages", {"json": {"body": "x"}, "headers": {"Idempotency-Key": "a b"}}),
        ("/v1/topics/there/messages", {"content": b"x", "headers": {"Content-Type": "image/png"}}),
        ("/v1/topics/there/messages", {"json": {"body": "x" * 100_001}}),
        ("/v1/topics/%20/messages", {"json": {"body": "x"}}),
        ("/v1/groups/g/receive", {"json": {"topic": "absent"}}),
        ("/v1/groups/g/receive", {"content": b"topic=there"}),
        ("/v1/groups/g/ack", {"json": {"receipts": ["junk"]}}),
        ("/v1/groups/g/nack", {"json": {"receipts": []}}),
        ("/v1/groups/g/extend", {"json": {"receipts": ["junk"], "invisible_s": 0}}),
        ("/api/client/consumer/pullData", {"json": {"queueId": 1, "offsetStart": 0, "offsetEnd": 0}}),
    ],
)
def test_refusals_are_those_of_the_long_way(door: Door, path: str, request_: dict[str, Any]) -> None:
    """Status, headers and body are equal, but for times."""
    short, long = (door.http.post(path + query, **request_) for query in ("", ANY_QUERY))
    assert short.status_code == long.status_code
    assert [item for item in short.headers.items() if item[0] not in ("date", "content-length")] == [
        item for item in long.headers.items() if item[0] not in ("date", "content-length")
    ]
    assert {**short.json(), "time": 0} == {**long.json(), "time": 0}


def test_messages_of_both_ways_are_alike(door: Door) -> None:
    """What one publishes, the other receives and settles; an Idempotency-Key holds for both."""
    item = {"body": "x", "key": "k", "tag": "t", "headers": {"n": "v"}}
    (first,) = door.publish("ways", item, **{"Idempotency-Key": "one"})
    again = door.call(f"/v1/topics/ways/messages{ANY_QUERY}", item, **{"Idempotency-Key": "one"})["messages"]
    assert again == [first]
    (got,) = door.receive("g", "ways", wait_s=10)
    assert (got["id"], got["body"]) == (first["id"], "x")
    assert door.call(f"/v1/groups/g/ack{ANY_QUERY}", {"receipts": [got["receipt"]]})["results"] == [
        {"receipt": got["receipt"]}
    ]
