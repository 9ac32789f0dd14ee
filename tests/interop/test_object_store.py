"""A lake on a real object server: the whole pipeline, all look-ups, and faults of the network and the store."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from interop.objects import BUCKET, SECRET_KEY, Door, Fault, ObjectServer, Request, environment, forward

from mqtrail.cli.app import run
from mqtrail.client import Consumer, Producer
from mqtrail.lake import Lake, LakePath, ObjectPath, objects, place_of
from mqtrail.pipeline import JobConfig, PipelineJob, SessionConfig
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, MQError

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP = "orders", "points"
MESSAGES = 40
FAULT_RATE = 0.03


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with ObjectServer(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def variables(server: ObjectServer) -> Iterator[None]:
    """The environment of this process names the server."""
    before = dict(os.environ)
    os.environ.update(environment(server.port))
    objects._store_of.cache_clear()
    yield
    os.environ.clear()
    os.environ.update(before)
    objects._store_of.cache_clear()


@contextmanager
def door_to(server: ObjectServer) -> Iterator[Door]:
    """Let all requests of this process go through a door that injects faults, for tables that are opened in the block.

    delta-rs blocks Python while it sets a table's properties, so the block may not set any.
    """
    with Door(forward(server.port)) as door:
        os.environ.update(environment(door.port))
        objects._store_of.cache_clear()
        try:
            yield door
        finally:
            door.fault = lambda request: None
            os.environ.update(environment(server.port))
            objects._store_of.cache_clear()


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    """A broker with traced messages, all of which are consumed."""
    with embedded() as running:
        asyncio.run(send(running.namesrv_address, 1))  # a topic that consumers find at once
        asyncio.run(exchange(running.namesrv_address, MESSAGES))
        yield running


async def send(namesrv: str, count: int) -> None:
    """Send traced messages."""
    async with Producer("shop", namesrv, trace=True) as producer:
        for number in range(count):
            await producer.send(Message(TOPIC, b"body", keys=f"more-{number}"))


async def exchange(namesrv: str, count: int) -> None:
    """Send messages and consume them, with trace."""
    consumed: set[str] = set()

    async def handler(delivery: Any) -> None:
        consumed.add(delivery.message.msg_id)

    async with (
        Producer("shop", namesrv, trace=True) as producer,
        Consumer(GROUP, namesrv, {TOPIC: "*"}, trace=True) as consumer,
    ):
        consuming = asyncio.create_task(consumer.run(handler))
        sent = {(await producer.send(Message(TOPIC, b"body", keys=f"order-{n}"))).msg_id for n in range(count)}
        async with asyncio.timeout(60):
            while not sent <= consumed:
                await asyncio.sleep(0.05)
        consuming.cancel()


def job(namesrv: str, lake: LakePath, **more: Any) -> PipelineJob:
    """A pipeline without Spark: so few messages do not need it."""
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    return PipelineJob(JobConfig(namesrv=namesrv, lake=lake, **more)).use(cast(Any, spark))


def mqtrail(*arguments: str, exits: int = 0, variables: Mapping[str, str] | None = None) -> str:
    """Return the command's output; it must end with the exit code. variables: of the environment."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in {"COLUMNS": "200", "NO_COLOR": "1", **(variables or {})}.items():
            patch.setenv(name, value)
        objects._store_of.cache_clear()
        code = run(arguments)
    objects._store_of.cache_clear()
    text = out.getvalue() + err.getvalue()
    assert code == exits, f"{' '.join(arguments)}: {code}\n{text}"
    assert SECRET_KEY not in text
    return out.getvalue() + (err.getvalue() if exits else "")


def codes(lake: LakePath) -> dict[str, Any]:
    """The output of `export` for each message, without times."""
    lines = [json.loads(line) for line in mqtrail("export", "--lake", str(lake)).splitlines()]
    return {line["msg_id"]: (line["topic"], line["send"], line["groups"], line["knowledge"]) for line in lines}


def consumed(lake: LakePath) -> dict[str, Any]:
    """The output for consumed messages, whose verdicts do not change with time; and the number of others."""
    found = codes(lake)
    final = {msg_id: line for msg_id, line in found.items() if "CONSUMED" in line[2].get(GROUP, ())}
    return {**final, "others": len(found) - len(final)}


def counts(lake: LakePath) -> dict[str, int]:
    names = ("trace_events", "message_meta", "gaps")
    return {name: sum(file.row_count for file in Lake.open(lake)[name].files()) for name in names}


def test_the_server_honours_conditional_puts() -> None:
    """Of many writers of one name exactly one succeeds: every commit relies on this."""
    for name in ("a", "b", "c"):
        place = ObjectPath(BUCKET, f"conditional/{name}")

        def create(number: int, place: ObjectPath = place) -> bool:
            try:
                place.create(str(number).encode())
            except FileExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(create, range(8))) == 1
        first = place.read_bytes()
        with pytest.raises(FileExistsError):
            place.create(b"later")
        assert place.read_bytes() == first


@pytest.fixture(scope="module")
def lakes(broker: Embedded, tmp_path_factory: pytest.TempPathFactory) -> tuple[LakePath, LakePath]:
    """A lake on the server and one in a folder, of the same cluster."""
    places = (place_of(f"s3://{BUCKET}/whole"), tmp_path_factory.mktemp("whole") / "lake")
    running = [job(broker.namesrv_address, place) for place in places]
    for each in running:
        each.once()
    asyncio.run(send(broker.namesrv_address, 3))
    for each in running:
        each.once()
    return places


def test_look_ups_answer_as_on_a_disk(lakes: tuple[LakePath, LakePath]) -> None:
    """`export`, `trace` by id and by key, and `search` and `report` give the same answers."""
    remote, local = lakes
    assert consumed(remote) == consumed(local)
    [msg_id, *_] = consumed(local)
    assert "CONSUMED" in mqtrail("trace", msg_id, "--lake", str(remote))
    assert "CONSUMED" in mqtrail("trace", "order-7", "--lake", str(remote))
    mqtrail("trace", "0" * 32, "--lake", str(remote), exits=1)
    found = json.loads(mqtrail("search", "--topic", TOPIC, "--lake", str(remote), "--json"))
    assert len(found["trajectories"]) == len(codes(local))
    assert GROUP in mqtrail("report", "--lake", str(remote))


def test_silver_is_rebuilt(lakes: tuple[LakePath, LakePath], broker: Embedded) -> None:
    """`pipeline rebuild` works in the store; `migrate` refuses, with exit code 3."""
    remote, _ = lakes
    before = consumed(remote)
    assert "replace" in mqtrail("pipeline", "rebuild", "--lake", str(remote))
    assert not codes(remote)
    asyncio.run(send(broker.namesrv_address, 1))
    job(broker.namesrv_address, remote).once()
    assert consumed(remote) == {**before, "others": before["others"] + 1}
    assert "wrote to folders only" in mqtrail("pipeline", "migrate", "--lake", str(remote), exits=3)


def test_tasks_of_spark_write_to_the_store(broker: Embedded, tmp_path: Path) -> None:
    """Ingest and judgement in Spark tasks, with files between rounds, give the results of the driver alone."""
    local = tmp_path / "lake"
    job(broker.namesrv_address, local).once()
    remote = place_of(f"s3://{BUCKET}/spark")
    config = JobConfig(
        namesrv=broker.namesrv_address,
        lake=remote,
        session=SessionConfig(master="local[2,4]", driver_memory="1g"),
        driver_messages_max=0,
    )
    with PipelineJob(config) as running:
        running._work.judge._bulk_rows_min = 1
        running.once()
    assert consumed(remote) == consumed(local)
    assert not [path for name in ("_work", "_judging") for path in (remote / name).rglob("*")]


def test_faults_neither_lose_nor_duplicate(server: ObjectServer, broker: Embedded) -> None:
    """Requests fail at random, before or after the server executed them: the lake has every row once."""
    chance = random.Random(7)
    kinds = [Fault.BUSY, Fault.BUSY_AFTER, Fault.CUT, Fault.CUT_AFTER]
    remote = place_of(f"s3://{BUCKET}/faults")
    job(broker.namesrv_address, remote).once()
    injected: list[str] = []

    def fault(request: Request) -> Fault | None:
        if chance.random() >= FAULT_RATE:
            return None
        injected.append(f"{request.method} {request.path}")
        return chance.choice(kinds)

    with door_to(server) as door:
        running = job(broker.namesrv_address, remote, offsets_per_batch_max=20)
        for _ in range(3):
            asyncio.run(send(broker.namesrv_address, 20))
            door.fault = fault
            with suppress(MQError):
                running.once()
            door.fault = lambda request: None
    assert len(injected) > 3
    fresh = place_of(f"s3://{BUCKET}/without-faults")
    for place in (remote, fresh):
        job(broker.namesrv_address, place).once()
    assert counts(remote) == counts(fresh)
    assert consumed(remote) == consumed(fresh)


PROGRAM = """
import sys
from threading import Event
from types import SimpleNamespace
from mqtrail.lake import lease, place_of
from mqtrail.pipeline import JobConfig, PipelineJob

lease.LEASE_MS, lease.HELD_MS, lease.RENEW_MS = 5_000, 3_000, 500
config = JobConfig(namesrv=sys.argv[1], lake=place_of(sys.argv[2]), sample_interval_ms=1_000)
spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
PipelineJob(config, lambda text: print(text, flush=True)).use(spark).run(500, Event())
"""


def wait_for_a_cycle(process: subprocess.Popen[bytes], lake: LakePath, log: Path) -> None:
    """Return once the process has read and judged."""
    end = time.monotonic() + 300
    while True:
        try:
            status = json.loads(mqtrail("pipeline", "status", "--lake", str(lake), "--json"))
        except AssertionError:
            status = {}
        if status.get("pid") == process.pid and any(one["cycles"] for one in status["clusters"]):
            return
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)


def test_a_killed_pipeline_is_followed_by_another(broker: Embedded, tmp_path: Path) -> None:
    """A second pipeline is refused with an error while the first runs; after a kill the lock expires."""
    remote = place_of(f"s3://{BUCKET}/killed")

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            command = [sys.executable, "-c", PROGRAM, broker.namesrv_address, str(remote)]
            return subprocess.Popen(command, stdout=log, stderr=log)

    first = start()
    try:
        wait_for_a_cycle(first, remote, tmp_path / "log")
        refused = mqtrail("pipeline", "rebuild", "--lake", str(remote), exits=3)
        assert f"found process {first.pid} on host" in refused
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    end = time.monotonic() + 300
    while True:
        second = start()
        if second.poll() is None:
            try:
                wait_for_a_cycle(second, remote, tmp_path / "log")
                break
            except AssertionError:
                assert "its lock ends in" in (tmp_path / "log").read_text()
        assert time.monotonic() < end
    second.kill()
    second.wait()
    assert counts(remote)["gaps"] == 0


def test_the_pipeline_as_users_start_it(broker: Embedded, tmp_path: Path) -> None:
    """`pipeline run` with Spark from the end of each queue, `backfill --wait` of what was before, and SIGTERM."""
    remote = f"s3://{BUCKET}/started"
    of_cluster = ("--namesrv", broker.namesrv_address, "--lake", remote)
    log = tmp_path / "log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "mqtrail", "pipeline", "run", *of_cluster, "--starting-offsets", "latest"],
            stdout=output,
            stderr=output,
        )
    try:
        wait_for_a_cycle(running, place_of(remote), log)
        assert "RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC" in mqtrail("trace", "order-7", "--lake", remote, exits=4)
        lines = mqtrail("pipeline", "backfill", *of_cluster, "--from", "1h", "--wait").splitlines()
        assert len(lines) == len(set(lines))
        assert re.search(r" done: [1-9]\d* messages read, 0 gaps, 0 left$", lines[-1])
        assert "CONSUMED" in mqtrail("trace", "order-7", "--lake", remote)
        running.terminate()
        assert running.wait(120) == 0, log.read_text()[-2000:]
    finally:
        running.kill()
        running.wait()
    assert SECRET_KEY not in log.read_text()
    status = json.loads(mqtrail("pipeline", "status", "--lake", remote, "--json", exits=1))
    assert (status["pid"], status["is_running"]) == (running.pid, False)
    assert [one["last_error"] for one in status["clusters"]] == [""]


@pytest.mark.parametrize(
    ("variables", "place", "message"),
    [
        ({}, "s3://no-such-bucket/lake", "found no such bucket"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, f"s3://{BUCKET}/whole", "found credentials that the store refuses"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, f"s3://{BUCKET}/whole", "found credentials that the store refuses"),
        ({"AWS_ALLOW_HTTP": "false"}, f"s3://{BUCKET}/whole", "AWS_ALLOW_HTTP"),
        ({}, f"s3://{BUCKET}/nothing-here", "no lake at"),
    ],
)
def test_wrong_settings_are_reported(
    lakes: tuple[LakePath, LakePath], variables: dict[str, str], place: str, message: str
) -> None:
    """The exit code is 3, and the error has one line; it is never "not found"."""
    output = mqtrail("search", "--topic", TOPIC, "--lake", place, exits=3, variables=variables)
    assert message in output
    assert len(output.strip().splitlines()) == 1, output
    output = mqtrail("trace", "0" * 32, "--lake", place, exits=3, variables=variables)
    assert message in output.replace("\n", " ")


def test_credentials_that_expire_are_reported(
    lakes: tuple[LakePath, LakePath], server: ObjectServer, broker: Embedded
) -> None:
    """A look-up fails with exit code 3, a cycle with an error; the next cycle continues with valid credentials."""
    remote, _ = lakes
    with door_to(server) as door:
        running = job(broker.namesrv_address, remote)
        door.fault = lambda request: Fault.EXPIRED
        output = mqtrail("report", "--lake", str(remote), exits=3)
        assert "credentials that have expired" in output
        with pytest.raises(MQError, match="credentials that have expired"):
            running.once()
        door.fault = lambda request: None
        running.once()
