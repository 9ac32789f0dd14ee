"""Transactions and a recall on Apache's brokers, judged by `mqtrail pipeline once`. 4.9 has no route to op records."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from interop.apache import ApacheCluster
from interop.story import SERVER_PROPERTIES
from tests.interop.test_verdicts import mqtrail
from tests.loops import run
from tests.transacting import CHECK_MAX, EXPECTED, GROUP, PENDING_MS, TOPIC, transact

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PROPERTIES = {
    **SERVER_PROPERTIES,
    "transactionTimeOut": str(PENDING_MS),
    "transactionCheckInterval": "1000",
    "transactionCheckMax": str(CHECK_MAX),
    "transactionOpBatchInterval": "100",  # 5.x: until its op record is written, a committed message is asked about
    "recallMessageEnable": "true",
}
DEADLINE_S = 240.0


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def transacted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The version of a cluster, its address after the transactions, and label -> id. 4.9.7 has no timers."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp(f"apache-{request.param}")
        cluster = stack.enter_context(ApacheCluster(request.param, folder, properties=PROPERTIES))
        ids = run(transact(cluster.namesrv_address, recalls=request.param == "5.3.3"))
        yield request.param, cluster.namesrv_address, ids


def judged(namesrv: str, lake: Path, ids: dict[str, str], *topics: str) -> dict[str, dict[str, Any]]:
    """Read and judge once more; return what is exported, by label."""
    options = [word for topic in topics for word in ("--topic", topic)]
    mqtrail("pipeline", "once", "--namesrv", namesrv, "--lake", str(lake), *options)
    lines = [json.loads(line) for line in mqtrail("export", "--lake", str(lake)).splitlines()]
    labels = {msg_id: label for label, msg_id in ids.items()}
    return {labels[line["msg_id"]]: line for line in lines if line["msg_id"] in labels}


def test_endings(transacted: tuple[str, str, dict[str, str]], tmp_path: Path) -> None:
    """Each message gets its code as soon as its records are older than the delay of the trace."""
    version, namesrv, ids = transacted
    wanted = {
        label: ([ending.code], {GROUP: [ending.group]} if ending.group else {})
        for label, ending in EXPECTED.items()
        if label in ids
    }
    if version == "4.9.7":
        wanted |= dict.fromkeys(("rolled back", "refused", "pending"), ([], {GROUP: ["UNKNOWN"]}))
    end = time.monotonic() + DEADLINE_S
    found: Any = {}
    while time.monotonic() < end:
        lines = judged(namesrv, tmp_path / "lake", ids, TOPIC)
        found = {label: (line["message"], line["groups"]) for label, line in lines.items()}
        if found == wanted:
            return
    assert found == wanted


def test_without_the_topic(transacted: tuple[str, str, dict[str, str]], tmp_path: Path) -> None:
    """If the topic's messages are not read, a delivery proves a commit, and the other ends are not known."""
    _, namesrv, ids = transacted
    lines = judged(namesrv, tmp_path / "lake", ids)
    committed = {label for label, ending in EXPECTED.items() if ending.code == "TX_COMMITTED"}
    assert {label for label, line in lines.items() if line["message"]} == committed
    assert {label for label, line in lines.items() if "TRANSACTION_NOT_KNOWN" in str(line["reasons"])} == (
        lines.keys() - committed - {"recalled"}
    )
