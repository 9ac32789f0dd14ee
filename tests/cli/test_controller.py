"""`mqtrail controller`: its settings from flags and from a controller.conf, a start, a clean end, errors."""

import json
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mqtrail.cli.broker_conf import CONTROLLER_TABLES, read_broker_conf
from mqtrail.cli.exits import Exit
from tests.ports import free_ports

START_S = 120.0
COMMAND = [sys.executable, "-m", "mqtrail", "controller", "--json"]


def test_a_controller_conf_is_read(tmp_path: Path) -> None:
    """Apache's keys become settings; what has no effect here is reported, what equals our behaviour is not."""
    path = tmp_path / "controller.conf"
    path.write_text(
        "controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:1\ncontrollerDLegerSelfId=n0\n"
        "enableElectUncleanMaster=true\ncontrollerType=DLedger\ncontrollerStorePath=/x\njRaftGroupId=y\n"
    )
    found = read_broker_conf(path, CONTROLLER_TABLES)
    assert found.values["controller"] == {
        "group": "g",
        "peers": "n0-127.0.0.1:1",
        "self_id": "n0",
        "elect_unclean_master": True,
    }
    assert [note.split()[0] for note in found.notes] == ["controllerStorePath", "jRaftGroupId"]


@pytest.mark.slow
def test_a_controller_starts_and_ends(tmp_path: Path) -> None:
    """It prints one line when it listens, and ends with 0 at SIGTERM; its folder then opens for no other controller."""
    (port,) = free_ports(1)
    path = tmp_path / "controller.conf"
    path.write_text(f"controllerDLegerPeers=n0-127.0.0.1:{port}\n")
    command = [*COMMAND, "--conf", str(path), "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], START_S)[0], "the controller printed nothing"
            ready = json.loads(process.stdout.readline())
            assert (ready["event"], ready["controller"], ready["id"]) == ("ready", f"127.0.0.1:{port}", "n0")
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_S) == 0
        finally:
            process.kill()
    other = [*COMMAND, "--peers", f"n1-127.0.0.1:{port}", "--self-id", "n1", "--data", str(tmp_path / "data")]
    refused = subprocess.run(other, capture_output=True, text=True, cwd=tmp_path, timeout=START_S, check=False)
    assert refused.returncode not in (0, Exit.USAGE)
    assert "found the journal of member n0" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_wrong_peers_are_refused(tmp_path: Path) -> None:
    """Two controllers, an own id outside the list, text of another form: usage errors."""
    for peers in ("n0-127.0.0.1:1;n1-127.0.0.1:2", "n5-127.0.0.1:1", "nonsense"):
        refused = subprocess.run(
            [*COMMAND, "--peers", peers], capture_output=True, text=True, cwd=tmp_path, timeout=START_S, check=False
        )
        assert (refused.returncode, "Traceback" in refused.stderr) == (Exit.USAGE, False), refused.stderr
