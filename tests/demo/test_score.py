"""The scorer: expected codes from hand-written notes, and the counts."""

from pathlib import Path
from typing import Any

import pytest

from mqtrail.demo.score import ClusterFacts, Codes, Thresholds, expected_codes, score
from mqtrail.demo.truth import (
    Fault,
    HandlerResult,
    HandlingEnded,
    HandlingStarted,
    Note,
    SeenOutcome,
    Sent,
    TruthLog,
    read_truth,
)

KEY = "order-000001.created"
AS_OF_MS = 100_000


def sent(outcome: SeenOutcome = SeenOutcome.OK, **changes: Any) -> Sent:
    fields: dict[str, Any] = {
        "key": KEY,
        "topic": "orders",
        "tag": "CREATED",
        "outcome": outcome,
        "attempts": 1,
        "acknowledged_ms": 3,
        "traced": True,
        "at_ms": 1_000,
    }
    return Sent(**{**fields, **changes})


def handled(
    number: int,
    result: HandlerResult | None,
    at_ms: int = 2_000,
    took_ms: float = 5,
    process: int = 7,
    retry: int = 0,
) -> list[Note]:
    started = HandlingStarted(key=KEY, group="stock", number=number, process=process, at_ms=at_ms, retry=retry)
    if result is None:
        return [started]
    return [started, HandlingEnded(number=number, process=process, result=result, took_ms=took_ms)]


def scene(**changes: Any) -> ClusterFacts:
    fields: dict[str, Any] = {
        "as_of_ms": AS_OF_MS,
        "thresholds": Thresholds(send_slow_ms=1_000, consumed_slow_ms=1_000, hung_ms=15_000, late_ms=3_000),
        "tags": {"orders": {"stock": frozenset({"CREATED"})}},
        "live_groups": frozenset({"stock"}),
        "live_processes": frozenset({7}),
        "dead_letters": {},
        "stored": frozenset({KEY}),
        "visible_ms": {},
    }
    return ClusterFacts(**{**fields, **changes})


CASES: list[tuple[str, list[Note], dict[str, Any], set[str], set[str]]] = [
    ("consumed", [sent(), *handled(1, HandlerResult.SUCCESS)], {}, {"SEND_OK"}, {"CONSUMED"}),
    ("slow", [sent(acknowledged_ms=1_000), *handled(1, HandlerResult.SUCCESS, took_ms=1_000)], {},
     {"SEND_OK", "SEND_SLOW"}, {"CONSUMED", "CONSUMED_SLOW"}),
    ("retried", [sent(attempts=2), *handled(1, HandlerResult.ERROR),
                 *handled(2, HandlerResult.SUCCESS, 3_000, retry=1)], {},
     {"SEND_OK", "SEND_RETRIED"}, {"CONSUMED", "CONSUMED_AFTER_RETRY"}),
    ("refused", [sent(SeenOutcome.REFUSED)], {"stored": frozenset()}, {"SEND_FAILED"}, set()),
    ("uncertain, stored", [sent(SeenOutcome.UNCERTAIN)], {}, {"SEND_UNCERTAIN"}, {"WAITING"}),
    ("no consumer online", [sent()], {"live_groups": frozenset()}, {"SEND_OK"}, {"NO_CONSUMER"}),
    ("filtered", [sent(tag="PAID")], {}, {"SEND_OK"}, {"FILTERED"}),
    ("hung", [sent(), *handled(1, None, AS_OF_MS - 15_000)], {}, {"SEND_OK"}, {"HUNG"}),
    ("in flight", [sent(), *handled(1, None, AS_OF_MS - 14_999)], {}, {"SEND_OK"}, {"IN_FLIGHT"}),
    ("retrying", [sent(), *handled(1, HandlerResult.LATER)], {}, {"SEND_OK"}, {"RETRYING"}),
    ("dead", [sent(), *handled(1, HandlerResult.DEAD)], {"dead_letters": {"stock": frozenset({KEY})}},
     {"SEND_OK"}, {"DEAD_LETTERED"}),
    ("twice", [sent(), *handled(1, HandlerResult.SUCCESS), *handled(2, HandlerResult.SUCCESS, 3_000)], {},
     {"SEND_OK"}, {"CONSUMED", "DUPLICATE_DELIVERY", "DUPLICATE_PROCESSING"}),
    ("failed copy came twice", [sent(), *handled(1, HandlerResult.LATER),
                                *handled(2, HandlerResult.LATER, 3_000, retry=1),
                                *handled(3, HandlerResult.LATER, 4_000, retry=1)], {},
     {"SEND_OK"}, {"RETRYING", "DUPLICATE_DELIVERY"}),
    ("stored twice", [sent(), *handled(1, HandlerResult.SUCCESS), *handled(2, HandlerResult.SUCCESS, 3_000)],
     {"send_counts": {KEY: 2}}, {"SEND_OK"}, {"CONSUMED", "DUPLICATE_PROCESSING"}),
    ("killed in between", [sent(), *handled(1, None, process=8), *handled(1, HandlerResult.SUCCESS, 3_000)], {},
     {"SEND_OK"}, {"CONSUMED", "DUPLICATE_DELIVERY"}),
]  # fmt: skip


@pytest.mark.parametrize(("notes", "changes", "send", "group"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_expected_codes(notes: list[Note], changes: dict[str, Any], send: set[str], group: set[str]) -> None:
    """Each story of a message has exactly its expected codes."""
    codes = expected_codes(notes, scene(**changes))[KEY]
    assert codes.send == send
    assert codes.groups.get("stock", set()) == group
    assert codes.knowledge == {"COMPLETE"}


def test_untraced_owes_no_send_code() -> None:
    """A stored message without a send record does not prove SEND_OK, and is INCOMPLETE."""
    codes = expected_codes([sent(traced=False)], scene())[KEY]
    assert (codes.send, codes.knowledge) == (set(), {"INCOMPLETE"})


def test_stored_twice() -> None:
    """Two copies of one id are a duplicate send, beside the codes of a delay."""
    codes = expected_codes([sent(due_ms=200_000)], scene(send_counts={KEY: 2}))[KEY]
    assert codes.message == {"DUPLICATE_SEND", "SCHEDULED"}


@pytest.mark.parametrize(
    ("visible_ms", "expected"), [(None, {"SCHEDULED"}), (203_000, {"DELIVERED_LATE"}), (202_999, set())]
)
def test_delayed(visible_ms: int | None, expected: set[str]) -> None:
    """A message that is not due is SCHEDULED; one delivered three seconds late is DELIVERED_LATE."""
    visible = {} if visible_ms is None else {KEY: visible_ms}
    assert expected_codes([sent(due_ms=200_000)], scene(visible_ms=visible))[KEY].message == expected


def test_score_counts_what_is_missed_and_what_is_wrong() -> None:
    """Unexpected codes lower precision, missed ones lower recall."""
    expected = {
        "a": Codes(send={"SEND_OK"}, knowledge={"COMPLETE"}),
        "b": Codes(send={"SEND_OK"}, knowledge={"COMPLETE"}),
    }
    given = {"a": Codes(send={"SEND_OK", "SEND_SLOW"}, knowledge={"COMPLETE"}), "b": Codes(knowledge={"INCOMPLETE"})}
    rows = {row.code: row for row in score(expected, given)}
    assert (rows["SEND_OK"].precision, rows["SEND_OK"].recall, rows["SEND_OK"].missed) == (1.0, 0.5, ("b",))
    assert (rows["SEND_SLOW"].precision, rows["SEND_SLOW"].recall) == (0.0, None)
    assert (rows["COMPLETE"].recall, rows["INCOMPLETE"].wrong) == (0.5, 1)


def test_truth_round_trip(tmp_path: Path) -> None:
    """Notes are read as they were written, and a line truncated by kill -9 ends its file."""
    notes: list[Note] = [sent(), *handled(1, HandlerResult.SUCCESS), Fault(name="X", at_ms=1, detail="d", keys=("k",))]
    with TruthLog(tmp_path) as log:
        for note in notes:
            log.add(note)
    file = next(tmp_path.glob("truth-*.jsonl"))
    file.write_text(file.read_text() + '{"kind":"fau')
    found = list(read_truth(tmp_path))
    assert found == notes
    assert isinstance(found[0], Sent)
    assert found[0].outcome is SeenOutcome.OK
    assert isinstance(found[2], HandlingEnded)
    assert found[2].result is HandlerResult.SUCCESS
