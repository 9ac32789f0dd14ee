"""Dead letters of a lake: equal errors are counted together, each letter has the error of each attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtrail.answers import Answers, DeadLetterConditions
from tests.answers.lakes import AS_OF_MS, id_of, make_lake, rows_of
from tests.cli.conftest import Command, mqtrail

__all__ = ["mqtrail"]
DEAD = "dead, attempts exhausted"


@pytest.fixture(scope="module")
def dead_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one dead letter, whose two attempts failed with errors, and messages that are none."""
    rows = rows_of()
    for row in list(rows["trace_events"]):
        if row["msg_id"] == id_of(DEAD) and row["record_type"] == "SubAfter":
            number = row["request_id"].removeprefix("R")
            result = {"record_type": "SubResult", "result": "EXCEPTION", "queue_offset": row["queue_offset"] + 100}
            result |= {"retry_times": int(number) - 1, "detail": f"OSError: 'host-{number}' refused at {number}"}
            result |= {"store_broker_name": "broker-a", "store_queue_id": 0, "store_queue_offset": int(number)}
            rows["trace_events"].append({**row, **result})
    lake = tmp_path_factory.mktemp("dead") / "lake"
    make_lake(lake, rows)
    return lake


def test_a_letter_and_its_errors(dead_lake: Path) -> None:
    """Every attempt has its own error; the count names the error without quoted parts and numbers."""
    found = Answers(dead_lake).dead_letters(DeadLetterConditions(), AS_OF_MS)
    [letter] = found.letters
    assert (letter.msg_id, letter.group_name, letter.cause) == (id_of(DEAD), "CG", "ATTEMPTS_EXHAUSTED")
    assert [(one.kind, one.outcome, one.detail) for one in letter.attempts] == [
        ("RESULT", "EXCEPTION", "OSError: 'host-1' refused at 1"),
        ("RESULT", "EXCEPTION", "OSError: 'host-2' refused at 2"),
    ]
    [error] = found.errors
    assert (error.error, error.message_count, error.example) == ("OSError: '' refused at #", 1, id_of(DEAD))
    assert letter.resend_command == ("mqtrail", "message", "resend", "CG", "--id", id_of(DEAD))


@pytest.mark.parametrize(
    ("conditions", "matched", "errors"),
    [
        (DeadLetterConditions(group_name="CG", topic="orders"), 1, 1),
        (DeadLetterConditions(error="OSError: '' refused at #"), 1, 1),
        (DeadLetterConditions(error=""), 0, 1),
        (DeadLetterConditions(group_name="other"), 0, 0),
        (DeadLetterConditions(topic="other"), 0, 0),
        (DeadLetterConditions(first_ms=AS_OF_MS), 0, 0),
        (DeadLetterConditions(skip=1), 1, 1),
    ],
)
def test_conditions(dead_lake: Path, conditions: DeadLetterConditions, matched: int, errors: int) -> None:
    """All must match; errors are counted for the other conditions, so that a reader can choose another error."""
    found = Answers(dead_lake).dead_letters(conditions, AS_OF_MS)
    assert (found.matched_count, len(found.errors)) == (matched, errors)
    assert len(found.letters) == (0 if conditions.skip else matched)


def test_without_records_of_results_errors_are_unknown(lake_path: Path) -> None:
    """Clients of Apache trace attempts without errors: they are listed, and their error is ''."""
    found = Answers(lake_path).dead_letters(DeadLetterConditions(), AS_OF_MS)
    assert [(one.error, len(one.attempts)) for one in found.letters] == [("", 2)]
    assert [one.detail for one in found.letters[0].attempts] == ["", ""]


def test_as_a_command(mqtrail: Command, dead_lake: Path) -> None:
    """It prints counts, attempts and the command that resends; without a match the exit code is 1."""
    shown = mqtrail("dead-letters", "--lake", str(dead_lake))
    assert shown.code == 0
    for words in ("1  CG  orders  OSError: '' refused at #", "refused at 2", f"resend CG --id {id_of(DEAD)}"):
        assert words in shown.out
    assert mqtrail("dead-letters", "--lake", str(dead_lake), "--group", "other", "--json").code == 1
