"""The operators' interface against a real broker on tables: what it shows, what it changes, who may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.client import ConsumerConfig, SyncConsumer
from mqtrail.gateway import new_token
from mqtrail.testing import embedded

from ..waiting import wait_until
from .conftest import Door
from .pmq.test_interface import enter, group_of

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

    def change(self, action: str, *, dry_run: bool = False, **parameters: Any) -> Any:
        """Do a change and return its report."""
        answer = self.http.post(
            f"/v1/operator/changes?dry_run={str(dry_run).lower()}", json={"action": action, **parameters}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def unchanged(self, action: str, **parameters: Any) -> tuple[int, str]:
        """Ask for a change that is refused."""
        return self.refused("POST", "/v1/operator/changes", json={"action": action, **parameters})

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


def fates(report: Any) -> list[tuple[str, str]]:
    """Return what came of each part of a change."""
    return [(one["target"], one["fate"]) for one in report["outcomes"]]


def test_a_topics_life(desk: Desk) -> None:
    """Create, expand, refuse to lose queues, permission, delete; a dry run changes nothing."""
    planned = desk.change("create-topic", topic="life", queues=2, dry_run=True)
    assert planned["steps"] == [{"target": "life", "before": None, "after": "read 2, write 2, rw", "counts": {}}]
    assert desk.refused("GET", "/v1/operator/topics/life")[0] == 404
    assert fates(desk.change("create-topic", topic="life", queues=2)) == [("life", "DONE")]
    assert desk.change("create-topic", topic="life", queues=3)["outcomes"][0]["detail"] == "read 3, write 3, rw"
    assert "topic shrink" in desk.unchanged("create-topic", topic="life", queues=1)[1]
    assert fates(desk.change("set-topic-permission", topic="life", permission="r")) == [("life", "DONE")]
    assert desk.refused("POST", "/v1/topics/life/messages", json={"body": "x"})[0] == 403
    deleted = desk.change("delete-topic", topic="life")
    assert (deleted["steps"][0]["counts"], fates(deleted)) == ({"deleted": 0}, [("life", "DONE")])
    assert desk.unchanged("delete-topic", topic="life")[0] == 404
    for topic in ("%RETRY%stock", "TBW102", "a b"):
        assert desk.unchanged("delete-topic", topic=topic)[0] == 422


def publish_to(desk: Desk, topic: str, queue: int) -> Any:
    """Publish messages until this queue gets one; return that one. The door chooses the queues."""
    for _ in range(100):
        for sent in desk.publish(topic, {"body": "x"}):
            if sent["queue"] == queue:
                return sent
    raise AssertionError(f"none of 100 messages went to queue {queue}")


def test_shrinking_waits_for_groups(desk: Desk) -> None:
    """Publishers leave a queue at once; consumers when all groups have consumed it. No message is lost."""
    desk.change("create-topic", topic="wide", queues=2)
    publish_to(desk, "wide", 1)
    desk.change("create-group", group="slow")
    desk.change("set-offsets", group="slow", topic="wide", at_ms=0)
    plan = desk.change("shrink-topic", topic="wide", queues=1, dry_run=True)
    assert [one["target"] for one in plan["steps"]] == ["write queues", "read queues"]
    assert plan["steps"][1]["counts"] == {"pending": 1, "unreadable": 1}
    first = desk.change("shrink-topic", topic="wide", queues=1)
    assert fates(first) == [("write queues", "DONE"), ("read queues", "WAITS")]
    assert {one["queue"] for _ in range(3) for one in desk.publish("wide", {"body": "y"})} == {0}
    desk.change("set-offsets", group="slow", topic="wide", at_ms=-1)
    second = desk.change("shrink-topic", topic="wide", queues=1)
    assert fates(second) == [("read queues", "DONE")]
    assert desk.get("topics/wide")["read_queues"] == 1
    assert "topic create" in desk.unchanged("shrink-topic", topic="wide", queues=1)[1]


def test_tables_of_a_shrunk_topic_are_freed(desk: Desk) -> None:
    """Not while messages are left, unless they are dropped. When the topic grows again, the queue goes on."""
    desk.change("create-topic", topic="thin", queues=2)
    publish_to(desk, "thin", 1)
    assert "topic shrink" in desk.unchanged("free-tables", topic="thin")[1]
    desk.change("shrink-topic", topic="thin", queues=1)
    plan = desk.change("free-tables", topic="thin", dry_run=True)
    assert [(one["target"], one["before"], one["after"]) for one in plan["steps"]] == [("thin/1", "home", "no table")]
    assert plan["steps"][0]["counts"] == {"kept": 1}
    assert fates(desk.change("free-tables", topic="thin")) == [("thin/1", "WAITS")]
    assert fates(desk.change("free-tables", topic="thin", drop=True)) == [("thin/1", "DONE")]
    assert desk.unchanged("free-tables", topic="thin", drop=True)[0] == 409
    desk.change("create-topic", topic="thin", queues=2)
    (found,) = (one for one in desk.get("queues", topic="thin")["queues"] if one["queue"] == 1)
    assert (found["first"], found["next"], found["node"]) == (1, 1, "home")
    assert publish_to(desk, "thin", 1)["offset"] == 1


def test_what_cannot_move(desk: Desk) -> None:
    """A store with one database, a queue or topic that is not there, and one that has no other queue."""
    desk.change("create-topic", topic="fixed", queues=2)
    assert desk.unchanged("move-queue", topic="fixed", queue=0, node="home")[0] == 409
    desk.publish("fixed", [{"body": "x"}, {"body": "x"}])
    (queue,) = (one["queue"] for one in desk.get("queues", topic="fixed")["queues"] if one["messages"])
    assert "expected one of home" in desk.unchanged("move-queue", topic="fixed", queue=queue, node="n1")[1]
    assert "on home already" in desk.unchanged("move-queue", topic="fixed", queue=queue, node="home")[1]
    assert desk.unchanged("move-queue", topic="none", queue=0, node="home")[0] in (404, 409)


def test_a_groups_life(desk: Desk) -> None:
    """Create, pause: nothing is received; resume, delete with its offsets."""
    desk.change("create-topic", topic="quiet", queues=1)
    assert fates(desk.change("create-group", group="sleepy", retries_max=2)) == [("sleepy", "DONE")]
    assert desk.get("groups/sleepy")["retries_max"] == 2
    desk.publish("quiet", {"body": "x"})
    assert desk.change("pause-group", group="sleepy", paused=True)["outcomes"][0]["detail"] == "paused, retries 2"
    assert desk.refused("POST", "/v1/groups/sleepy/receive", json={"topic": "quiet"})[0] == 403
    desk.change("pause-group", group="sleepy", paused=False)
    assert len(desk.receive("sleepy", "quiet", wait_s=10)) == 1
    gone = desk.change("delete-group", group="sleepy")
    assert (gone["steps"][0]["counts"]["offsets"], fates(gone)) == (1, [("sleepy", "DONE")])
    assert desk.unchanged("delete-group", group="sleepy")[0] == 404
    assert desk.unchanged("pause-group", group="TOOLS_CONSUMER", paused=True)[0] == 422


def test_moving_offsets(desk: Desk) -> None:
    """To the first message, an offset, the end: counts before, offsets after; then messages come again."""
    desk.change("create-topic", topic="again", queues=1)
    desk.publish("again", [{"body": str(number)} for number in range(4)])
    got = desk.receive("reader", "again", wait_s=10)
    desk.settle("reader", "ack", [one["receipt"] for one in got])
    (step,) = desk.change("set-offsets", group="reader", topic="again", at_ms=0, dry_run=True)["steps"]
    assert (step["before"], step["after"], step["counts"]) == ("4", "0", {"skipped": 0, "repeated": 4})
    moved = desk.change("set-offsets", group="reader", topic="again", offset=1, queue=0)
    assert (fates(moved), moved["outcomes"][0]["detail"]) == ([("again/0", "DONE")], "1")
    assert [one["body"] for one in desk.receive("reader", "again", wait_s=10)] == ["1", "2", "3"]
    desk.change("set-offsets", group="reader", topic="again", at_ms=0)
    (step,) = desk.change("set-offsets", group="reader", topic="again", at_ms=-1, dry_run=True)["steps"]
    assert step["counts"] == {"skipped": 4, "repeated": 0}
    wrongs: list[dict[str, int]] = [{}, {"at_ms": 0, "offset": 0, "queue": 0}, {"offset": 1}]
    for wrong in (*wrongs, {"offset": 9, "queue": 0}, {"at_ms": 0, "queue": 7}):
        assert desk.unchanged("set-offsets", group="reader", topic="again", **wrong)[0] == 422
    assert desk.unchanged("set-offsets", group="nobody", topic="again", at_ms=0)[0] == 404


@pytest.mark.slow
def test_dead_letters_of_a_member_come_again(desk: Desk) -> None:
    """They are kept with those of its group; a letter goes to the member alone while it is there, else to the topic."""
    desk.change("create-topic", topic="heard", queues=1)
    desk.change("create-group", group="choir", retries_max=0)
    path = "/v1/groups/choir/members/alto"
    member = desk.http.put(path, json={"topics": ["heard"]}).json()["group"]
    (published,) = desk.publish("heard", {"body": "x"})
    (got,) = desk.receive(member, "heard", wait_s=10)
    desk.settle(member, "nack", [got["receipt"]], delay_s=1)
    while not desk.get("groups/choir")["dead_letters"]:
        assert desk.receive(member, "heard", wait_s=2) == []
    assert fates(desk.change("resend-messages", group="choir")) == [(published["id"], "DONE")]
    (again,) = desk.receive(member, "heard", wait_s=10)
    assert again["id"] == published["id"]
    assert desk.http.delete(path).status_code == 200
    wait_until(lambda: member not in [one["group"] for one in desk.get("groups")["groups"]])
    ((_, fate),) = fates(desk.change("resend-messages", group="choir"))
    assert fate == "FAILED"
    assert fates(desk.change("resend-messages", group="choir", to="topic")) == [(published["id"], "DONE")]


def test_broadcast_groups(desk: Desk) -> None:
    """The mode is kept; members count as online, learn the settings, and end with their group."""
    desk.change("create-topic", topic="waves", queues=1)
    plan = desk.change("create-group", group="radio", mode="broadcast", dry_run=True)
    assert plan["steps"][0]["after"] == "runs, retries 16, broadcast"
    assert fates(desk.change("create-group", group="radio", mode="broadcast")) == [("radio", "DONE")]
    number = desk.call("/api/client/consumer/register", {"name": "10.0.0.9|9"})["id"]
    names = {"consumerId": number, "consumerGroupNames": {"radio": ["waves"]}}
    own = desk.call("/api/client/consumer/registerConsumerGroup", names)["consumerGroupNameNew"]["radio"]
    joined = desk.http.put("/v1/groups/radio/members/car", json={"topics": ["waves"]}).json()["group"]
    found = {one["group"]: (one["mode"], one["online"]) for one in desk.get("groups")["groups"]}
    assert (found["radio"], found[own], found[joined][0]) == (("broadcast", 2), ("member", 1), "member")
    online = [one for one in desk.get("members")["members"] if one["group"] == "radio"]
    assert [(one["client"], one["interface"]) for one in online] == [("10.0.0.9|9", "pmq"), ("car", "http")]
    assert online[0]["seen_ms"] > 0
    members = desk.get("groups/radio")["members"]
    assert [(one["client"], one["interface"]) for one in members] == [("10.0.0.9|9", "pmq"), ("car", "http")]
    seen = group_of(desk, number, own)
    assert desk.change("pause-group", group="radio", paused=True)["outcomes"][0]["detail"].endswith("broadcast")
    newer = group_of(desk, number, own, seen["meta"]["version"])
    assert {one["stopFlag"] for one in newer["queues"].values()} == {1}
    assert desk.refused("POST", f"/v1/groups/{joined}/receive", json={"topic": "waves"})[0] == 403
    assert desk.unchanged("pause-group", group=own, paused=False)[0] == 422
    assert "found 2 members" in desk.unchanged("delete-group", group="radio")[1]
    assert fates(desk.change("delete-group", group="radio", force=True)) == [("radio", "DONE")]
    wait_until(lambda: not {own, joined} & {one["group"] for one in desk.get("groups")["groups"]})


@pytest.mark.slow
def test_dead_letters_come_again(desk: Desk) -> None:
    """A letter goes to its group alone, or to the topic; the letter stays."""
    desk.change("create-topic", topic="hard", queues=1)
    desk.change("create-group", group="picky", retries_max=0)
    (published,) = desk.publish("hard", {"body": "x", "key": "hard-1"})
    (got,) = desk.receive("picky", "hard", wait_s=10)
    desk.settle("picky", "nack", [got["receipt"]], delay_s=1)
    assert "found no message in %DLQ%picky" in desk.unchanged("resend-messages", group="picky")[1]
    while not desk.get("groups/picky")["dead_letters"]:
        assert desk.receive("picky", "hard", wait_s=2) == []  # the door moves it when the group would get it again
    plan = desk.change("resend-messages", group="picky", dry_run=True)
    assert [one["target"] for one in plan["steps"]] == [published["id"]]
    done = desk.change("resend-messages", group="picky", ids=[published["id"], "none"])
    assert (fates(done), len(done["warnings"])) == ([(published["id"], "DONE")], 1)
    (again,) = desk.receive("picky", "hard", wait_s=10)
    assert (again["body"], again["attempt"], again["id"]) == ("x", 1, published["id"])
    assert fates(desk.change("resend-messages", group="picky", to="topic")) == [(published["id"], "DONE")]
    assert len(desk.receive("others", "hard", wait_s=10)) == 2
    assert desk.get("groups/picky")["dead_letters"] == 1


def test_changes_are_audited(desk: Desk) -> None:
    """Who, from where, what, before, after, and what came of it; a dry run and a refusal leave no line."""
    desk.change("create-topic", topic="seen", queues=1)
    before = desk.get("audit", count=1)
    desk.change("create-topic", topic="seen", queues=2, dry_run=True)
    desk.unchanged("create-topic", topic="seen", queues=0)
    after = desk.get("audit", count=1)
    assert (after, after["problems"]) == (before, [])
    (change,) = after["changes"]
    expected = {"who": "ann", "address": "127.0.0.1", "door": "http", "action": "create-topic", "error": ""}
    assert {name: change[name] for name in expected} == expected
    assert change["parameters"] == {"topic": "seen", "queues": 1}
    assert change["steps"][0]["after"] == "read 1, write 1, rw"
    assert [one["fate"] for one in change["outcomes"]] == ["DONE"]
    assert change["ended_at"]


def test_who_may_only_look(desk: Desk) -> None:
    """Looks and dry runs, but no change."""
    viewer = {"Authorization": f"Bearer {VIEWER}"}
    body = {"action": "create-topic", "topic": "never", "queues": 1}
    assert desk.http.get("/v1/operator/topics", headers=viewer).status_code == 200
    assert desk.http.post("/v1/operator/changes?dry_run=true", json=body, headers=viewer).status_code == 200
    found = desk.refused("POST", "/v1/operator/changes", json=body, headers=viewer)
    assert (found[0], "who may only read" in found[1]) == (403, True)


@pytest.mark.parametrize(
    "body",
    ["{}", '{"action": "x"}', '{"action": "create-topic"}', "[", '{"action": "delete-topic", "topic": "t", "a": 1}'],
)
def test_what_is_no_change(desk: Desk, body: str) -> None:
    """400 or 422, with the place of the fault."""
    headers = {"Content-Type": "application/json"}
    assert desk.refused("POST", "/v1/operator/changes", content=body, headers=headers)[0] in (400, 422)


def test_the_lock(desk: Desk) -> None:
    """The process of the broker is the writer."""
    found = desk.get("lock")
    assert (found["writer"], found["starts"][0]["pid"]) == (1, os.getpid())


def test_members_of_pmqs_client(desk: Desk) -> None:
    """They count as online, and learn at once that their group is paused."""
    desk.change("create-topic", topic="stoppable", queues=1)
    desk.change("create-group", group="pm")
    consumer = enter(desk, "10.0.0.9|1", "pm", "stoppable")
    seen = group_of(desk, consumer, "pm")
    assert {one["stopFlag"] for one in seen["queues"].values()} == {0}
    desk.change("pause-group", group="pm", paused=True)
    newer = group_of(desk, consumer, "pm", seen["meta"]["version"])
    assert {one["stopFlag"] for one in newer["queues"].values()} == {1}
    assert desk.get("groups/pm")["members"] == [{"client": "10.0.0.9|1", "address": "10.0.0.9", "interface": "pmq"}]
    assert desk.unchanged("delete-group", group="pm")[0] == 409
    assert desk.unchanged("delete-topic", topic="stoppable")[0] == 409
    assert fates(desk.change("delete-topic", topic="stoppable", force=True)) == [("stoppable", "DONE")]
    assert fates(desk.change("delete-group", group="pm", force=True)) == [("pm", "DONE")]


def test_a_backlog_without_offsets_is_unknown(desk: Desk) -> None:
    """A RocketMQ member without an offset may start anywhere: neither 0 nor all."""
    config = ConsumerConfig(offset_persist_ms=3_600_000)
    with SyncConsumer("fresh", desk.running.namesrv_address, {"orders": "*"}, config=config):
        wait_until(lambda: [one for one in desk.get("subscriptions")["subscriptions"] if one["group"] == "fresh"])
        (row,) = [one for one in desk.get("subscriptions")["subscriptions"] if one["group"] == "fresh"]
        assert (row["pending"], desk.get("groups/fresh")["pending"]) == (None, None)
        (member,) = [one for one in desk.get("members")["members"] if one["group"] == "fresh"]
        assert (member["interface"], member["language"], member["seen_ms"]) == ("rocketmq", "PYTHON", None)
