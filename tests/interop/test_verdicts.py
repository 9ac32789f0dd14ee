"""Our pipeline and answers on an Apache cluster: the faults injected into the official client, and the verdicts. One
run of the whole command line, as operators use it: `pipeline once`, `export`, `trace`, `search`, `report`, `doctor`. It
runs on our own broker too, so that both are judged alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop.driver import JavaClient
from interop.faults import DOWN, FILTERING, HANGING, MAIN, TOPIC, Faults
from interop.probe import wait_until

from interop import faults
from mqtrail.client import SyncAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COMMAND_TIMEOUT_S = 300
GROUPS = {MAIN, FILTERING, DOWN, HANGING}
# Codes that a busy machine may add to the expected ones.
LATE = frozenset({"SEND_SLOW", "CONSUMED_SLOW", "DELIVERED_LATE"})


@dataclass
class Judged:
    """A cluster after the faults, its lake, and the exported verdicts by label."""

    namesrv: str
    lake: Path
    faults: Faults
    exported: dict[str, dict[str, Any]]
    cluster_before: object
    cluster_after: object


def mqtrail(*arguments: str, exits: int = 0) -> str:
    """Return the command's output; it must end with the exit code."""
    command = [str(Path(sys.executable).with_name("mqtrail")), *arguments]
    environ = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, env=environ)
    assert run.returncode == exits, f"{' '.join(arguments)}\n{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.fixture(scope="module", params=[("apache-5.3.3", "5.3.3"), ("mqtrail", "4.9.8")], ids=lambda param: param[0])
def judged(
    request: pytest.FixtureRequest,
    server: Callable[[str], Any],
    stack: ExitStack,
    tmp_path_factory: pytest.TempPathFactory,
) -> Judged:
    """Inject the faults beside a sampler, so that all groups are known; ingest before and after; export."""
    kind, version = request.param
    running = server(kind)
    folder = tmp_path_factory.mktemp("judged")
    lake = folder / "lake"
    java = stack.enter_context(JavaClient(version, folder / "java", running.namesrv_address))
    done = faults.prepare(java, running.broker_address)
    ingest = ("pipeline", "once", "--namesrv", running.namesrv_address, "--lake", str(lake), "--topic", TOPIC)
    before = cluster_state(running.namesrv_address)
    mqtrail(*ingest)
    after = cluster_state(running.namesrv_address)
    with sampler(running.namesrv_address, lake):
        faults.inject(java, done)
    mqtrail(*ingest)
    lines = [json.loads(line) for line in mqtrail("export", "--lake", str(lake)).splitlines()]
    labels = {msg_id: label for label, msg_id in done.ids.items()}
    exported = {labels[line["msg_id"]]: line for line in lines if line["msg_id"] in labels}
    return Judged(running.namesrv_address, lake, done, exported, before, after)


@contextmanager
def sampler(namesrv: str, lake: Path) -> Iterator[None]:
    """Run `mqtrail sample` while the block runs; its first sample is taken before."""
    command = [str(Path(sys.executable).with_name("mqtrail")), "sample", "--namesrv", namesrv, "--lake", str(lake)]
    with subprocess.Popen([*command, "--topic", TOPIC], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: any((lake / "_samples").glob("*.json.gz")), "the first sample", COMMAND_TIMEOUT_S)
            yield
        finally:
            process.terminate()
            assert process.wait(COMMAND_TIMEOUT_S) == 0


def cluster_state(namesrv: str) -> object:
    """The topics and groups of the cluster."""
    with SyncAdmin(namesrv) as admin:
        [address] = admin.masters().values()
        return admin.topics(), sorted(admin.groups(address).subscription_group_table)


def test_reading_leaves_no_mark(judged: Judged) -> None:
    """The pipeline creates no topic and no group on the cluster it reads."""
    assert judged.cluster_before == judged.cluster_after


def test_every_message_is_exported(judged: Judged) -> None:
    """Nothing that was sent is missing, traced or not."""
    assert set(judged.exported) == set(judged.faults.ids)


def test_send_verdicts(judged: Judged) -> None:
    """Each send has exactly the expected codes, and may be slow on a busy machine."""
    found = {label: set(line["send"]) - LATE for label, line in judged.exported.items()}
    assert found == {label: set(expected.send) for label, expected in judged.faults.expected.items()}


def test_group_verdicts(judged: Judged) -> None:
    """Each message has exactly the expected codes in every group, and no codes in other groups."""
    found = {
        label: {
            group: set(codes) - (LATE - judged.faults.expected[label].groups.get(group, LATE))
            for group, codes in line["groups"].items()
            if group in GROUPS
        }
        for label, line in judged.exported.items()
    }
    expected = {
        label: {group: set(codes) for group, codes in expected.groups.items()}
        for label, expected in judged.faults.expected.items()
    }
    assert found == expected


def test_message_verdicts(judged: Judged) -> None:
    """Only the message that is not due yet is SCHEDULED."""
    found = {label: set(line["message"]) - LATE for label, line in judged.exported.items()}
    assert found == {label: set(expected.message) for label, expected in judged.faults.expected.items()}


def test_knowledge(judged: Judged) -> None:
    """A message without its send record is INCOMPLETE with a reason; all others are COMPLETE."""
    for label, expected in judged.faults.expected.items():
        line = judged.exported[label]
        assert line["knowledge"] == expected.knowledge, (label, line)
        assert line["reasons"] or expected.knowledge == "COMPLETE", (label, line)


def test_trace_command(judged: Judged) -> None:
    """One message's timeline has its attempts and its verdict; an unknown id has exit code 1."""
    msg_id = judged.faults.ids["poison"]
    output = mqtrail("trace", msg_id, "--lake", str(judged.lake), "--namesrv", judged.namesrv)
    assert MAIN in output
    assert "DEAD_LETTERED" in output
    mqtrail("trace", "0" * 32, "--lake", str(judged.lake), "--namesrv", judged.namesrv, exits=1)


def test_search_command(judged: Judged) -> None:
    """By key the message is found."""
    output = mqtrail("search", "--key", "order-1", "--lake", str(judged.lake))
    assert judged.faults.ids["plain"] in output


def test_report_command(judged: Judged) -> None:
    """The report counts the verdicts."""
    report = mqtrail("report", "--rows", "100", "--lake", str(judged.lake))
    for code in ("DEAD_LETTERED", "HUNG", "NO_CONSUMER", "RETRYING"):
        assert code in report


def test_doctor_command(judged: Judged) -> None:
    """The doctor reports what can be traced on this cluster."""
    assert "RMQ_SYS_TRACE_TOPIC" in mqtrail("doctor", "--namesrv", judged.namesrv)
