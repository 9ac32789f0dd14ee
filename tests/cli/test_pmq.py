"""`mqtrail pmq up` as a process: ready, killed, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Command

COUNT = 200  # requests; the process is killed when a third of them has been answered
SENDERS = 8


@contextmanager
def pmq_up(data: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run it until the block ends; yield the process and the event `ready`."""
    flags = ("--json", "--data", str(data), "--port", "0", "--namesrv-port", "0", "--broker-port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "mqtrail", "pmq", "up", *flags], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def publish(client: httpx.Client, number: int) -> bool:
    """Publish one request of two messages; return whether it was acknowledged."""
    try:
        answer = client.post(
            "/v1/topics/orders/messages",
            json=[{"body": f"{number}a"}, {"body": f"{number}b"}],
            headers={"Idempotency-Key": str(number)},
        )
    except httpx.TransportError:
        return False
    assert answer.status_code == 200, answer.text
    return True


def drain(client: httpx.Client) -> list[str]:
    """Receive and acknowledge until nothing is left; return the bodies."""
    bodies: list[str] = []
    while True:
        answer = client.post("/v1/groups/g/receive", json={"topic": "orders", "max": 32}).json()["messages"]
        if not answer:
            return bodies
        bodies += [one["body"] for one in answer]
        client.post("/v1/groups/g/ack", json={"receipts": [one["receipt"] for one in answer]}).raise_for_status()


@pytest.mark.slow
def test_a_killed_door_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle: what was acknowledged is there; requests that are repeated are stored once."""
    data = tmp_path / "data"
    acknowledged = []
    with pmq_up(data) as (process, ready), ThreadPoolExecutor(SENDERS) as threads:
        assert Path(ready["store"].removeprefix("sqlite:///")) == data / "messages.db"
        with httpx.Client(base_url=ready["http"], timeout=60) as client:
            assert client.get("/healthz").text == "ok\n"
            sent = [threads.submit(publish, client, number) for number in range(COUNT)]
            for number, one in enumerate(sent):
                if one.result():
                    acknowledged.append(number)
                if len(acknowledged) == COUNT // 3:
                    os.kill(process.pid, signal.SIGKILL)
    assert len(acknowledged) < COUNT, "the kill came too late"
    with pmq_up(data) as (process, ready), httpx.Client(base_url=ready["http"], timeout=60) as client:
        before = drain(client)
        assert {f"{number}{part}" for number in acknowledged for part in "ab"} <= set(before)
        assert all(publish(client, number) for number in range(COUNT))
        assert sorted([*before, *drain(client)]) == sorted(
            f"{number}{part}" for number in range(COUNT) for part in "ab"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_wrong_options_are_refused(mqtrail: Command, tmp_path: Path) -> None:
    """Exit code 2 or 1, one line with found and expected."""
    for flags, expected in (
        (("--data", str(tmp_path / "a?b")), "with a question mark"),
        (("--db", "nonsense"), "expected"),
        (("--set", "node.broker_names=['a','b']"), "found"),
    ):
        done = mqtrail("pmq", "up", "--data", str(tmp_path / "d"), *flags)
        assert (done.code in (1, 2), done.err.count("\n")) == (True, 1), done.err
        assert expected in done.err


def test_a_taken_port_is_refused(mqtrail: Command, tmp_path: Path) -> None:
    """The error names the port."""
    import socket

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        done = mqtrail(
            "pmq", "up", "--data", str(tmp_path / "d"), "--port", port, "--namesrv-port", "0", "--broker-port", "0"
        )
    assert (done.code, f"cannot listen on 127.0.0.1:{port} for HTTP" in done.err) == (1, True), done.err
