"""`mqtrail pmq topic|queue|group|…` over a door and over its database: output, exit codes, refusals."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from mqtrail.gateway import new_token
from mqtrail.node import Node
from mqtrail.pmq.operating import DoorAnswer, OperatedDoor, failures, topic_report
from mqtrail.pmq.operating.reports import DAY_MS, advised
from mqtrail.testing import Embedded, embedded, embedded_config

from .conftest import Command, commands

TOKEN, HASH = new_token()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("portal")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Embedded]:
    """A door with an operator: a topic `orders` with two queues and 6 messages, of which the group `stock` read 2."""
    rules = folder / "rules.toml"
    rules.write_text(f'[operators.ann]\ntokens = ["{HASH}"]\n')
    url = f"sqlite:///{folder}/m.db"
    with embedded(folder / "data", store_url=url, http=True, http_rules=rules) as running:
        with httpx.Client(base_url=running.http_url, timeout=60) as http:
            http.put("/v1/topics/orders", json={"queues": 2}).raise_for_status()
            messages = [{"body": f"häl\x1b[0mlo {number}", "key": f"k{number}"} for number in range(3)]
            for _ in range(2):
                http.post("/v1/topics/orders/messages", json=messages).raise_for_status()
            got = http.post("/v1/groups/stock/receive", json={"topic": "orders", "max": 2, "wait_s": 10}).json()
            receipts = [one["receipt"] for one in got["messages"]]
            http.post("/v1/groups/stock/ack", json={"receipts": receipts}).raise_for_status()
        yield running


@pytest.fixture
def pmq(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs `mqtrail pmq …` on the door, as its operator, without a terminal."""
    monkeypatch.setenv("MQTRAIL_OPERATOR_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    run = commands(capsys)
    return lambda *words: run("pmq", *words, "--url", server.http_url)


def test_topics_and_queues(pmq: Command) -> None:
    """JSON has what the door answers; a table has the same numbers."""
    (row,) = [one for one in pmq("topic", "list", "--json").json["topics"] if one["topic"] == "orders"]
    assert (row["write_queues"], row["messages"], row["groups"]) == (2, 6, ["stock"])
    shown = pmq("topic", "show", "orders", "--json").json
    assert [one["queue"] for one in shown["queues"]] == [0, 1]
    assert [one["group"] for one in shown["subscriptions"]] == ["stock"]
    drawn = pmq("topic", "show", "orders")
    assert (drawn.code, "stock" in drawn.out) == (0, True)
    queues = pmq("queue", "list", "--topic", "orders", "--tables", "--json").json["queues"]
    assert sum(one["messages"] for one in queues) == 6
    assert "message_" in pmq("queue", "list", "--tables").out
    assert "last stored (UTC)" in pmq("topic", "list").out


def test_groups_and_subscriptions(pmq: Command) -> None:
    """The backlog in all and by queue."""
    (row,) = pmq("group", "list", "--json").json["groups"]
    assert (row["group"], row["pending"]) == ("stock", 4)
    assert sum(one["pending"] for one in pmq("group", "show", "stock", "--json").json["queues"]) == 4
    assert "no members" in pmq("group", "show", "stock").out
    assert [
        one["topic"] for one in pmq("subscription", "list", "--group", "stock", "--json").json["subscriptions"]
    ] == ["orders"]
    assert pmq("subscription", "list", "--group", "none").out == "no rows\n"


def test_the_backlog_and_who_asks(pmq: Command) -> None:
    """What is stored, consumed and pending for each group and topic; the operator and its role."""
    (row,) = [one for one in pmq("backlog", "--json").json["backlog"] if one["group"] == "stock"]
    assert (row["topic"], row["stored"], row["consumed"], row["pending"]) == ("orders", 6, 2, 4)
    assert "stock" in pmq("backlog").out
    found = pmq("rules", "--json").json
    assert (found["name"], found["role"], found["operators"][0]["tokens"]) == ("ann", "admin", 1)
    assert "role: admin" in pmq("rules").out


def test_members_and_failures(pmq: Command) -> None:
    """No client is connected, and nothing failed."""
    assert pmq("member", "list", "--group", "stock", "--json").json == {"members": []}
    assert pmq("member", "list").out == "no rows\n"
    assert pmq("failure", "list", "--json").json == {"failures": []}


def test_a_failure_topic_belongs_to_the_group_whose_topic_exists() -> None:
    """`a_b_c_fail` may be of the group `a` or of `a_b`; the topic `c` says which. Without it both are named."""
    answers: dict[str, Any] = {
        "groups": {"groups": [{"group": name, "dead_letters": count} for name, count in (("a", 2), ("a_b", 0))]},
        "topics": {"topics": [{"topic": name, "messages": count} for name, count in (("a_b_c_fail", 1), ("c", 9))]},
    }

    class Door:
        def get(self, path: str) -> DoorAnswer:
            found: DoorAnswer = json.loads(json.dumps(answers[path]), object_hook=DoorAnswer)
            return found

    def shown() -> list[tuple[str, str, str, int]]:
        found = failures(cast("OperatedDoor", Door())).rows("failures")
        return [(one["group"], one["of"], one["topic"], one["messages"]) for one in found]

    letters, of_c = ("a", "", "%DLQ%a", 2), ("a_b", "c", "a_b_c_fail", 1)
    assert shown() == [letters, of_c]
    del answers["topics"]["topics"][1]
    assert shown() == [letters, ("a", "b_c", "a_b_c_fail", 1), of_c]


def test_messages_are_counted_between_times(pmq: Command) -> None:
    assert pmq("topic", "count", "orders", "--from", "1h", "--json").json["messages"] == 6
    assert pmq("topic", "count", "orders", "--from", "2h", "--to", "1h", "--json").json["messages"] == 0
    assert "messages: 6" in pmq("topic", "count", "orders", "--from", "1h").out
    assert pmq("topic", "count", "none", "--from", "1h").code == 1


def test_reports(pmq: Command) -> None:
    """By queue, topic and node: sums agree; a rate of messages that are minutes old is unknown."""
    queues = pmq("report", "queues", "--topic", "orders", "--json").json["queues"]
    assert (sum(one["messages"] for one in queues), {one["node"] for one in queues}) == (6, {"home"})
    assert all(one["first_stored_ms"] <= one["last_stored_ms"] for one in queues if one["messages"])
    (topic,) = [one for one in pmq("report", "topics", "--json").json["topics"] if one["topic"] == "orders"]
    assert (topic["messages"], topic["state"], topic["per_day"], topic["advice"]) == (6, "used", None, None)
    (node,) = pmq("report", "nodes", "--json").json["nodes"]
    assert (node["node"], node["messages"] >= 6) == ("home", True)
    for kind in ("topics", "queues", "nodes"):
        assert "messages" in pmq("report", kind).out


@pytest.mark.parametrize(
    ("per_day", "queues", "expected"),
    [
        (None, 4, (None, None)),
        (2_000_001, 2, ("expand", 3)),
        (2_000_000, 2, (None, None)),
        (999_999, 2, ("shrink", 1)),
        (1_000_000, 2, (None, None)),
        (5, 1, (None, None)),
        (0, 4, ("shrink", 1)),
    ],
)
def test_advice_about_the_number_of_queues(
    per_day: int | None, queues: int, expected: tuple[str | None, int | None]
) -> None:
    assert advised(per_day, queues) == expected


def test_a_rate_per_day_of_old_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two days of messages; a queue without messages counts nothing; one with unknown age makes the sum unknown."""
    base = {"table": None, "size": None, "first": 0, "next": 9, "last_stored_ms": 1, "topic": "t"}
    rows = [{**base, "queue": number, "messages": count} for number, count in enumerate((200, 100, 0))]
    answers: dict[str, Any] = {
        "queues": {"queues": rows},
        "topics": {
            "topics": [{"topic": "t", "write_queues": 3, "messages": 300, "groups": [], "last_stored_ms": 9 * DAY_MS}]
        },
        "ages": {"queues": [{"topic": "t", "queue": one, "first_stored_ms": first} for one, first in ((0, 0), (1, 0))]},
    }

    class Door:
        def get(self, path: str, **_: object) -> DoorAnswer:
            found: DoorAnswer = json.loads(json.dumps(answers[path]), object_hook=DoorAnswer)
            return found

    monkeypatch.setattr("mqtrail.pmq.operating.reports.now_ms", lambda: 10 * DAY_MS)
    door = cast("OperatedDoor", Door())
    (row,) = topic_report(door)["topics"]
    assert (row["per_day"], row["advice"], row["wanted"], row["state"]) == (30, "shrink", 1, "unread")
    answers["ages"]["queues"][0]["first_stored_ms"] = 10 * DAY_MS - 60_000
    (row,) = topic_report(door)["topics"]
    assert (row["per_day"], row["advice"]) == (None, None)


def test_a_message_is_sent_and_its_body_not_recorded(pmq: Command) -> None:
    """The send tool of the portal; the log has the size."""
    assert pmq("topic", "create", "tool", "--queues", "1").code == 0
    done = pmq("message", "send", "tool", "--body", "pssst", "--key", "k", "--tag", "t", "--yes", "--json").json
    assert done["outcomes"][0]["fate"] == "DONE"
    (row,) = pmq("message", "list", "tool", "--json").json["messages"]
    assert (row["key"], row["tag"], row["size"]) == ("k", "t", 5)
    audited = pmq("audit", "--limit", "1", "--json")
    assert ("pssst" in audited.out, audited.json["changes"][0]["steps"][0]["after"]) == (False, "a message of 5 bytes")
    assert pmq("message", "send", "none", "--body", "x", "--yes").code == 1
    assert pmq("message", "send", "%DLQ%stock", "--body", "x", "--yes").code == 1


def test_messages(pmq: Command) -> None:
    """A list, one message whole, and texts of other programs as what they are."""
    rows = pmq("message", "list", "orders", "--limit", "4", "--json").json["messages"]
    assert len(rows) == 4
    (one,) = pmq("message", "show", "orders", "--id", rows[0]["id"], "--json").json["messages"]
    assert one["body"].startswith("häl\x1b[0mlo")
    shown = pmq("message", "show", "orders", "--queue", str(one["queue"]), "--offset", str(one["offset"]))
    assert (shown.code, "häl\\x1b[0mlo" in shown.out, "property KEYS: k" in shown.out) == (0, True, True)
    assert len(pmq("message", "list", "orders", "--key", "k1", "--json").json["messages"]) == 2
    assert len(pmq("message", "list", "orders", "--from", "1h", "--json").json["messages"]) == 6
    assert pmq("message", "show", "orders", "--id", "none").code == 1
    for wrong in (("--offset", "1"), ("--key", "a", "--from", "1h")):
        assert pmq("message", "list", "orders", *wrong).code == 2
    assert pmq("message", "show", "orders", "--queue", "0").code == 2


def test_the_node_and_its_database(pmq: Command, mqtrail: Command, server: Embedded, folder: Path) -> None:
    """The same database through the door and by itself, where free tables are listed too."""
    by_door = pmq("node", "--json").json
    assert by_door["broker"] == "broker-a"
    db = f"sqlite:///{folder}/m.db"
    by_itself = mqtrail("pmq", "node", "--db", db, "--json").json
    assert by_itself["database"]["writer"] == by_door["database"]["writer"]
    by_door = pmq("lock", "--json").json
    by_itself = mqtrail("pmq", "lock", "--db", db, "--json").json
    assert by_itself["starts"] == by_door["starts"]
    assert str(by_door["starts"][0]["pid"]) in pmq("lock").out
    assert "database dialect: sqlite" in mqtrail("pmq", "node", "--db", db).out
    tables = mqtrail("pmq", "queue", "list", "--db", db, "--json").json["queues"]
    assert {one["state"] for one in tables} == {"free", "used"}
    assert sum(one["next"] - one["first"] for one in tables if one["topic"] == "orders") == 6
    assert mqtrail("pmq", "queue", "list", "--db", db, "--topic", "orders").out.count("message_") == 2


def _two_databases(folder: Path, db: str) -> Node:
    """Return a door over two databases, with an operator."""
    rules = folder / "rules.toml"
    rules.write_text(f'[operators.ann]\ntokens = ["{HASH}"]\n')
    config = embedded_config(folder / "data", store_url=db, http=True, http_rules=rules)
    return Node(replace(config, store_nodes=f"n1=sqlite:///{folder}/n1.db"))


async def test_a_queue_moves(mqtrail: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers leave it at once; it goes on at its offset in the other database. Until then that can be cancelled."""
    monkeypatch.setenv("MQTRAIL_OPERATOR_TOKEN", TOKEN)
    node = _two_databases(tmp_path, f"sqlite:///{tmp_path}/home.db")
    await node.start()
    url = node.http_url

    async def run(*words: str) -> Any:
        return await asyncio.to_thread(mqtrail, "pmq", *words, "--url", url)

    async def queues() -> dict[int, Any]:
        return {one["queue"]: one for one in (await run("queue", "list", "--json")).json["queues"]}

    try:
        async with httpx.AsyncClient(base_url=url) as http:

            async def publish_to(queue: int) -> int:
                while True:
                    sent = (await http.post("/v1/topics/orders/messages", json={"body": "x"})).json()["messages"][0]
                    if sent["queue"] == queue:
                        return int(sent["offset"])

            await run("topic", "create", "orders", "--queues", "2")
            for queue in range(2):
                await publish_to(queue)
            found = await queues()
            assert {one["node"] for one in found.values()} == {"home", "n1"}
            (moving,) = (queue for queue, one in found.items() if one["node"] == "home")
            words = ("queue", "move", "orders", str(moving), "--to", "n1")
            assert (await run(*words, "--dry-run", "--json")).json["steps"][0]["after"] == "n1"
            waits = await run(*words)
            assert (waits.code, "messages that retention keeps" in waits.out) == (1, True)
            assert not (await queues())[moving]["writable"]
            assert await publish_to(1 - moving) > 0
            assert (await run("queue", "move", "orders", str(moving), "--cancel")).code == 0
            assert (await queues())[moving]["writable"]
            done = await run(*words, "--drop", "--yes", "--json")
            assert (done.code, [one["fate"] for one in done.json["outcomes"]]) == (0, ["DONE"]), done.out
            at = (await queues())[moving]
            assert (at["node"], at["first"] == at["next"], at["writable"]) == ("n1", True, True)
            assert await publish_to(moving) == at["next"]
            neither = await run("queue", "move", "orders", "0")
            assert (neither.code, "--to, or --cancel" in neither.err) == (2, True)
    finally:
        await node.stop()


async def test_nodes_of_a_store(mqtrail: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed through the door and from the database; a change is shown, and refused in words if it cannot be made."""
    monkeypatch.setenv("MQTRAIL_OPERATOR_TOKEN", TOKEN)
    db = f"sqlite:///{tmp_path}/home.db"
    node = _two_databases(tmp_path, db)
    await node.start()
    try:
        words = ("pmq", "node", "list", "--url", node.http_url, "--json")
        by_door = (await asyncio.to_thread(mqtrail, *words)).json["nodes"]
        assert [(one["name"], one["kind"], one["state"], one["away"]) for one in by_door] == [
            ("home", "normal", "read-write", None),
            ("n1", "normal", "read-write", None),
        ]
        assert mqtrail("pmq", "node", "list", "--db", db, "--json").json["nodes"] == by_door
        changed = mqtrail(
            "pmq", "node", "set", "n1", "--db", db, "--state", "closed", "--kind", "failure", "--json"
        ).json
        assert (changed["state"], changed["kind"]) == ("closed", "failure")
        assert "read-only" in mqtrail("pmq", "node", "set", "n1", "--db", db, "--state", "read-only").out
        assert "n1" in mqtrail("pmq", "node", "list", "--db", db).out
        over = ("pmq", "node", "set", "--url", node.http_url, "--json")
        changed = (await asyncio.to_thread(mqtrail, *over, "n1", "--state", "closed")).json
        assert (changed["steps"][0]["before"], changed["steps"][0]["after"]) == (
            "failure, read-only",
            "failure, closed",
        )
        assert [one["detail"] for one in changed["outcomes"]] == ["failure, closed"]
        refused = await asyncio.to_thread(mqtrail, *over, "home", "--state", "closed")
        assert (refused.code, "found the home to be closed" in refused.out) == (1, True)
        refused = await asyncio.to_thread(mqtrail, *over, "n2", "--state", "closed")
        assert (refused.code, "expected one of its nodes: home, n1" in refused.err) == (1, True)
        refused = await asyncio.to_thread(mqtrail, *over, "n1", "--state", "closed", "--db", db)
        assert (refused.code, "found --db and --url" in refused.err) == (2, True)
        monkeypatch.setenv("MQTRAIL_STORE_URL", db)
        assert mqtrail("pmq", "node", "set", "n1", "--state", "read-write", "--json").json["state"] == "read-write"
        monkeypatch.delenv("MQTRAIL_STORE_URL")
        for further, code, expected in (
            (("set", "n1", "--db", db), 2, "neither --state nor --kind"),
            (("set", "n1", "--state", "closed"), 2, "found no --db"),
            (("set", "n1", "--db", db, "--state", "open"), 2, "read-write, read-only or closed"),
            (("set", "n1", "--db", db, "--kind", "big"), 2, "normal or failure"),
            (("set", "n2", "--db", db, "--state", "closed"), 1, "found no node n2"),
            (("list", "--db", f"sqlite:///{tmp_path}/none.db"), 1, "cannot be read"),
        ):
            done = mqtrail("pmq", "node", *further)
            assert (done.code, done.err.count("\n"), expected in done.err) == (code, 1, True), done.err
    finally:
        await node.stop()
    assert "no rows" in mqtrail("pmq", "node", "list", "--db", f"sqlite:///{tmp_path}/n1.db").out


def test_what_is_refused(mqtrail: Command, server: Embedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line: found, expected, remedy; exit code 1, or 2 for a wrong option."""
    monkeypatch.delenv("MQTRAIL_OPERATOR_TOKEN", raising=False)
    (tmp_path / "token").write_text("wrong\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "empty").write_text("\n")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
    url = ("--url", server.http_url)
    for words, code, expected in (
        (("topic", "list", *url), 1, "found no token"),
        (("topic", "list", *url, "--token-file", "token"), 1, "found another token"),
        (("topic", "list", *url, "--token-file", "empty"), 2, "found no token"),
        (("topic", "list", *url, "--token-file", "missing"), 2, "cannot be read"),
        (("topic", "list", *url, "--ca", "missing"), 2, "--ca: missing cannot be read"),
        (("topic", "list", "--url", f"http://127.0.0.1:{port}"), 1, "found no answer from"),
        (("topic", "list", "--url", "ftp://x"), 2, "expected the address of a door"),
        (("topic", "list", "--url", "http://a@x"), 2, "expected the address of a door"),
        (("node", "--db", f"sqlite:///{tmp_path}/none.db"), 1, "cannot be read"),
        (("node", "--db", "sqlite:///x", *url), 2, "found --db and --url"),
        (("group", "create", "g", "--mode", "all", *url), 2, "expected cluster or broadcast"),
    ):
        done = mqtrail("pmq", *words)
        assert (done.code, done.err.count("\n"), expected in done.err) == (code, 1, True), done.err
    assert not (tmp_path / "none.db").exists()


class _OtherServer(BaseHTTPRequestHandler):
    """Answers every request with the same text, and status 200."""

    answer = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


FIELDS = [
    "topics",
    "queues",
    "groups",
    "members",
    "messages",
    "changes",
    "outcomes",
    "steps",
    "subscriptions",
    "starts",
    "database",
    "problems",
]
TEXTS, ROWS = json.dumps(dict.fromkeys(FIELDS, "up")), json.dumps({name: [{"x_ms": "y"}] for name in FIELDS})
LIST = ("topic", "list")
ASKED = [
    *((answer, LIST) for answer in ("{}", "[1]", "[" * 100_000, TEXTS, ROWS)),
    *((ROWS, words) for words in (("group", "show", "g"), ("audit",))),
    *((TEXTS, words) for words in (("topic", "show", "t"), ("queue", "list"), ("group", "show", "g"))),
    *((TEXTS, words) for words in (("subscription", "list"), ("message", "list", "t"), ("node",), ("lock",))),
    *((answer, words) for answer in ("{}", ROWS, TEXTS) for words in (("backlog",), ("rules",), ("failure", "list"))),
    *((answer, ("report", kind)) for answer in ("{}", ROWS, TEXTS) for kind in ("topics", "queues", "nodes")),
    *((TEXTS, words) for words in (("audit",), ("group", "pause", "g"), ("message", "show", "t", "--id", "x"))),
]


def test_another_server_is_no_door(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever JSON it answers: one line with the remedy, or a harmless table, and never a traceback."""
    monkeypatch.setenv("MQTRAIL_OPERATOR_TOKEN", TOKEN)
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherServer) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        url = ("--url", f"http://127.0.0.1:{other.server_port}")
        for answer, words in ASKED:
            monkeypatch.setattr(_OtherServer, "answer", answer.encode())
            done = mqtrail("pmq", *words, *url)  # raises what is not an error in words
            assert not done.code or "correct --url" in done.err.splitlines()[-1], (answer[:40], words, done.err)
        other.shutdown()


def test_a_missing_package_names_its_extra(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a database needs SQLAlchemy; asking a door does not."""
    for name in [name for name in sys.modules if name.startswith("mqtrail.store.sql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    done = mqtrail("pmq", "node", "--db", "sqlite:///x")
    assert (done.code, "pip install 'mqtrail[pmq]'" in done.err) == (2, True), done.err


def test_a_door_without_operators(mqtrail: Command, folder: Path) -> None:
    """Without operators in the rules their interface is closed, also with a token."""
    import asyncio

    from mqtrail.gateway import DoorConfig, make_door
    from tests.gateway.test_bounds import FakeBroker

    async def ask() -> httpx.Response:
        app = make_door(FakeBroker(), lambda: "id", "broker-a", DoorConfig(hosts=None), asyncio.Event())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
            return await client.get("/v1/operator/topics", headers={"Authorization": f"Bearer {TOKEN}"})

    answer = asyncio.run(ask())
    assert (answer.status_code, "expected some: add [operators.NAME]" in json.loads(answer.text)["detail"]) == (
        403,
        True,
    )


def test_a_topics_life(pmq: Command) -> None:
    """A plan, a change with its outcome, a question without a terminal, and the refusal of a door."""
    assert pmq("topic", "create", "life", "--queues", "2", "--dry-run").out.endswith("nothing was changed\n")
    assert pmq("topic", "show", "life").code == 1
    made = pmq("topic", "create", "life", "--queues", "2")
    assert (made.code, "life: DONE read 2, write 2, rw" in made.out) == (0, True)
    assert "expected at most 1 queues" in pmq("topic", "create", "life", "--queues", "1").err
    assert pmq("topic", "shrink", "life", "--queues", "1", "--yes", "--json").json["outcomes"][1]["fate"] == "DONE"
    assert pmq("topic", "perm", "life", "r").code == 0
    assert pmq("topic", "perm", "life", "x").code == 2
    asked = pmq("topic", "delete", "life")
    assert (asked.code, "expected --yes" in asked.err) == (2, True)
    assert pmq("topic", "delete", "life", "--yes").out.endswith("life: DONE\n")


def test_groups_offsets_and_letters(pmq: Command) -> None:
    """What is skipped and repeated is said before; a paused group says so."""
    assert pmq("group", "create", "late", "--retries", "1").code == 0
    assert pmq("group", "create", "wide", "--mode", "broadcast").out.endswith("runs, retries 16, broadcast\n")
    assert pmq("group", "pause", "late").out.endswith("late: DONE paused, retries 1\n")
    assert pmq("group", "show", "late", "--json").json["paused"] is True
    assert pmq("group", "resume", "late").code == 0
    moved = pmq("offset", "set", "late", "orders", "--to", "first", "--yes", "--json").json
    assert [one["detail"] for one in moved["outcomes"]] == ["0", "0"]
    plan = pmq("offset", "set", "late", "orders", "--to", "end", "--dry-run", "--json").json
    assert sum(one["counts"]["skipped"] for one in plan["steps"]) == 6
    assert "skipped" in pmq("offset", "set", "late", "orders", "--to", "1h", "--queue", "0", "--dry-run").out
    assert pmq("offset", "set", "late", "orders", "--offset", "1", "--queue", "0", "--yes").code == 0
    for wrong in ((), ("--to", "first", "--offset", "1", "--queue", "0"), ("--offset", "1"), ("--to", "nonsense")):
        assert pmq("offset", "set", "late", "orders", *wrong, "--yes").code == 2
    none = pmq("message", "resend", "late", "--yes")
    assert (none.code, "found no message in %DLQ%late" in none.err) == (1, True)
    assert pmq("group", "delete", "late", "--yes").code == 0


def test_the_audit_log(pmq: Command, mqtrail: Command, folder: Path) -> None:
    """Over the door, and as a file; a line that was changed is found."""
    pmq("group", "create", "seen", "--retries", "3")
    (one,) = pmq("audit", "--limit", "1", "--json").json["changes"]
    assert (one["who"], one["action"], one["parameters"]) == (
        "ann",
        "create-group",
        {"group": "seen", "retries_max": 3, "mode": None},
    )
    assert "runs, retries 3" in pmq("audit").out
    path = folder / "data" / "audit.jsonl"
    assert mqtrail("audit", str(path), "--limit", "1", "--json").json["changes"] == [one]
    text = path.read_text()
    path.write_text(text.replace("retries 3", "retries 4", 1))
    broken = pmq("audit")
    assert (broken.code, "a line was changed" in broken.err) == (1, True)
    path.write_text(text)


def test_failed_messages_of_pmqs_client_are_sent_again(pmq: Command, server: Embedded) -> None:
    """Those whose tries are used up, with one try counted."""
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        http.put("/v1/topics/G_T_fail", json={"queues": 1}).raise_for_status()
        for tries in (1, 3):
            body = {"topicName": "G_T_fail", "msgs": [{"body": f"try {tries}", "bizId": "b", "retryCount": tries}]}
            assert http.post("/api/client/consumer/publish", json=body).json()["suc"]
    assert pmq("message", "resend", "G", "--failed-of", "T", "--yes").code == 0
    rows = pmq("message", "list", "G_T_fail", "--json").json["messages"]
    assert len(rows) == 3
    (again,) = pmq("message", "show", "G_T_fail", "--queue", "0", "--offset", "2", "--json").json["messages"]
    assert (again["body"], again["properties"]["pmq_retryCount"]) == ("try 3", "1")
