"""A broker of a group dies while messages are sent: the trace of a message shows who took over when."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from mqtrail.cli import run
from mqtrail.client import SyncProducer
from mqtrail.clock import now_ms
from mqtrail.wire import Message, MQError
from tests.waiting import wait_until

from .test_up import FREE, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def master_of(namesrv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the process and the address of the master."""
    assert run(["cluster", "ha", "--json", "--namesrv", namesrv]) == 0
    rows = json.loads(capsys.readouterr().out)["brokers"]
    (master,) = [row for row in rows if row["role"] == "master"]
    return master["process_id"], master["address"]


@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_trace_shows_who_took_over(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kill -9 of the master under load. The message that waited for the fail-over names both masters and the time."""
    sent: list[tuple[int, int, str]] = []  # when it began, when it was acknowledged, id
    ending = threading.Event()

    def send(producer: SyncProducer) -> None:
        while not ending.is_set():
            began_ms = now_ms()
            try:
                result = producer.send(Message("orders", b"x" * 100))
            except MQError:
                continue
            sent.append((began_ms, now_ms(), result.msg_id))

    def slowest() -> tuple[int, int, str]:
        """The message that waited for the fail-over: of those acknowledged after the kill the one that took longest."""
        return max((one for one in sent if one[1] > killed_ms), key=lambda one: one[1] - one[0])

    def is_traced(namesrv: str) -> bool:
        assert run(["pipeline", "once", "--namesrv", namesrv, "--lake", lake]) == 0
        capsys.readouterr()
        return run(["trace", slowest()[2], "--lake", lake, "--json"]) == 0

    group = ["--ha", "3", "--mode", mode, "--data", str(tmp_path / "data"), "--segment-size", "16MiB"]
    if mode == "controller":
        group += ["--controller-port", "0"]
    lake = str(tmp_path / "lake")
    with up(*group, *FREE) as ready, SyncProducer("shop", ready["namesrv"], trace=True) as producer:
        sender = threading.Thread(target=send, args=(producer,))
        sender.start()
        try:
            wait_until(lambda: len(sent) >= 100)
            process_id, old = master_of(ready["namesrv"], capsys)
            killed_ms = now_ms()
            os.kill(process_id, signal.SIGKILL)
            wait_until(lambda: sum(began_ms > killed_ms for began_ms, _, _ in sent) >= 100, 120)
        finally:
            ending.set()
            sender.join()
        wait_until(lambda: is_traced(ready["namesrv"]), 240)
    _, acked_ms, msg_id = slowest()
    (found,) = json.loads(capsys.readouterr().out)["trajectories"]
    changes = [one for one in found["broker_changes"] if one["event"] == "BECAME_MASTER"]
    (change,) = changes
    assert change["broker"] == "broker-a"
    assert change["address"] in set(ready["brokers"].values()) - {old}
    assert killed_ms - 5_000 <= change["before_until_ms"] <= change["at_ms"] <= acked_ms + 1_000
    assert change["at_ms"] >= killed_ms
    if mode == "controller":
        assert (change["before_address"], change["before_epoch"], change["epoch"]) == (old, 1, 2)
        assert change["reason"] in {"connection_closed", "heartbeats_stopped"}
    else:
        assert change["before_epoch"] < change["epoch"]
        assert change["before_id"] in {"n0", "n1", "n2"}
    assert run(["trace", msg_id, "--lake", lake]) == 0
    assert "became master" in capsys.readouterr().out
    assert run(["sql", "SELECT event FROM broker_events WHERE event = 'STARTED'", "--lake", lake, "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 3
