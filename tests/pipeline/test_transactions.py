"""Real transactions and a recall on the embedded broker, judged live, afterwards, and by the trace alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.loops import run
from tests.transacting import CHECK_MAX, EXPECTED, GROUP, PENDING_MS, RECALLED_AFTER_MS, transact

from mqtrail import trail
from mqtrail.broker import BrokerConfig
from mqtrail.lake import LookUp
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import Embedded, embedded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
Judged = dict[str, tuple[str, list[str], str]]
"""Label -> codes of the message, codes of its groups, knowledge and reasons."""
DELAY_MS = 1_000  # trace_delay_ms of the judgements
ALONE = {"committed": "TX_COMMITTED", "checked": "TX_COMMITTED"}
"""Codes by the trace alone, in which a delivery proves a commit."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    config = BrokerConfig(
        transaction_timeout_ms=PENDING_MS,
        transaction_check_ms=1_000,
        transaction_check_max=CHECK_MAX,
        transaction_op_delay_ms=100,
    )
    with embedded(broker=config) as running:
        yield running


@pytest.fixture(scope="module")
def live(spark: SparkSession, broker: Embedded, tmp_path_factory: pytest.TempPathFactory) -> PipelineJob:
    """A lake that read the cluster before the first transaction."""
    config = JobConfig(namesrv=broker.namesrv_address, lake=tmp_path_factory.mktemp("live") / "lake")
    job = PipelineJob(replace(config, settings=trail.Settings(trace_delay_ms=DELAY_MS))).use(spark)
    job.once()
    return job


@pytest.fixture(scope="module")
def ids(live: PipelineJob, broker: Embedded) -> dict[str, str]:
    """Label -> id, once the recalled message would have been due."""
    with live.sampling():
        found: dict[str, str] = run(transact(broker.namesrv_address))
        live.once()
        due = time.monotonic() + (RECALLED_AFTER_MS + DELAY_MS) / 1_000
        while time.monotonic() < due:
            live.once()
    return found


def judged(job: PipelineJob, ids: dict[str, str]) -> Judged:
    """The latest judgement of each label."""
    job.lake.refresh()
    look_up = LookUp(job.lake)
    look_up.define_views()
    query = """SELECT t.msg_id, t.message_codes, t.knowledge || ' ' || t.reasons,
        list(v.group_name || ': ' || v.codes) FILTER (v.group_name IS NOT NULL)
      FROM trajectories t LEFT JOIN verdicts v ON t.msg_id = v.msg_id GROUP BY ALL"""
    found = {msg_id: columns for msg_id, *columns in look_up.connection.sql(query).fetchall()}
    return {
        label: (codes, groups or [], why) for label, msg_id in ids.items() for codes, why, groups in [found[msg_id]]
    }


def check(found: Judged) -> None:
    wanted = {
        label: (ending.code, [f"{GROUP}: {ending.group}"] * bool(ending.group)) for label, ending in EXPECTED.items()
    }
    assert {label: (codes, groups) for label, (codes, groups, _) in found.items()} == wanted, found


def test_live(live: PipelineJob, ids: dict[str, str]) -> None:
    """Cycles beside the transactions give each its code; messages that no consumer sees are fully known."""
    found = judged(live, ids)
    check(found)
    hidden = {label: knowledge for label, (_, groups, knowledge) in found.items() if not groups}
    assert hidden == dict.fromkeys(hidden, "COMPLETE ")


def test_once_after_the_fact(live: PipelineJob, ids: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    """A first reading of the cluster afterwards gives the same codes."""
    job = PipelineJob(replace(live.config, lake=tmp_path / "lake")).use(spark)
    job.once()
    check(judged(job, ids))


def test_by_the_trace_alone(live: PipelineJob, ids: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    """A delivery proves a commit. The producer's request proves nothing: other transactions are unknown."""
    job = PipelineJob(replace(live.config, lake=tmp_path / "lake", topics=())).use(spark)
    job.once()
    found = judged(job, ids)
    assert {label: codes for label, (codes, _, _) in found.items() if codes} == ALONE, found
    unknown = {label for label, (_, _, why) in found.items() if "TRANSACTION_NOT_KNOWN" in why}
    assert unknown == EXPECTED.keys() - ALONE.keys() - {"recalled"}
