"""`mqtrail mirror`: a run, offsets and status as commands, and options that are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mqtrail.cli.exits import Exit
from mqtrail.client import Message, MessageQueue, SyncAdmin, SyncProducer
from mqtrail.mirror import origin_of, read_mirror
from mqtrail.mirror.state import FILES
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import SubscriptionGroupConfig
from tests.cli.conftest import Command, commands
from tests.waiting import wait_until

from .test_run import create, found_in, numbered, send


@pytest.fixture(scope="module")
def east() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture(scope="module")
def west() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def mqtrail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs one command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return commands(capsys)


@pytest.mark.slow
def test_commands(mqtrail: Command, east: Embedded, west: Embedded) -> None:
    """A run to the end, its status, and a group that moves."""
    create(east, "orders")
    create(west, "orders")
    send(east, "orders", numbered("orders", 5))
    assert mqtrail("mirror", "status").code == Exit.CANNOT_LOOK
    both = ("--source", east.namesrv_address, "--namesrv", west.namesrv_address)
    same = mqtrail("mirror", "run", "orders", "--once", *both)
    assert (same.code, "found the name 'DefaultCluster' for both clusters" in same.err) == (Exit.FAILED, True)
    done = mqtrail("mirror", "run", "orders", "orders", "--once", "--target-name", "west", *both)
    assert done.code == Exit.OK, done.err
    assert "5 copied; 0 messages behind the source" in done.out
    with FILES.alone(Path("mirror")):
        facts = json.loads(mqtrail("mirror", "status", "--json").out)
    assert (facts["is_running"], facts["lag"], facts["counts"]) == (True, 0, {"copied": 5})
    assert "DefaultCluster, 2 queues of orders" in mqtrail("mirror", "status").out
    for cluster in (east, west):
        with SyncAdmin(cluster.namesrv_address) as admin:
            assert admin.create_group(SubscriptionGroupConfig("billing")).complete
    with SyncAdmin(east.namesrv_address) as admin:
        admin.set_offset("billing", MessageQueue("orders", "broker-a", 0), 2)
        admin.set_offset("billing", MessageQueue("orders", "broker-a", 1), 1)
    shown = mqtrail("mirror", "offsets", "billing", *both)
    assert (shown.code, "nothing was written: pass --apply" in shown.out) == (Exit.OK, True)
    assert "0 repeated, 0 skipped, 0 without a copy" in shown.out
    applied = json.loads(mqtrail("mirror", "offsets", "billing", "--apply", "--json", *both).out)
    assert [[queue["after"] for queue in one["queues"]] for one in applied] == [[2, 1]]
    with SyncAdmin(west.namesrv_address) as admin:
        assert admin.consumer_offset("billing", MessageQueue("orders", "broker-a", 0)) == 2


@pytest.mark.parametrize(
    ("options", "code", "found"),
    [
        (("run", "a.b"), Exit.FAILED, "a.b"),
        (("run", "t", "--source-name", "a,b"), Exit.USAGE, "--source-name: found 'a,b', expected at most 64"),
        (("run", "t", "--skip-message", "17"), Exit.USAGE, "expected BROKER/TOPIC/QUEUE@OFFSET"),
        (("run", "t", "--start", "x"), Exit.USAGE, "--start"),
        (("run", "t", "--retry-for", "x"), Exit.USAGE, "--retry-for"),
        (("run", "t", "--source-config", "none.toml"), Exit.USAGE, "found no settings file none.toml"),
        (("offsets", "g"), Exit.FAILED, "found no mirror in 'mirror'"),
        (("offsets", "a.b"), Exit.FAILED, "a.b"),
    ],
)
def test_refused(options: tuple[str, ...], code: int, found: str, mqtrail: Command) -> None:
    """What was found, what was expected, in one line, before anything is asked."""
    done = mqtrail("mirror", *options, "--source", "127.0.0.1:9")
    assert (done.code, done.out) == (code, "")
    assert found in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_killed_and_continued(east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """kill -9 while it sends, then SIGTERM: no message is missing, none is out of order, and none is there twice."""
    topic = "killed"
    create(east, topic, 4)
    create(west, topic, 4)
    queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
    with SyncProducer("test", east.namesrv_address) as producer:
        for start in range(0, 12_000, 200):
            batch = [Message(topic, b"%d" % number) for number in range(start, start + 200)]
            producer.send(batch, queue=queues[start // 200 % 4])
    command = [sys.executable, "-m", "mqtrail", "mirror", "run", topic, "--target-name", "west"]
    command += ["--source", east.namesrv_address, "--namesrv", west.namesrv_address]

    def has_copied(running: subprocess.Popen[bytes], before: int) -> bool:
        return running.poll() is not None or end_of(west, topic) > before

    for last in (signal.SIGKILL, signal.SIGTERM):
        before = end_of(west, topic)
        running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, env=os.environ)
        wait_until(partial(has_copied, running, before + 500 if last is signal.SIGKILL else 11_999))
        assert running.poll() is None, running.communicate()[1].decode()
        running.send_signal(last)
        running.communicate(timeout=60)
        assert running.returncode == (0 if last is signal.SIGTERM else -signal.SIGKILL)
    state = read_mirror(tmp_path / "mirror")
    assert state is not None
    assert (sum(state.counts.values()), state.lag()) == (12_000, 0)
    for ones, copies in zip(found_in(east, topic), found_in(west, topic), strict=True):
        assert [one.body for one in ones] == [one.body for one in copies]
        origins = [origin_of(one.properties, "DefaultCluster") for one in copies]
        assert [one.offset for one in origins if one is not None] == list(range(len(ones)))


def end_of(cluster: Embedded, topic: str) -> int:
    with SyncAdmin(cluster.namesrv_address) as admin:
        return sum(admin.max_offset(queue) for queue in admin.queues(topic))
