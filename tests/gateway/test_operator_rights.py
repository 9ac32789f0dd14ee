"""Roles at the operators' interface: admins, owners and users, by their own tokens and through a console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtrail.gateway import new_token, read_rules
from mqtrail.testing import embedded
from mqtrail.wire import ACTS_FOR_HEADER, InvalidParameter

from .conftest import Door

ADMIN, ADMIN_HASH = new_token()
OWNER, OWNER_HASH = new_token()
USER, USER_HASH = new_token()
PORTAL, PORTAL_HASH = new_token()
RULES = f"""
[topics.orders]
owners = ["bob"]
[topics.closed]
groups = ["billing"]
[groups.stock]
owners = ["bob"]
deny = ["10.9.9.9"]
[operators.ann]
tokens = ["{ADMIN_HASH}"]
[operators.bob]
tokens = ["{OWNER_HASH}"]
role = "user"
[operators.uma]
tokens = ["{USER_HASH}"]
role = "user"
[operators."李"]
role = "user"
[operators.vic]
read_only = true
[operators.portal]
tokens = ["{PORTAL_HASH}"]
acts_for = true
"""


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A door with rules: bob owns the topic `orders` and the group `stock`, which consumes it."""
    folder: Path = tmp_path_factory.mktemp("rights")
    (folder / "rules.toml").write_text(RULES)
    url = f"sqlite:///{folder}/m.db"
    with embedded(folder / "data", store_url=url, http=True, http_rules=folder / "rules.toml") as running:
        one = Door(running)
        with one.http:
            for topic in ("orders", "other", "closed"):
                assert one.http.put(f"/v1/topics/{topic}", json={"queues": 1}).status_code == 200
                one.publish(topic, [{"body": "secret", "key": "k"}])
            for topic in ("orders", "other"):
                assert one.receive("stock", topic, wait_s=10)
            yield one


def act(door: Door, token: str, body: dict[str, Any], *, dry_run: bool = True, acts_for: str = "") -> int:
    """Return the status of a change."""
    headers = {"Authorization": f"Bearer {token}"} | ({ACTS_FOR_HEADER: acts_for} if acts_for else {})
    path = f"/v1/operator/changes?dry_run={str(dry_run).lower()}"
    return door.http.post(path, json=body, headers=headers).status_code


OF_TOPIC = {"action": "set-topic-permission", "topic": "orders", "permission": "rw"}
OF_OTHER = {**OF_TOPIC, "topic": "other"}
OF_GROUP = {"action": "pause-group", "group": "stock", "paused": False}
NEW_GROUP = {"action": "create-group", "group": "mine"}
MOVE_QUEUE = {"action": "move-queue", "topic": "orders", "queue": 0, "node": "home"}
MOVE = {"action": "set-offsets", "group": "stock", "topic": "other", "at_ms": 0}
TO_TOPIC = {"action": "resend-messages", "group": "stock", "to": "topic"}


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("body", "by_owner"),
    [(OF_TOPIC, 200), (OF_OTHER, 403), (OF_GROUP, 200), (NEW_GROUP, 403), (MOVE, 200), (TO_TOPIC, 403)],
)
def test_an_owner_changes_what_it_owns(door: Door, body: dict[str, Any], by_owner: int, dry_run: bool) -> None:
    """Also the plan is refused to others. A user without anything changes nothing."""
    assert act(door, OWNER, body, dry_run=dry_run) == by_owner
    assert act(door, USER, body, dry_run=dry_run) == 403
    assert act(door, ADMIN, body) in (200, 409)


def test_databases_are_for_admins(door: Door) -> None:
    """A change without an owner, such as the move of a queue to another database, is refused to all others."""
    assert act(door, OWNER, MOVE_QUEUE) == 403
    assert act(door, ADMIN, MOVE_QUEUE) != 403


def test_the_refusal_names_who_may(door: Door) -> None:
    headers = {"Authorization": f"Bearer {USER}"}
    status, detail = door.refused("POST", "/v1/operator/changes", json=OF_TOPIC, headers=headers)
    assert (status, "'uma'" in detail, "an owner of the topic 'orders' or an admin" in detail) == (403, True, True)


@pytest.mark.parametrize(
    ("name", "topic", "expected"),
    [
        ("ann", "closed", 200),
        ("bob", "orders", 200),  # its owner
        ("bob", "other", 200),  # its group consumes it
        ("bob", "closed", 403),
        ("uma", "orders", 403),
    ],
)
def test_who_reads_bodies(door: Door, name: str, topic: str, expected: int) -> None:
    """By place and by id; a list without bodies is for all operators."""
    headers = {"Authorization": f"Bearer {PORTAL}", ACTS_FOR_HEADER: name}
    (row,) = door.http.get(f"/v1/operator/topics/{topic}/messages", headers=headers).json()["messages"]
    for path in (f"messages?id={row['id']}", "queues/0/messages/0"):
        answer = door.http.get(f"/v1/operator/topics/{topic}/{path}", headers=headers)
        assert (answer.status_code, "secret" in answer.text) == (expected, expected == 200)


def test_a_group_that_may_not_receive_gives_no_right_to_bodies(door: Door) -> None:
    """An owner may move the group on any topic, which makes it one of the topic's consumers."""
    moved = {**MOVE, "topic": "closed"}
    assert act(door, OWNER, moved, dry_run=False) == 200
    path = "/v1/operator/topics/closed/queues/0/messages/0"
    assert door.refused("GET", path, headers={"Authorization": f"Bearer {OWNER}"})[0] == 403


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bob", 200), ("uma", 403), ("%E6%9D%8E", 403), ("ann", 200), ("none", 403), ("portal", 403), ("vic", 403)],
)
def test_a_console_asks_for_a_person(door: Door, name: str, expected: int) -> None:
    """The rights are those of the person, not those of the console's token."""
    assert act(door, PORTAL, OF_TOPIC, dry_run=False, acts_for=name) == expected


def test_no_other_operator_asks_for_a_person(door: Door) -> None:
    """An owner cannot become an admin by a header."""
    assert act(door, OWNER, OF_OTHER, acts_for="ann") == 403


def test_the_audit_log_names_the_person_and_the_console(door: Door) -> None:
    assert act(door, PORTAL, OF_TOPIC, dry_run=False, acts_for="bob") == 200
    found = door.http.get("/v1/operator/audit?count=1", headers={"Authorization": f"Bearer {USER}"}).json()
    assert (found["changes"][0]["who"], found["changes"][0]["door"]) == ("bob", "http, portal")


def test_the_rules_are_shown_without_tokens(door: Door) -> None:
    """Who asks, what it owns, and the lists of topics and groups."""
    headers = {"Authorization": f"Bearer {PORTAL}", ACTS_FOR_HEADER: "bob"}
    answer = door.http.get("/v1/operator/rules", headers=headers)
    assert "sha256" not in answer.text
    found = answer.json()
    shown = (found["name"], found["role"], found["own_topics"], found["own_groups"], found["through"])
    assert shown == ("bob", "user", ["orders"], ["stock"], "portal")
    (group,) = found["groups"]
    assert group == {"group": "stock", "owners": ["bob"], "tokens": 0, "allow": [], "deny": ["10.9.9.9"]}
    assert next(one for one in found["operators"] if one["name"] == "ann")["tokens"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[topics.t]\nowners = ["bob"]', "owner 'bob' of topic 't' is no operator"),
        ('[groups.g]\nowners = ["bob"]', "owner 'bob' of group 'g' is no operator"),
        ("[operators.ann]", "operator 'ann' has no tokens"),
        ("[operators.ann]\nacts_for = true", "operator 'ann' has no tokens"),
        ('[operators.ann]\nrole = "root"', "role"),
    ],
)
def test_rules_of_operators_that_cannot_be_used(text: str, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        read_rules(text, "rules.toml")
