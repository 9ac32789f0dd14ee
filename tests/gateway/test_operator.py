"""The operators' interface against a real broker on tables: what it shows, what it changes, who may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.gateway import new_token
from mqtrail.testing import embedded

from .conftest import Door

TOKEN, HASH = new_token()
VIEWER, VIEWER_HASH = new_token()
RULES = f"""
[operators.ann]
tokens = ["{HASH}"]
[operators.vic]
tokens = ["{VIEWER_HASH}"]
read_only = true
"""


class Desk(Door):
    """Requests of the operator ann."""

    def get(self, path: str, **query: Any) -> Any:
        answer = self.http.get(f"/v1/operator/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A door with two operators: a topic `orders` with 5 messages in one queue, of which the group `stock` read 2."""
    folder: Path = tmp_path_factory.mktemp("operator")
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    url = f"sqlite:///{folder}/m.db"
    config = BrokerConfig(message_size_max=100_000)
    with embedded(folder / "data", broker=config, store_url=url, http=True, http_rules=rules) as running:
        one = Desk(running)
        with one.http:
            one.http.headers["Authorization"] = f"Bearer {TOKEN}"
            assert one.http.put("/v1/topics/orders", json={"queues": 1}).status_code == 200
            one.publish("orders", [{"body": f"b{number}", "key": f"k{number}", "tag": "t"} for number in range(5)])
            got = one.receive("stock", "orders", wait_s=10, max=2)
            one.settle("stock", "ack", [message["receipt"] for message in got])
            yield one


def test_who_may(desk: Desk) -> None:
    """401 without an operator's token; a topic's token is none."""
    for token, status, words in (("", 401, "expected one of an operator"), ("x", 401, "found another token")):
        found = desk.refused(
            "GET", "/v1/operator/topics", headers={"Authorization": f"Bearer {token}" if token else ""}
        )
        assert (found[0], words in found[1]) == (status, True), found


def test_topics_and_queues(desk: Desk) -> None:
    """What is stored, by topic and by queue, with the table of a queue."""
    (topic,) = [one for one in desk.get("topics")["topics"] if one["topic"] == "orders"]
    assert topic == desk.get("topics/orders")
    expected = {"read_queues": 1, "write_queues": 1, "readable": True, "writable": True, "messages": 5}
    assert {name: topic[name] for name in expected} == expected
    assert topic["groups"] == ["stock"]
    (queue,) = desk.get("queues", topic="orders", tables=True)["queues"]
    assert (queue["first"], queue["next"], queue["messages"]) == (0, 5, 5)
    assert queue["last_stored_ms"] == topic["last_stored_ms"]
    assert queue["table"].startswith("message_")
    assert desk.refused("GET", "/v1/operator/topics/none")[0] == 404


def test_groups_and_subscriptions(desk: Desk) -> None:
    """The backlog of a group, in all and by queue."""
    (row,) = desk.get("groups")["groups"]
    found = desk.get("groups/stock")
    assert {name: found[name] for name in row} == row
    expected = {"group": "stock", "paused": False, "topics": ["orders"], "pending": 3, "retrying": 0, "dead_letters": 0}
    assert {name: row[name] for name in expected} == expected
    (place,) = [one for one in found["queues"] if one["topic"] == "orders"]
    assert (place["queue"], place["offset"], place["next"], place["pending"]) == (0, 2, 5, 3)
    (subscription,) = desk.get("subscriptions")["subscriptions"]
    assert subscription == {
        "group": "stock",
        "topic": "orders",
        "tag": None,
        "online": 0,
        "pending": 3,
        "paused": False,
    }
    assert desk.refused("GET", "/v1/operator/groups/none")[0] == 404


def test_messages(desk: Desk) -> None:
    """The last ones, from an offset, from a time, by key, by id, and one whole."""
    path = "topics/orders/messages"
    tail = desk.get(path, count=2)["messages"]
    assert [one["offset"] for one in tail] == [3, 4]
    assert "body" not in tail[0]
    assert [one["offset"] for one in desk.get(path, queue=0, **{"from": 1}, count=2)["messages"]] == [1, 2]
    assert [one["offset"] for one in desk.get(path, from_ms=0)["messages"]] == [0, 1, 2, 3, 4]
    assert desk.get(path, from_ms=tail[1]["stored_ms"] + 60_000)["messages"] == []
    (by_key,) = desk.get(path, key="k3")["messages"]
    assert (by_key["offset"], by_key["key"], by_key["tag"]) == (3, "k3", "t")
    (by_id,) = desk.get(path, id=by_key["id"])["messages"]
    assert by_id == desk.get("topics/orders/queues/0/messages/3")
    assert (by_id["body"], by_id["properties"]["KEYS"]) == ("b3", "k3")
    assert desk.refused("GET", f"/v1/operator/{path}?key=a&id=b")[0] == 422
    assert desk.refused("GET", "/v1/operator/topics/orders/queues/0/messages/99")[0] == 422


def test_the_node(desk: Desk) -> None:
    """Broker and database."""
    found = desk.get("node")
    assert (found["broker"], found["away"], found["uncommitted_size"]) == ("broker-a", None, 0)
    database = found["database"]
    assert (database["dialect"], database["is_read_only"], database["writer"]) == ("sqlite", False, 1)
    assert database["size"] > 0
    assert database["tables_by_state"]["used"] >= 1
