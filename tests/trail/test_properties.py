"""Properties of every judgement: merging, time, sums; and every code has a history."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import duckdb
import pytest
from tests.trail.histories import AS_OF_MS, BASE_MS, HISTORIES, Row, evidence, units
from tests.trail.story import PRODUCER

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, judge_rows
from mqtrail.trail.ends import HIDDEN

TIMES = {
    "trace_events": "trace_store_ms",
    "message_meta": "store_ms",
    "gaps": "detected_ms",
    "unread_ranges": "sampled_ms",
    "group_offsets": "sampled_ms",
    "clients": "sampled_ms",
    "subscriptions": "sampled_ms",
    "queue_ranges": "sampled_ms",
    "samples": "sampled_ms",
}
ENDED = [state for state in trail.STATES if state not in trail.OPEN_STATES]


def dump(connection: duckdb.DuckDBPyConnection, name: str, without: Iterable[str] = ()) -> list[str]:
    """All rows of a result as sorted texts."""
    rows = connection.sql(f"SELECT * FROM {name}").to_arrow_table().drop_columns(list(without)).to_pylist()
    return sorted(str(row) for row in rows)


@pytest.fixture(scope="module")
def judged() -> duckdb.DuckDBPyConnection:
    return judge_rows(evidence(), AS_OF_MS)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.cycles)])
def test_order_and_repetition_of_rows_change_nothing(seed: int, judged: duckdb.DuckDBPyConnection) -> None:
    """Rows in any order, some read twice, some traced twice in other trace messages, give the same results."""
    chance = random.Random(seed)
    rows: dict[str, list[Row]] = {}
    for name, some in evidence().items():
        read = units(name, some)
        again = [row for unit in chance.sample(read, len(read) // 3) for row in unit]
        if name == "trace_events":
            again = [row | {"queue_id": 5, "trace_store_ms": row["trace_store_ms"] + 1} for row in again]
        rows[name] = some + again
        chance.shuffle(rows[name])
    other = judge_rows(rows, AS_OF_MS)
    assert dump(other, "verdicts") == dump(judged, "verdicts")
    where = ("seen_ms", "events")  # a repeated record was seen later, and may be quoted from its other place
    assert dump(other, "trajectories", where) == dump(judged, "trajectories", where)
    assert dump(other, "latency_minute") == dump(judged, "latency_minute")


def test_merging_parts_is_merging_the_whole() -> None:
    """Partial rows, merged in any split and merged again, equal all rows merged at once."""
    connection = connect()
    for relation in (trail.TRACE_EVENTS, trail.MESSAGE_META):
        connection.register(relation.name, arrow_rows(relation, evidence().get(relation.name, ())))
    connection.execute(f"CREATE TABLE rows_ AS SELECT *, row_number() OVER () AS n FROM ({trail.attempts_sql()})")
    columns = ", ".join(trail.ATTEMPTS.names)
    parts = " UNION ALL ".join(
        trail.merge_sql(f"(SELECT {columns} FROM rows_ WHERE n % 3 IN ({some}))") for some in ("0", "1", "1, 2")
    )
    connection.execute(f"CREATE VIEW whole AS {trail.merge_sql('rows_')}")
    connection.execute(f"CREATE VIEW in_parts AS {trail.merge_sql(f'({parts})')}")
    assert dump(connection, "in_parts") == dump(connection, "whole")


def known_at(rows: dict[str, list[Row]], instant: int) -> dict[str, list[Row]]:
    """The rows known at an instant, with a sample taken just then."""
    samples = [
        row | {"sampled_ms": min(row["sampled_ms"], instant)} for row in rows["samples"] if row["what"] == "SAMPLE"
    ]
    known = {name: [row for row in some if row[TIMES[name]] <= instant] for name, some in rows.items()}
    return known | {"samples": [row for row in known["samples"] if row["what"] != "SAMPLE"] + samples}


class States(dict[tuple[str, str, str], str]):
    """The state of every message and group; hidden: messages that are known to be offered to no group."""

    def __init__(self, rows: dict[str, list[Row]], as_of_ms: int) -> None:
        judged = judge_rows(rows, as_of_ms)
        found = judged.sql("SELECT cluster, msg_id, group_name, state FROM verdicts").fetchall()
        super().__init__({(cluster, msg_id, group): state for cluster, msg_id, group, state in found})
        self.hidden = set(judged.sql(f"SELECT cluster, msg_id FROM messages WHERE {HIDDEN}").fetchall())

    def gone(self, later: States) -> set[tuple[str, str, str]]:
        """The groups that are no longer judged because their messages turned out to be hidden."""
        return {
            key for key, state in self.items() if state in trail.OPEN_STATES and key[:2] in later.hidden - self.hidden
        }


@pytest.mark.parametrize(
    "instants",
    [
        pytest.param((70, 4_200), marks=pytest.mark.slow),
        pytest.param((1, 30, 70, 130, 600, 4_200), marks=pytest.mark.cycles),
    ],
    ids=len,
)
def test_states_move_along_allowed_transitions(instants: tuple[int, ...]) -> None:
    """As records arrive and time passes, open states may become any state, final ones only what the table allows."""
    rows = evidence()
    before = States({}, 0)
    for seconds in instants:
        instant = BASE_MS + seconds * 1000
        after = States(known_at(rows, instant), instant)
        gone = before.gone(after)
        assert before.keys() <= after.keys() | gone, "a group once judged stays judged"
        for key, state in before.items() - {(key, before[key]) for key in gone}:
            allowed = trail.TRANSITIONS.get(state, frozenset(trail.STATES)) | {state}
            assert after[key] in allowed, f"{key} at {seconds} s: {state} became {after[key]}"
        before = after
    assert set(ENDED) & set(before.values()) >= {"CONSUMED", "DEAD_LETTERED", "FILTERED"}


IN_TIME = {"expired just now", "POP, acknowledged just now", "POP, acknowledged, a copy may still be made"}
"""Histories that end because a trace record or a copy did not come in time: that is evidence."""


@pytest.mark.slow
def test_a_later_instant_alone_ends_nothing() -> None:
    """Time without evidence turns IN_FLIGHT into HUNG and fresh samples into stale ones; it proves no success."""
    rows = evidence()
    now, later = States(rows, AS_OF_MS), States(rows, AS_OF_MS + 60_000)
    for key, state in now.items() - {(key, now[key]) for key in now.gone(later)}:
        if key[0] in IN_TIME:
            continue
        if state in ENDED or later[key] in ENDED:
            assert later[key] == state, key
    assert later["in flight", next(m for c, m, _ in now if c == "in flight"), "CG"] == "HUNG"


def test_the_latency_split_adds_up(judged: duckdb.DuckDBPyConnection) -> None:
    """The time from send to done is the sum of its parts, for every message and group that has it."""
    parts = "to_stored_ms + delay_ms + to_delivered_ms + retry_ms + handler_ms"
    rows = judged.sql(f"SELECT total_ms, {parts} FROM verdicts WHERE total_ms IS NOT NULL").fetchall()
    assert len(rows) > 20
    assert all(total == added for total, added in rows)


def test_splits_are_of_one_send(judged: duckdb.DuckDBPyConnection) -> None:
    """A message that was sent again has no negative part; its first success is measured from its own send."""
    columns = "to_stored_ms, delay_ms, to_delivered_ms, retry_ms, handler_ms, total_ms"
    rows = judged.sql(f"SELECT cluster, {columns} FROM verdicts WHERE group_name = 'CG'").fetchall()
    splits = {cluster: parts for cluster, *parts in rows}
    assert splits["only the last try of a send is traced, the first one is stored"] == [None, 0, 16, 0, 10, None]
    assert splits["a timed out try is stored, its retry too"] == [4, 0, 16, 0, 10, 30]
    assert splits["dead, put back and consumed"] == [None, 0, 1_000, 0, 10, None]
    assert splits["dead, put back into its group alone"] == [None, 0, 1_000, 0, 10, None]
    assert splits["sent twice by the application"] == [4, 0, 16, 0, 10, 30]


def test_dead_letters_name_their_cause(judged: duckdb.DuckDBPyConnection) -> None:
    """The cause is recorded by the broker, marked as an ordered give-up, or inferred from the group's longest chain."""
    dead = "SELECT cluster, dead_cause FROM verdicts WHERE state = 'DEAD_LETTERED' AND cluster NOT LIKE '%read from%'"
    found = dict(judged.sql(dead).fetchall())
    assert found == {
        "dead, the broker records the cause": "BY_HANDLER",
        "dead, attempts exhausted": "ATTEMPTS_EXHAUSTED",
        "dead, ordered give-up": "ORDERED_GIVE_UP",
        "dead, put back, failed and dead again": "",
        "namespace, dead": "",
    }


def test_events_are_in_order(judged: duckdb.DuckDBPyConnection) -> None:
    """A trajectory lists every attempt of the message, by time."""
    query = "SELECT events FROM trajectories WHERE cluster = 'consumed after retry'"
    ((events,),) = judged.sql(query).fetchall()
    kinds = [(event["kind"], event["outcome"]) for event in events]
    assert kinds == [
        ("SEND", "OK"),
        ("STORED", "NORMAL"),
        ("HANDLED", "FAILED"),
        ("STORED", "RETRY_WAIT"),
        ("STORED", "RETRY"),
        ("HANDLED", "OK"),
    ]


def test_settings_move_the_thresholds() -> None:
    """A threshold is a setting, and a report can list the changed ones."""
    settings = trail.Settings(send_slow_ms=5, hung_ms=700_000, consume_slow_ms=10)
    assert settings.changed() == {"send_slow_ms": 5, "hung_ms": 700_000, "consume_slow_ms": 10}
    some = tuple(h for h in HISTORIES if h.name in ("send ok", "hung"))
    connection = judge_rows(evidence(some), AS_OF_MS, settings)
    query = "SELECT t.cluster, send_codes, codes FROM trajectories t JOIN verdicts USING (cluster, msg_id) ORDER BY ALL"
    assert connection.sql(query).fetchall() == [
        ("hung", "SEND_OK,SEND_SLOW", "IN_FLIGHT"),
        ("send ok", "SEND_OK,SEND_SLOW", "CONSUMED,CONSUMED_SLOW"),
    ]


@pytest.mark.slow
def test_a_slow_group_is_hung_later() -> None:
    """HUNG waits for three times the 99th percentile if that is above the default and a hundred hand-overs ended."""
    slow = next(h for h in HISTORIES if h.name == "hung")
    template = next(row for row in slow.rows["trace_events"] if row["record_type"] == "SubBefore")
    for count, state in ((99, "HUNG"), (100, "IN_FLIGHT")):
        rows = {name: list(some) for name, some in evidence((slow,)).items()}
        for number in range(count):
            ids = {"msg_id": f"{number:032X}", "request_id": f"Q{number}"}
            ended = {
                "record_type": "SubAfter",
                "success": True,
                "cost_ms": 20_000,
                "event_ms": template["event_ms"] + 20_000,
            }
            rows["trace_events"] += [template | ids, template | ids | ended]
        found = States(rows, AS_OF_MS)
        assert {s for (_, m, _), s in found.items() if m == template["msg_id"]} == {state}, count


def test_every_code_has_a_history() -> None:
    """Every code is in a labelled history."""
    shown: set[str] = set()
    for history in HISTORIES:
        for expected in history.expected.values():
            texts: list[Any] = [expected.send, expected.message, expected.knowledge, *expected.groups.values()]
            shown |= {code for text in texts for code in text.split(",")}
    assert set(trail.CODES) == shown - {""}


def test_a_recalled_message_keeps_its_own_tag_and_host(judged: duckdb.DuckDBPyConnection) -> None:
    """The timer's record of the recall has a tag and a sender host of its own."""
    query = "SELECT tags, producer_host, body_size, stored_ms FROM trajectories WHERE cluster = 'recalled'"
    assert judged.sql(query).fetchall() == [("TagA", PRODUCER, 10, BASE_MS)]
