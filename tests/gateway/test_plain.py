"""The plain interface against a real broker on tables: publish, receive, settle, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mqtrail.client import SyncAdmin
from mqtrail.wire import SubscriptionGroupConfig
from tests.waiting import wait_until

from .conftest import Door

JSON = {"Content-Type": "application/json"}


def test_a_message_keeps_body_key_tag_and_headers(door: Door) -> None:
    """What was published arrives, once, and an acknowledged message does not come back."""
    (published,) = door.publish("all", {"body": "häl\u202elo", "key": "a b", "tag": "t", "headers": {"n": "v"}})
    (got,) = door.receive("g", "all", wait_s=10)
    expected = {"id": published["id"], "queue": published["queue"], "offset": published["offset"], "topic": "all"}
    expected |= {"body": "häl\u202elo", "key": "a b", "tag": "t", "headers": {"n": "v"}, "attempt": 1}
    assert {name: got[name] for name in expected} == expected
    assert got["born_ms"] <= got["stored_ms"] < got["visible_again_ms"]
    assert door.settle("g", "ack", [got["receipt"]]) == [{"receipt": got["receipt"]}]
    assert door.receive("g", "all") == []


def test_a_list_stays_in_order_in_one_queue(door: Door) -> None:
    """Messages of one request follow each other."""
    published = door.publish("list", [{"body": str(number)} for number in range(5)])
    assert len({one["queue"] for one in published}) == 1
    assert [one["offset"] for one in published] == [0, 1, 2, 3, 4]
    assert [one["body"] for one in door.receive("g", "list", wait_s=10)] == ["0", "1", "2", "3", "4"]


def test_bytes_by_content_type(door: Door) -> None:
    """A body of bytes is one message; bytes that are not UTF-8 come back in base64."""
    answer = door.http.post(
        "/v1/topics/bytes/messages?key=k&tag=t",
        content=b"\xff\x00",
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer.status_code == 200, answer.text
    door.publish("bytes", {"body_base64": base64.b64encode(b"\xfe").decode()})
    got = {one.get("tag", ""): one for one in door.receive("g", "bytes", wait_s=10)}
    assert base64.b64decode(got["t"]["body_base64"]) == b"\xff\x00"
    assert base64.b64decode(got[""]["body_base64"]) == b"\xfe"
    assert got["t"]["key"] == "k"
    assert "body" not in got["t"]


def test_only_wanted_tags(door: Door) -> None:
    """The broker filters by tag."""
    door.publish("tags", [{"body": "1", "tag": "a"}, {"body": "2", "tag": "b"}, {"body": "3", "tag": "c"}])
    assert [one["body"] for one in door.receive("g", "tags", tag="a || c", wait_s=10)] == ["1", "3"]


def test_each_group_gets_each_message(door: Door) -> None:
    """Groups are independent; within a group a received message is invisible."""
    door.publish("groups", {"body": "x"})
    assert len(door.receive("g1", "groups", wait_s=10)) == 1
    assert door.receive("g1", "groups") == []
    assert len(door.receive("g2", "groups", wait_s=10)) == 1


def test_extend_gives_a_new_receipt(door: Door) -> None:
    """The new receipt has the new time, and acknowledges."""
    door.publish("extended", {"body": "x"})
    (got,) = door.receive("g", "extended", wait_s=10, invisible_s=10)
    (extended,) = door.settle("g", "extend", [got["receipt"]], invisible_s=600)
    assert extended["receipt"] != got["receipt"]
    assert door.settle("g", "ack", [extended["receipt"], "junk"])[1]["error"].startswith("found 'junk', expected")


@pytest.mark.slow
def test_a_rejected_message_comes_again_and_at_last_is_a_dead_letter(door: Door) -> None:
    """nack delivers again until the group's retries are used up; then the message is in the dead-letter topic."""
    with SyncAdmin(door.running.namesrv_address) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name="tired", retry_max_times=1))
    (published,) = door.publish("again", {"body": "x"})
    for attempt in (1, 2):
        (got,) = door.receive("tired", "again", wait_s=30)
        assert (got["id"], got["attempt"], got["body"]) == (published["id"], attempt, "x")
        door.settle("tired", "nack", [got["receipt"]], delay_s=1, reason="no stock")
    letters = {"topic": "%DLQ%tired", "max": 32}

    def is_dead() -> bool:
        assert door.receive("tired", "again", wait_s=1) == []  # this moves it
        return door.http.post("/v1/groups/other/receive", json=letters).status_code == 200

    wait_until(is_dead)
    (dead,) = door.receive("auditor", "%DLQ%tired", wait_s=10)
    assert (dead["id"], dead["body"]) == (published["id"], "x")


@pytest.mark.slow
def test_an_unanswered_message_comes_again(door: Door) -> None:
    """After its invisible time a message is delivered again."""
    door.publish("silent", {"body": "x"})
    (first,) = door.receive("g", "silent", wait_s=10, invisible_s=1)
    (second,) = door.receive("g", "silent", wait_s=30)
    assert (second["id"], second["attempt"]) == (first["id"], 2)


def test_a_repeated_request_stores_nothing_twice(door: Door) -> None:
    """The same Idempotency-Key gives the same places; the key is not shown to receivers."""
    messages = [{"body": "1", "key": "k"}, {"body": "2"}]
    first = door.publish("once", messages, **{"Idempotency-Key": "abc"})
    assert door.publish("once", messages, **{"Idempotency-Key": "abc"}) == first
    got = door.receive("g", "once", wait_s=10)
    assert [(one["body"], one.get("key", ""), one.get("headers")) for one in got] == [("1", "k", None), ("2", "", None)]
    status, detail = door.refused(
        "POST", "/v1/topics/once/messages", json={"body": "3"}, headers={"Idempotency-Key": "abc"}
    )
    assert (status, "other messages" in detail) == (422, True)


def test_messages_as_events(door: Door) -> None:
    """A stream has the waiting messages and those that come later; each has a receipt."""
    (first,) = door.publish("events", {"body": "a\nb"})
    with door.http.stream("GET", "/v1/groups/g/events?topic=events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        got = next_event(lines)
        assert (got["id"], got["body"]) == (first["id"], "a\nb")
        (second,) = door.publish("events", {"body": "later"})
        later = next_event(lines)
        assert (later["id"], later["body"]) == (second["id"], "later")
        door.settle("g", "ack", [got["receipt"], later["receipt"]])
    assert door.refused("GET", "/v1/groups/g/events?topic=nowhere")[0] == 404
    assert door.refused("GET", "/v1/groups/g/events")[0] == 422


def next_event(lines: Iterator[str]) -> dict[str, Any]:
    """Return the next message of a stream."""
    for line in lines:
        if line == "event: message":
            message: dict[str, Any] = json.loads(next(lines).removeprefix("data: "))
            return message
    raise AssertionError("the stream ended")


def test_topics(door: Door) -> None:
    """A topic is created, shown and listed; the list has no topics of the broker itself."""
    created = door.http.put("/v1/topics/made", json={"queues": 2})
    expected = {"topic": "made", "queues": 2, "readable": True, "writable": True}
    assert (created.status_code, created.json()) == (200, expected)
    assert door.http.get("/v1/topics/made").json() == expected
    names = [one["topic"] for one in door.http.get("/v1/topics").json()["topics"]]
    assert "made" in names
    assert not {"TBW102", "DefaultCluster", "broker-a", "RMQ_SYS_TRACE_TOPIC"} & set(names)


def test_health_and_description(door: Door) -> None:
    """The description is complete: every schema that it refers to is there."""
    assert door.http.get("/healthz").text == "ok\n"
    described = door.http.get("/openapi.json").json()
    assert {"/healthz", "/v1/topics/{topic}/messages", "/v1/groups/{group}/receive"} <= set(described["paths"])
    assert references(described) <= set(described["components"]["schemas"])


def references(part: Any) -> set[str]:
    """Return the names of the schemas that a part refers to."""
    if isinstance(part, dict):
        own = {part["$ref"].rpartition("/")[2]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*map(references, part.values()))
    return set().union(*map(references, part)) if isinstance(part, list) else set()


PUBLISH = "/v1/topics/bad/messages"
RECEIVE = "/v1/groups/bad/receive"


@pytest.mark.parametrize(
    ("path", "content", "status", "expected"),
    [
        (PUBLISH, b"{", 400, "expected JSON"),
        (PUBLISH, b"\xff\xfe", 400, "expected JSON"),
        (PUBLISH, b"[" * 40_000, 422, "Expected"),
        (PUBLISH, b'{"headers": ' * 15_000, 422, "Expected"),
        (PUBLISH, b"[" * 100_000, 413, "found more than 50000 values"),
        (PUBLISH, b"[" + b'{"body": "a"},' * 1_000 + b'{"body": "a"}]', 422, "found 1001 messages, expected 1 to"),
        (PUBLISH, b"7", 422, "Expected"),
        (PUBLISH, b"[]", 422, "found 0 messages, expected 1 to"),
        (PUBLISH, b"{}", 422, "found neither body nor body_base64"),
        (PUBLISH, b'{"body": "a", "body_base64": "YQ=="}', 422, "found both"),
        (PUBLISH, b'{"body": ""}', 422, "found an empty body"),
        (PUBLISH, b'{"body": 1}', 422, "$.body"),
        (PUBLISH, b'{"body": "a", "boddy": 1}', 422, "unknown field `boddy`"),
        (PUBLISH, b'{"body_base64": "!"}', 422, "expected base64"),
        (PUBLISH, b'{"body": "a", "headers": {"UNIQ_KEY": "x"}}', 422, "rename it"),
        (PUBLISH, b'{"body": "a", "headers": {"a\\u0001": "x"}}', 422, "property name"),
        (PUBLISH, b'{"body": "a", "headers": {"a": "%s"}}' % (b"x" * 40_000), 422, "properties"),
        (
            PUBLISH,
            b'{"body": "%s"}' % (b"x" * 100_001),
            413,
            "found a message of 100001 bytes, expected at most 100000",
        ),
        (PUBLISH, b'{"body": "%s"}' % (b"x" * 300_000), 413, "expected at most 200000"),
        ("/v1/topics/no%20name/messages", b'{"body": "a"}', 422, "topic"),
        ("/v1/topics/SCHEDULE_TOPIC_XXXX/messages", b'{"body": "a"}', 403, "forbidden"),
        (RECEIVE, b'{"topic": "nowhere"}', 404, "create it with PUT"),
        (RECEIVE, b'{"topic": "nowhere", "max": 33}', 422, "$.max"),
        (RECEIVE, b'{"topic": "nowhere", "wait_s": 1e9}', 422, "$.wait_s"),
        (RECEIVE, b'{"topic": "nowhere", "invisible_s": 0}', 422, "$.invisible_s"),
        (RECEIVE, b'{"max": 1}', 422, "`topic`"),
        ("/v1/groups/no%20name/receive", b'{"topic": "there"}', 422, "group"),
        ("/v1/groups/g/ack", b'{"receipts": []}', 422, "$.receipts"),
        ("/v1/groups/g/ack", b'{"receipts": ["WzFd"]}', 422, "expected a receipt"),
        ("/v1/groups/g/nack", b'{"receipts": ["x"], "delay_s": -1}', 422, "$.delay_s"),
        ("/v1/nothing", b"{}", 404, "Not Found"),
    ],
)
def test_bad_requests(door: Door, path: str, content: bytes, status: int, expected: str) -> None:
    """Each is a problem that says what was found and expected."""
    found = door.refused("POST", path, content=content, headers=JSON)
    assert (found[0], expected in found[1]) == (status, True), found


def test_wrong_kinds_of_request(door: Door) -> None:
    """Another content type, method, key, or a page of another site."""
    message = {"body": "x"}
    assert door.refused("POST", PUBLISH, data=message)[0] == 415
    assert door.refused("POST", RECEIVE, content=b"{}", headers={"Content-Type": "text/plain"})[0] == 415
    assert door.refused("GET", PUBLISH)[0] == 405
    assert door.refused("POST", PUBLISH, json=message, headers={"Idempotency-Key": "a b"})[0] == 422
    assert door.refused("POST", PUBLISH, json=[message] * 33, headers={"Idempotency-Key": "k"})[0] == 422
    assert door.refused("POST", PUBLISH, json=message, headers={"Origin": "http://evil.example"})[0] == 403
    assert door.refused("POST", PUBLISH, json=message, headers={"Host": "evil.example"})[0] == 403
    assert door.refused("POST", PUBLISH, json=[message] * 1_001)[0] == 422
