"""The gate: go only if each condition holds, and the one that does not is named."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import Admin, SyncAdmin, SyncConsumer
from mqtrail.migrate import (
    BridgeState,
    GateConfig,
    GateResult,
    HeaderRule,
    KafkaRecord,
    MigrateError,
    OffsetMap,
    ResultLog,
    ResultRange,
    TeeSide,
    compare_results,
    gate,
)
from mqtrail.migrate.copies import CopyFile, CopyHead, TeeCopy
from mqtrail.migrate.groups import group_file
from mqtrail.migrate.journal import CopyJournal
from mqtrail.migrate.offsetmap import MapFile
from mqtrail.migrate.state import COMPARE, MAP, RESULTS, alone, read_json, save_bridge, save_json
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import MessageQueue, TopicConfig
from tests.waiting import wait_until

NOW_MS = 1_795_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BridgeState:
    """A bridge that has everything, a comparison without differences, and translated offsets of a group.

    For the gate, time stands still: ages are exact.
    """
    monkeypatch.setattr(sys.modules[gate.__module__], "now_ms", lambda: NOW_MS)
    state = BridgeState(cluster="c", topic="t", target="t", order="key", headers="encode", queues=["broker-a/0"])
    state.next_offsets, state.ends, state.ends_ms = {"0": 9}, {"0": 9}, NOW_MS
    save_bridge(tmp_path, state)
    MapFile(tmp_path / MAP, OffsetMap("t", "t"))
    save_compare(tmp_path)
    save_group(tmp_path)
    return state


def save_compare(folder: Path, **more: Any) -> None:
    found = {"outcome": "NONE", "at_ms": NOW_MS, "accepted": [], "since_ms": None, "until_ms": None}
    found |= {"matched": 9, "pending": 0}
    save_json(folder / COMPARE, found | more)


def save_group(folder: Path, *, error: str = "", behind: int = 0, before_start: int = 0, expired: int = 0) -> None:
    queue = {"queue": "broker-a/0", "error": error, "expired": expired}
    content = {"queues": [queue], "behind": behind, "before_start": before_start}
    save_json(group_file(folder, "billing"), content)


def judged(folder: Path, broker: Embedded, *groups: str) -> GateResult:
    async def run() -> GateResult:
        async with Admin(broker.namesrv_address) as admin:
            return await gate(GateConfig(folder=folder, groups=groups), admin)

    return asyncio.run(run())


def wrong(folder: Path, broker: Embedded, *groups: str) -> dict[str, str]:
    """What does not hold, and what was found."""
    found = judged(folder, broker, *groups)
    failed = {one.name: one.found for one in found.checks if not one.is_ok}
    assert found.is_go is not bool(failed)
    assert all(one.remedy for one in found.checks)
    return failed


def test_go_and_no_go(state: BridgeState, broker: Embedded, tmp_path: Path) -> None:
    """Each condition alone stops it."""
    assert wrong(tmp_path, broker) == {"bridge runs": "no"}
    with ExitStack() as stack:
        stack.enter_context(alone(tmp_path))
        assert wrong(tmp_path, broker) == {}
        state.ends["0"] = 11
        save_bridge(tmp_path, state)
        assert wrong(tmp_path, broker) == {"bridge's lag": "2 offsets, 0 s ago"}
        state.ends["0"], state.ends_ms = 9, NOW_MS - 90_000
        save_bridge(tmp_path, state)
        assert wrong(tmp_path, broker) == {"bridge's lag": "0 offsets, 90 s ago"}
        state.ends_ms, state.skipped, state.lost = NOW_MS, ["t:0:1"], {"0": 2}
        save_bridge(tmp_path, state)
        assert wrong(tmp_path, broker) == {"nothing left out": "1 skipped, 2 lost"}
        state.skipped, state.lost = [], {}
        save_bridge(tmp_path, state)
        save_compare(tmp_path, outcome="FOUND", accepted=["late"])
        assert wrong(tmp_path, broker) == {
            "comparison": "differences: found, 9 equal, 0 not compared yet, 0 s ago, accepted: late"
        }
        save_compare(tmp_path, pending=1)
        assert "9 equal, 1 not compared yet" in wrong(tmp_path, broker)["comparison"]
        save_compare(tmp_path, matched=0)
        assert "0 equal" in wrong(tmp_path, broker)["comparison"]
        save_compare(tmp_path, at_ms=NOW_MS - 4_000_000)
        assert "4000 s ago" in wrong(tmp_path, broker)["comparison"]
        (tmp_path / COMPARE).unlink()
        assert wrong(tmp_path, broker) == {"comparison": "none"}


def test_groups(state: BridgeState, broker: Embedded, tmp_path: Path) -> None:
    """Offsets of each group are written on all queues, and its members are there."""
    with SyncAdmin(broker.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig("t", 1, 1)).complete
    with alone(tmp_path):
        assert wrong(tmp_path, broker, "other") == {"offsets of other": "none", "members of other": "0"}
        save_group(tmp_path, error="refused", behind=3)
        assert (
            wrong(tmp_path, broker, "billing")["offsets of billing"]
            == "1 queues, 1 failed, 0 kept further, 3 not bridged, 0 lost"
        )
        save_group(tmp_path, before_start=5, expired=2)
        assert (
            wrong(tmp_path, broker, "billing")["offsets of billing"]
            == "1 queues, 0 failed, 0 kept further, 0 not bridged, 7 lost"
        )
        queue = {"queue": "broker-a/0", "error": "", "expired": 0, "is_kept": True, "after": 9, "written": None}
        for written, is_ok in ((None, False), (3, True)):
            content = {"queues": [queue | {"written": written}], "behind": 0, "before_start": 0}
            save_json(group_file(tmp_path, "billing"), content)
            (check, _) = (one for one in judged(tmp_path, broker, "billing").checks if "billing" in one.name)
            assert (check.is_ok, check.found[:33]) == (is_ok, "1 queues, 0 failed, 1 kept further"[:33])
        save_json(group_file(tmp_path, "billing"), {"queues": [], "behind": 0})
        assert wrong(tmp_path, broker, "billing")["offsets of billing"] == "none", "it does not tell what is lost"
        save_group(tmp_path)
        with SyncConsumer("billing", broker.namesrv_address, subscriptions={"t": "*"}):
            wait_until(lambda: wrong(tmp_path, broker, "billing") == {})
    with pytest.raises(MigrateError, match="found no bridge"):
        judged(tmp_path / "none", broker)


def test_failed_copies(state: BridgeState, broker: Embedded, tmp_path: Path) -> None:
    """Copies that the other side does not have stop it: of running tees, of ended ones, and of killed ones."""
    head = CopyHead(topic="t", target="t", to=TeeSide.ROCKETMQ, headers=HeaderRule.ENCODE)
    copy = TeeCopy(KafkaRecord("t", 0, 1, 1, b"k", b"v"), MessageQueue("t", "broker-a", 0))
    with alone(tmp_path):
        file, journal = CopyFile(tmp_path, head), CopyJournal(tmp_path, "1-a", head)
        journal.open()
        number = journal.add(copy)
        assert wrong(tmp_path, broker) == {}, "it is on its way"
        journal.close()
        assert wrong(tmp_path, broker) == {"failed copies": "1 in 1 files, 0 of them of running tees"}
        file.add(copy, "away")
        assert wrong(tmp_path, broker) == {"failed copies": "2 in 2 files, 1 of them of running tees"}
        journal.path.unlink()
        file.close()
        assert wrong(tmp_path, broker) == {"failed copies": "1 in 1 files, 0 of them of running tees"}
        file.path.unlink()
        assert (number, wrong(tmp_path, broker)) == (1, {})


def test_results_of_handlers(state: BridgeState, broker: Embedded, tmp_path: Path) -> None:
    """With result logs in the folder, the last comparison of them must be young and without differences."""
    with alone(tmp_path):
        with ResultLog(tmp_path, TeeSide.KAFKA) as old, ResultLog(tmp_path, TeeSide.ROCKETMQ) as new:
            for log, result in ((old, 1), (new, 2)):
                log.add("other", result, time_ms=1_000)
                log.add("same", 1, time_ms=1_000)
        assert wrong(tmp_path, broker) == {"results of handlers": "not compared"}
        compare_results(ResultRange(folder=tmp_path))
        assert "differences: found, 1 equal" in wrong(tmp_path, broker)["results of handlers"]
        compare_results(ResultRange(folder=tmp_path, accepted=frozenset({"different"})))
        save_json(tmp_path / RESULTS, (read_json(tmp_path / RESULTS, "") or {}) | {"at_ms": NOW_MS})
        (check,) = (one for one in judged(tmp_path, broker).checks if one.name == "results of handlers")
        assert (check.is_ok, check.found[-21:]) == (True, ", accepted: different")
        save_json(tmp_path / RESULTS, (read_json(tmp_path / RESULTS, "") or {}) | {"at_ms": NOW_MS - 4_000_000})
        assert "4000 s ago" in wrong(tmp_path, broker)["results of handlers"]


@pytest.mark.parametrize("name", [COMPARE, "offsets-billing.json"])
@pytest.mark.parametrize("text", ['{"version":1}', '{"version":1,"queues":[5],"before_start":0}'])
def test_a_result_with_other_fields_is_refused(
    state: BridgeState, broker: Embedded, tmp_path: Path, name: str, text: str
) -> None:
    """The gate names the file, and shows no traceback."""
    (tmp_path / name).write_text(text)
    if (name, text) == ("offsets-billing.json", '{"version":1}'):
        assert wrong(tmp_path, broker, "billing")["offsets of billing"] == "none"
        return
    with pytest.raises(MigrateError, match="other fields"):
        judged(tmp_path, broker, "billing")
