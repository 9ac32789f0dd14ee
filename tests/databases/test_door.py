"""`mqtrail pmq up` on real servers: what users see while their database is away, and when they stop the door then."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.net import ConnectionPool, RequestTimeout
from tests.node.helpers import send_command

from .servers import DatabaseServer

pytestmark = pytest.mark.databases

UNTIL_S = 60.0
MESSAGES = "/v1/topics/orders/messages"


class DoorProcess:
    """A running `mqtrail pmq up`, and a client of it."""

    def __init__(self, folder: Path, url: str, nodes: str = "", replicas: str = "") -> None:
        self._folder = folder
        stores = {"URL": url, "NODES": nodes, "REPLICAS": replicas}
        self._environment = {f"MQTRAIL_STORE_{name}": value for name, value in stores.items()}

    def __enter__(self) -> DoorProcess:
        command = ["pmq", "up", "--port", "0", "--namesrv-port", "0", "--broker-port", "0", "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mqtrail", *command, "--data", str(self._folder)],
            env={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        ready = json.loads(line)
        (self._broker,) = ready["brokers"].values()
        self.http = httpx.Client(base_url=ready["http"], timeout=UNTIL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        complaints = self.process.communicate(timeout=UNTIL_S)[1]
        return self.process.returncode, complaints

    def publish(self, body: str) -> None:
        answer = self.http.post(MESSAGES, json={"body": body})
        assert answer.status_code == 200, answer.text

    def receive(self, group: str, count: int) -> list[dict[str, Any]]:
        """Receive that many messages."""
        found: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + UNTIL_S
        while len(found) < count:
            assert time.monotonic() < deadline_s, found
            answer = self.http.post(f"/v1/groups/{group}/receive", json={"topic": "orders", "max": 32, "wait_s": 5})
            assert answer.status_code == 200, answer.text
            found += answer.json()["messages"]
        return found

    def send_unanswered(self, body: str) -> None:
        """Send as a RocketMQ client, while no send can be committed."""

        async def send() -> None:
            pool = ConnectionPool()
            with pytest.raises(RequestTimeout):
                await pool.request(self._broker, send_command("orders", body.encode()), 1_000)
            await pool.close()

        asyncio.run(send())

    def notice(self) -> None:
        """Ask something that only the database knows, and see that the door finds it away."""
        answer = self.http.post(MESSAGES, json={"body": "never"}, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, self.http.get("/healthz").status_code) == (503, 503), answer.text

    def wait_for_health(self, status: int) -> None:
        deadline_s = time.monotonic() + UNTIL_S
        while self.http.get("/healthz").status_code != status:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@contextmanager
def outage(database: DatabaseServer, kind: str) -> Iterator[None]:
    """Let the server be away."""
    (database.kill if kind == "kill" else database.pause)()
    try:
        yield
    finally:
        (database.start if kind == "kill" else database.resume)()


@pytest.mark.parametrize("kind", ["kill", "pause"])
def test_a_door_answers_while_its_database_is_away(database: DatabaseServer, tmp_path: Path, kind: str) -> None:
    """Every request gets 503 at once, which says what to do; afterwards a receipt of before still counts."""
    with DoorProcess(tmp_path, database.new_database()) as door:
        door.publish("first")
        (first,) = door.receive("g", 1)
        with outage(database, kind):
            door.send_unanswered("perhaps")
            door.notice()
            for path, body in (
                (MESSAGES, {"body": "never"}),
                ("/v1/groups/g/receive", {"topic": "orders", "wait_s": 20}),
                ("/v1/groups/g/ack", {"receipts": [first["receipt"]]}),
            ):
                answer = door.http.post(path, json=body)
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1"), answer.text
                assert "the database does not answer" in answer.json()["detail"]
        door.wait_for_health(200)
        door.publish("last")
        assert door.http.post("/v1/groups/g/ack", json={"receipts": [first["receipt"]]}).status_code == 200
        bodies = [message["body"] for message in door.receive("reader", 3)]
        assert sorted(bodies) == ["first", "last", "perhaps"]
        assert door.end()[0] == 0


def test_a_door_stops_while_its_database_is_silent(database: DatabaseServer, tmp_path: Path) -> None:
    """It says in one line what is not stored; what was acknowledged is there after the next start."""
    url = database.new_database()
    with DoorProcess(tmp_path, url) as door:
        door.publish("kept")
        with outage(database, "pause"):
            door.send_unanswered("lost")
            door.notice()
            code, complaints = door.end()
    (line,) = [line for line in complaints.splitlines() if line.startswith("mqtrail:")]
    assert (code, "that wait for a commit" in line, "Traceback" in complaints) == (1, True, False), complaints
    with DoorProcess(tmp_path, url) as door:
        door.publish("new")
        assert {"kept", "new"} <= {message["body"] for message in door.receive("reader", 2)}
