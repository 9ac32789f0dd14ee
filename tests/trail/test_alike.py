"""Which copies count as alike: order, time, hours and other ids; and what a later judgement takes over from the last
one."""

from __future__ import annotations

import itertools

import duckdb
import pytest

from mqtrail import trail
from mqtrail.lake import connect

Copy = tuple[str, int, int]
"""Id, publish hour, time."""
WINDOW_MS = 10_000


def found(copies: list[Copy], print_: int = 1) -> dict[str, tuple[str, int]]:
    """The later id -> the earlier one and its time."""
    duck = connect(threads=1)
    duck.execute("CREATE TABLE copies (cluster text, publish_hour bigint, msg_id text, at_ms bigint, print ubigint)")
    for msg_id, hour, at_ms in copies:
        duck.execute("INSERT INTO copies VALUES ('c', ?, ?, ?, ?)", [hour, msg_id, at_ms, print_])
    rows = duck.sql(f"SELECT msg_id, earlier_id, earlier_ms FROM ({trail.alike_found_sql('copies', WINDOW_MS)})")
    return {later: (earlier, at_ms) for later, earlier, at_ms in rows.fetchall()}


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([("a", 5, 0), ("b", 5, 10_000)], {"b": ("a", 0)}),
        ([("a", 5, 0), ("b", 5, 10_001)], {}),
        ([("b", 5, 0), ("a", 5, 0)], {"b": ("a", 0)}),
        ([("a", 5, 0), ("b", 6, 10)], {"b": ("a", 0)}),
        ([("a", 6, 0), ("b", 5, 10)], {"b": ("a", 0)}),
        ([("a", 5, 0), ("b", 7, 10)], {}),
        ([("a", 5, 0), ("x", 7, 5), ("b", 5, 10)], {"b": ("a", 0)}),
        ([("a", 5, 0), ("b", 5, 1), ("b", 5, 2), ("c", 5, 3)], {"b": ("a", 0), "c": ("b", 2)}),
        ([("a", 5, 0), ("b", 5, 1), ("a", 5, 2)], {"b": ("a", 0), "a": ("b", 1)}),
        ([("a", 5, 0), ("a", 5, 1)], {}),
        ([("a", 5, 0), ("a", 5, 9_000), ("b", 5, 12_000)], {"b": ("a", 9_000)}),
    ],
)
def test_found(copies: list[Copy], expected: dict[str, tuple[str, int]]) -> None:
    """The earlier copy is the latest one with another id within the time limit, made in the same hour or the one beside
    it."""
    for order in itertools.permutations(copies):
        assert found(list(order)) == expected


def test_known() -> None:
    """The pair in a trajectory is read back, and the latest of several is kept."""
    reasons = "GROUPS_NOT_KNOWN(sampled_ms=1);SENT_BEFORE(msg_id=a,stored_ms=17)"
    rows = f"""(VALUES ('c', 'b', 'SCHEDULED,DUPLICATE_SEND', '{reasons}'), ('c', 'd', 'DUPLICATE_SEND', '')
      ) AS t(cluster, msg_id, message_codes, reasons)"""
    later = "(SELECT 'c' AS cluster, 'b' AS msg_id, 'e' AS earlier_id, 18 AS earlier_ms) AS later"
    known = f"({trail.alike_known_sql(rows)}) AS known"
    assert duckdb.execute(trail.sent_before_sql(known)).fetchall() == [("c", "b", "a", 17)]
    assert duckdb.execute(trail.sent_before_sql(known, later)).fetchall() == [("c", "b", "e", 18)]
