"""Handlers that are killed with kill -9: with an inbox each effect happens once, whatever was under way."""

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mqtrail.client import Inbox

MESSAGES = 30

SCRIPT = """
import sqlite3, sys
from mqtrail.client import Inbox
path, messages = sys.argv[1], int(sys.argv[2])
inbox = Inbox("CG", lambda: sqlite3.connect(path, timeout=60))
print("ready", flush=True)
sys.stdin.readline()
for number in range(messages):  # every message of the queue, from the start: nothing was committed to the broker
    def effect(connection):
        connection.execute("INSERT INTO bills VALUES (?)", (number,))
        connection.execute("UPDATE account SET total = total + 1")
    inbox.run(str(number), effect)
print("done", flush=True)
"""


@pytest.mark.slow
def test_kills_double_and_lose_nothing(tmp_path: Path) -> None:
    """Two members handle the same messages and are killed at random times, until one reaches the end."""
    path = tmp_path / "bills.db"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE bills (number INT); CREATE TABLE account (total INT)")
    connection.execute("INSERT INTO account VALUES (0)")
    connection.commit()
    connection.close()
    Inbox("CG", lambda: sqlite3.connect(path)).create()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for round_number in range(4):
        members = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(path), str(MESSAGES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for member in members:
            assert member.stdout is not None
            assert member.stdin is not None
            assert member.stdout.readline() == "ready\n"
            member.stdin.write("go\n")
            member.stdin.flush()
        if round_number < 3:
            time.sleep(chance.random() * 0.05)
            for member in members:
                member.kill()
        outs = [member.communicate(timeout=120)[0] for member in members]
    assert outs == ["done\n", "done\n"], f"{seed=}"
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT number FROM bills ORDER BY number").fetchall() == [
        (number,) for number in range(MESSAGES)
    ], f"{seed=}"
    assert connection.execute("SELECT total FROM account").fetchall() == [(MESSAGES,)], f"{seed=}"
    connection.close()
