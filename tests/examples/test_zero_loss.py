"""The example of zero loss: proven with kills, and a planted loss is found; both in one lake."""

from __future__ import annotations

import asyncio
import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import Message, SyncProducer

# By name, as the other examples: for mypy they are no part of this project's packages.
main, jobs_of, run, verify = (
    importlib.import_module(f"examples.zero_loss.{name}") for name in ("__main__", "jobs", "run", "verify")
)
COUNT = 20


async def carry_out(runs: list[Any], brokers: Any) -> None:
    """Two runs at the same time: the master is killed below both, twice."""
    async with asyncio.TaskGroup() as tasks:
        for jobs in runs:
            tasks.create_task(run.carry_out(jobs, brokers, print))


@pytest.mark.slow
def test_a_run_is_proven_and_a_planted_loss_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of worker, sender and master. A job that nobody sent is lost, one that waits is not covered."""
    monkeypatch.setattr(run, "QUIET_S", 3.0)
    lake = tmp_path / "lake"
    honest = jobs_of.Jobs(folder=tmp_path / "honest", name="honest", count=COUNT)
    hasty = replace(honest, folder=tmp_path / "hasty", name="hasty", early_ack=True)
    with run.Brokers(tmp_path) as brokers:
        runs = [replace(jobs, namesrv=brokers.namesrv) for jobs in (honest, hasty)]
        asyncio.run(carry_out(runs, brokers))
        with SyncProducer("idle-sender", brokers.namesrv) as producer:
            producer.send(Message("idle-jobs", b"a job", keys="job-0"))
        run.make_lake(brokers.namesrv, lake)
    proof = verify.verify(lake, "honest", COUNT)
    print(verify.report(proof, COUNT))
    assert (proof.exit_code, proof.covered) == (0, COUNT)
    with hasty.work() as work:
        done = {row[0] for row in work.execute("SELECT job FROM done")}
    found = verify.verify(lake, "hasty", COUNT)
    print(verify.report(found, COUNT))
    assert found.exit_code == 1
    missing = {f"job-{number}" for number in range(COUNT)} - done
    assert found.lost.keys() <= missing
    assert found.lost.keys() | {one.partition(":")[0] for one in found.uncovered} >= missing
    assert verify.verify(lake, "honest", COUNT + 1).lost == {f"job-{COUNT}": "no message was stored"}
    waits = verify.verify(lake, "idle", 1)
    assert (waits.exit_code, waits.uncovered[0]) == (3, "job-0: no group is known to have it")


@pytest.mark.parametrize(
    ("lost", "doubled", "uncovered", "code"),
    [({}, {}, [], 0), ({}, {}, ["why"], 3), ({"job-1": "why"}, {}, ["why"], 1), ({}, {"job-1": "why"}, [], 1)],
)
def test_exit_codes(lost: dict[str, str], doubled: dict[str, str], uncovered: list[str], code: int) -> None:
    """Found, cannot tell, none; the reason is printed."""
    proof = verify.Proof(covered=3, lost=lost, doubled=doubled, uncovered=uncovered)
    assert proof.exit_code == code
    assert ("why" in verify.report(proof, 4)) == bool(code)


def test_what_cannot_be_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run, no lake, no broker: each with found, expected, remedy."""
    for arguments, found in (
        (["work"], "found no run in .*expected one: run `accept`"),
        (["accept"], ""),
        (["verify"], "no lake at .*Run `mqtrail pipeline once"),
        (["work", "--namesrv", "127.0.0.1:1"], "check the address, and that a name server is running there"),
    ):
        code = main.main([*arguments, "--folder", str(tmp_path / "run")])
        assert code == (2 if found else 0), arguments
        assert re.search(found, capsys.readouterr().err)
