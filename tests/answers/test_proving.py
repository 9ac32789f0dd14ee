"""Proofs over a lake of labelled histories: what is found, what is excluded, and what is not covered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mqtrail.answers import Answers, ClaimProof, ProofAnswer
from mqtrail.cli.draw_prove import proof
from mqtrail.trail import ProofResult
from tests.answers.lakes import AS_OF_MS, GAP, make_lake
from tests.cli.conftest import Command, mqtrail
from tests.trail.histories import HISTORIES, evidence, unique_id
from tests.trail.story import CLIENT, TOPIC, History

__all__ = ["mqtrail"]
Prover = Callable[..., ProofAnswer]
GOOD = ("send ok", "send failed", "dead, attempts exhausted", "filtered")


@pytest.fixture
def prover(tmp_path: Path) -> Prover:
    """Makes a lake of histories, each in a cluster of its own, and proves."""

    def prove(*names: str, topic: str = "", gaps: bool = False, rejects: int = 0) -> ProofAnswer:
        chosen = tuple(history for history in HISTORIES if history.name in names)
        assert len(chosen) == len(names)
        make_lake(tmp_path / "lake", evidence(chosen), gaps=gaps, rejects=rejects)
        return Answers(tmp_path / "lake").prove(topic, AS_OF_MS)

    return prove


def claims(found: ProofAnswer) -> dict[str, ClaimProof]:
    return {claim.name: claim for claim in found.claims}


def outcomes(found: ProofAnswer) -> dict[str, ProofResult]:
    return {claim.name: claim.outcome for claim in found.claims}


def test_none(prover: Prover) -> None:
    """Everything is covered: the claims are excluded, and the counts say of how many messages and pairs."""
    found = prover(*GOOD)
    assert set(outcomes(found).values()) == {ProofResult.NONE}
    assert (found.message_count, found.pair_count, found.limits) == (4, 3, ())
    assert dict(found.words) == {"attempted": 4, "acknowledged": 3, "recovered": 0}
    assert claims(found)["duplicate deliveries"].covered_count == 2, "neither of the filtered nor of the failed one"


@pytest.mark.slow
def test_duplicates(prover: Prover) -> None:
    """Found, with the messages that show it; of the others it is excluded."""
    found = prover(*GOOD, "delivered twice", "timed out and done twice")
    assert found.outcome is ProofResult.FOUND
    deliveries, processing = claims(found)["duplicate deliveries"], claims(found)["duplicate processing"]
    assert (deliveries.found_count, deliveries.covered_count) == (1, 3)
    assert [(one.cluster, one.group_name, one.msg_id) for one in processing.examples] == [
        ("delivered twice", "CG", unique_id(1)),
        ("timed out and done twice", "CG", unique_id(1)),
    ]
    assert deliveries.examples[0].codes == "CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING"
    assert deliveries.examples[0].place


@pytest.mark.slow
def test_loss(prover: Prover) -> None:
    """Found, with the lost message; a loss that only a client's trace could exclude is not covered."""
    found = claims(prover(*GOOD, "lost, no client since", "lost, a client may still have it"))["lost"]
    assert (found.outcome, found.found_count, found.uncovered) == (ProofResult.FOUND, 1, {"TRUNCATED": 1})
    assert [(one.cluster, one.msg_id) for one in found.examples] == [("lost, no client since", unique_id(1))]


def test_a_range_of_another_topic(tmp_path: Path) -> None:
    """Lost messages of another topic that was read hide nothing of this one; those of one that may have trace do."""
    history = History("read").pub().stored().scanned().scanned("payments").group(CLIENT).handled()
    history.sampled("samples", 500, what="READ", topic="payments", status="OK")
    for number, (gone, limited) in enumerate((("payments", False), ("N%orders", True), (TOPIC, True), ("t", True))):
        rows = {**history.rows, "gaps": [{**GAP, "cluster": "read", "topic": gone}]}
        make_lake(tmp_path / str(number), rows)
        found = Answers(tmp_path / str(number)).prove(TOPIC, AS_OF_MS)
        assert (found.outcome is ProofResult.CANNOT_TELL) is limited, gone
        assert Answers(tmp_path / str(number)).prove("", AS_OF_MS).outcome is ProofResult.CANNOT_TELL


@pytest.mark.slow
def test_late(prover: Prover) -> None:
    """A delay is judged of delayed messages only."""
    delays = claims(prover(*GOOD, "delivered late", "scheduled"))["delays early or late"]
    assert (delays.found_count, delays.covered_count, dict(delays.uncovered)) == (1, 0, {"SCHEDULED": 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "claim", "why"),
    [
        ("hung", "lost", "HUNG"),
        ("no consumer", "lost", "NO_CONSUMER"),
        ("delivered again after a crash", "duplicate processing", "END_NOT_TRACED"),
        ("stored while no sample was taken", "duplicate deliveries", "GROUPS_NOT_KNOWN"),
        ("batch, topic not read", "duplicate deliveries", "BATCH_NOT_JOINED"),
    ],
)
def test_what_is_not_covered(prover: Prover, name: str, claim: str, why: str) -> None:
    """It has its reason, and the claim is not excluded."""
    found = claims(prover(*GOOD, name))[claim]
    assert found.uncovered.get(why, 0) >= 1, found.uncovered
    assert found.outcome is ProofResult.CANNOT_TELL


@pytest.mark.slow
def test_order(prover: Prover) -> None:
    """Found of a group that consumes in order; a concurrent group is left out, one that did not say is not covered."""
    found = claims(prover(*GOOD, "out of order in a queue", "out of order, two sharding keys in a queue"))
    order = found["out of order"]
    assert (order.found_count, order.covered_count, dict(order.uncovered)) == (1, 3, {})
    assert order.examples[0].codes == "CONSUMED,OUT_OF_ORDER"
    assert f"OVERTAKEN_BY(msg_id={unique_id(3)}," in order.examples[0].reasons


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "why"),
    [
        ("out of order, it is not known whether the group is ordered", 2, "ORDER_NOT_KNOWN"),
        ("out of order by the clocks of two hosts", 2, "CLOCKS_NOT_COMPARED"),
        ("the earlier one failed and is not finished", 1, "NEXT_ATTEMPT_NOT_SEEN"),
    ],
)
def test_order_that_is_not_covered(prover: Prover, name: str, count: int, why: str) -> None:
    """The reason that keeps a pair from being compared."""
    assert dict(claims(prover(name))["out of order"].uncovered) == {why: count}


def limits_of(found: ProofAnswer) -> Sequence[str]:
    assert set(outcomes(found).values()) == {ProofResult.CANNOT_TELL}
    return found.limits


@pytest.mark.slow
def test_what_may_hide_something(prover: Prover) -> None:
    """Ranges that were not read, and records that did not decode: nothing is excluded."""
    first, second = limits_of(prover(*GOOD, gaps=True, rejects=2))
    assert "4 messages in 1 range of queues: not read" in first
    assert "2 trace records stored since then: not decoded" in second


@pytest.mark.slow
def test_nothing_there(prover: Prover) -> None:
    """No message: that proves nothing."""
    [limit] = limits_of(prover(*GOOD, topic="another's"))
    assert "no message" in limit


@pytest.mark.slow
def test_command(prover: Prover, mqtrail: Command, tmp_path: Path) -> None:
    """Exit code 1: found; 3: not covered, or no lake; the text fits 80 columns and lists the messages that show it."""
    found = prover(*GOOD, "delivered twice")
    lake = str(tmp_path / "lake")
    result = mqtrail("prove", "--lake", lake, "--topic", TOPIC, "--json")
    assert result.code == 1
    assert [one["outcome"] for one in result.json["claims"]] == [claim.outcome for claim in found.claims]
    text = mqtrail("prove", "--lake", lake)
    assert text.code == 1
    assert unique_id(1) in text.out
    assert "Found: duplicate deliveries, duplicate processing" in text.out
    assert mqtrail("prove", "--lake", lake, "--topic", "nothing").code == 3
    assert mqtrail("prove", "--lake", lake, "--to", "2001-01-01").code == 3
    assert mqtrail("prove", "--lake", str(tmp_path / "no")).code == 3
    assert mqtrail("prove", "--lake", lake, "--from", "soon").code == 2
    assert json.loads(mqtrail("prove", "--lake", lake, "--rows", "0", "--json").out)["claims"][4]["examples"] == []
    assert proof(found) is not None
