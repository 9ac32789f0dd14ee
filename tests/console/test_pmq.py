"""The pages of pmq mode without a browser: their texts, the changes that addresses name, whom the console asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.datastructures import QueryParams

from mqtrail import console as console_room
from mqtrail.answers.access import Grant, Person, PersonRole, SignedOut, Visitor
from mqtrail.console import PmqPortal
from mqtrail.console.pmq.change import change_of
from mqtrail.console.pmq.messages import AskedMessages
from mqtrail.console.pmq.texts import PMQ_TEXTS, is_known
from mqtrail.console.pmq.view import PAGES, PmqView
from mqtrail.gateway import Problem
from mqtrail.pmq.operating import DoorAnswer, DoorFailed, DoorRefused, OperatedDoor

from .serving import console

ROOM = Path(console_room.__file__).parent / "pmq"
DOOR = OperatedDoor("http://127.0.0.1:1", "secret-token")


def test_every_text_is_there_in_both_languages_and_used() -> None:
    """A text that a page names exists; one that no page names is left over."""
    used = set()
    for path in ROOM.glob("*.py"):
        if path.name == "texts.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_say = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "say"
            if is_say and isinstance(first := node.args[0], ast.Constant):  # type: ignore[attr-defined]
                assert is_known(str(first.value)), f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
    of_values = {"role_name_admin", "role_name_user", "state_free", "state_used", "state_released"}
    of_values |= {"used", "empty", "silent", "unread", "expand", "shrink"}
    of_values |= {f"{name}_count" for name in ("skipped", "repeated", "unreadable", "deleted", "offsets")}
    assert set(PMQ_TEXTS) - used - of_values == set()
    for name, (english, chinese) in PMQ_TEXTS.items():
        assert re.search("[\u4e00-\u9fff]", chinese) or name == "key", name
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese)), name


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("action=create-topic&topic=t&queues=3", {"topic": "t", "queues": 3}),
        ("action=shrink-topic&topic=t&queues=1", {"topic": "t", "queues": 1}),
        ("action=set-topic-permission&topic=t&permission=r", {"topic": "t", "permission": "r"}),
        ("action=delete-topic&topic=t", {"topic": "t", "force": False}),
        (
            "action=set-node&node=n1&state=closed&kind=",
            {"node": "n1", "state": "closed", "kind": None, "force": False},
        ),
        ("action=free-tables&topic=t&drop=on", {"topic": "t", "drop": True}),
        (
            "action=move-queue&topic=t&queue=1&node=n1",
            {"topic": "t", "queue": 1, "node": "n1", "drop": False, "cancel": False},
        ),
        (
            "action=move-queue&topic=t&queue=1&node=",
            {"topic": "t", "queue": 1, "node": "", "drop": False, "cancel": True},
        ),
        ("action=create-group&group=g&retries_max=3&mode=", {"group": "g", "retries_max": 3, "mode": None}),
        ("action=pause-group&group=g&paused=true", {"group": "g", "paused": True}),
        ("action=pause-group&group=g&paused=false", {"group": "g", "paused": False}),
        ("action=delete-group&group=g&force=on", {"group": "g", "force": True}),
        ("action=set-offsets&group=g&topic=t&to=end", {"group": "g", "topic": "t", "at_ms": -1}),
        ("action=set-offsets&group=g&topic=t&queue=1&offset=7", {"group": "g", "topic": "t", "queue": 1, "offset": 7}),
        (
            "action=resend-messages&group=g&id=a&id=b&of=t&to_topic=on",
            {"group": "g", "ids": ["a", "b"], "failed_of": "t", "to": "topic"},
        ),
    ],
)
def test_the_change_that_an_address_names(address: str, expected: dict[str, Any]) -> None:
    asked = QueryParams(address)
    assert change_of(asked) == {"action": asked["action"], **expected}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "action: found ''"),
        ("action=drop", "action: found 'drop'"),
        ("action=create-topic&topic=t&queues=x", "queues: found 'x', expected a number"),
        ("action=set-offsets&group=g&topic=t&to=never", "never"),
        ("action=set-offsets&group=g&topic=t&queue=0&offset=-1", "offset: found '-1', expected a number"),
    ],
)
def test_an_address_that_names_no_change(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        change_of(QueryParams(address))


def test_messages_that_an_address_asks_for() -> None:
    asked = AskedMessages.of(QueryParams("topic=t&queue=1&offset=5&key=k"))
    assert asked.question() == {"queue": 1, "offset": 5, "from_ms": None, "key": "k"}
    assert asked.words() == ["message", "list", "t", "--queue", "1", "--offset", "5", "--key", "k"]
    with pytest.raises(ValueError, match="queue: found 'x'"):
        AskedMessages.of(QueryParams("topic=t&queue=x")).question()


def test_the_door_gets_the_name_of_who_is_logged_in() -> None:
    """At each question anew: a session that has ended asks for nobody. Without accounts the token speaks for itself."""
    people = [Person("bob", (Grant(PersonRole.VIEWER),))]

    def now() -> Person:
        if not people:
            raise SignedOut("the session is over")
        return people[0]

    visitor = Visitor(now, "10.0.0.1")
    named = PmqPortal(DOOR, names_people=True, can_change=True)
    assert named.of(visitor).acts_for == "bob"
    assert PmqPortal(DOOR, names_people=False, can_change=True).of(visitor).acts_for is None
    people.clear()
    with pytest.raises(SignedOut):
        named.of(visitor)
    assert "secret-token" not in repr(named.of(Visitor(lambda: Person("x", ()), "10.0.0.1")))


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DoorRefused(403, "found bob"), 403, "found bob"),
        (DoorRefused(404, "found no topic"), 404, "found no topic"),
        (DoorRefused(401, "found another token"), 502, "found another token"),  # 401 would lead to a log-in
        (DoorRefused(503, "found that the database is away"), 502, "database is away"),
        (DoorFailed("found no answer"), 502, "found no answer"),
    ],
)
def test_a_refusal_of_the_door_is_said_on_the_page(error: Exception, status: int, words: str) -> None:
    """An answer that is none is never drawn."""
    portal = PmqPortal(DOOR, names_people=False, can_change=True)
    view = PmqView(cast("Any", None), cast("Any", None), portal, Visitor(lambda: Person("", ()), "::1"))

    def refuse(_: OperatedDoor) -> DoorAnswer:
        raise error

    with pytest.raises(Problem, match=words) as raised:
        view.asking(refuse)()
    assert raised.value.status == status


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A console over a door that does not answer, without changes."""
    folder = tmp_path_factory.mktemp("pmq")
    token = folder / "token"
    token.write_text("t\n")
    token.chmod(0o600)
    options = ("--pmq", "http://127.0.0.1:1", "--token-file", str(token))
    with console(None, "", *options, data=folder) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "path", [path for path, _ in PAGES] + ["/pmq/topic?name=x", "/pmq/group?name=x", "/pmq/count?topic=x&from=1h"]
)
def test_every_page_opens_while_the_door_is_away(pages: httpx.Client, path: str) -> None:
    """Its parts say why; the address of the door's token is in none."""
    answer = pages.get(path)
    assert (answer.status_code, "frame-ancestors 'none'" in answer.headers["content-security-policy"]) == (200, True)


def test_pages_of_pmq_mode_beside_others(tmp_path: Path) -> None:
    """With a name server the console has both, and each leads to the other."""
    token = tmp_path / "token"
    token.write_text("t\n")
    token.chmod(0o600)
    options = ("--pmq", "http://127.0.0.1:1", "--token-file", str(token), "--allow-changes")
    with console(None, "127.0.0.1:1", *options, data=tmp_path) as url, httpx.Client(base_url=url, timeout=60) as client:
        for path in ("/", "/pmq", "/pmq/change?action=pause-group&group=g"):
            page = client.get(path)
            assert page.status_code == 200
            assert '"href":"/pmq"' in page.text.replace("&quot;", '"').replace('\\"', '"'), path
            assert "/dead-letters" in page.text


def test_a_console_of_a_door_alone(pages: httpx.Client) -> None:
    """Its first page is that of pmq mode; without --allow-changes it has no page of a change."""
    assert pages.get("/").headers["location"] == "/pmq"
    assert pages.get("/groups").status_code == 404
    for path in ("/pmq/change?action=pause-group&group=g&paused=true", "/pmq/send?topic=t"):
        assert pages.get(path).status_code == 404
