"""Small functions on texts: hours of ids, kinds of copies, names of applications."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, run_stages
from mqtrail.trail.kinds import business_group, business_topic
from mqtrail.wire import SYSTEM_GROUPS, SYSTEM_TOPICS, is_business_group, is_business_topic

HOUR_MS = 3_600_000


def month_start_ms(at_ms: int) -> int:
    day = datetime.fromtimestamp(at_ms / 1000, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()) * 1000


def made(at_ms: int, zone_ms: int, chance: random.Random) -> str:
    """An id created at an instant in a time zone, as a Java client creates it."""
    in_month = at_ms + zone_ms - month_start_ms(at_ms + zone_ms)
    host = f"{chance.getrandbits(32):08X}" if chance.random() < 0.5 else f"{chance.getrandbits(128):032X}"
    return f"{host}{chance.getrandbits(16):04X}{chance.getrandbits(32):08X}{in_month:08X}{chance.getrandbits(16):04X}"


def test_hours_of_ids() -> None:
    """Every event of an id, up to weeks later, gives the same hour; a look-up that knows no month uses that hour."""
    chance = random.Random(7)
    first_ms, end_ms = 1_690_000_000_000, 1_740_000_000_000
    cases = []
    for _ in range(400):
        sent_ms = chance.randrange(first_ms, end_ms)
        zone_ms = chance.randrange(-12, 15) * HOUR_MS
        msg_id = made(sent_ms, zone_ms, chance)
        for late_ms in (0, -60_000, 10_000, 7_200_000, 20 * 24 * HOUR_MS):
            cases.append((msg_id, sent_ms, zone_ms, sent_ms + late_ms))
    connection = connect()
    names = ("msg_id", "sent_ms", "zone_ms", "event_ms")
    connection.register("ids", pa.table(dict(zip(names, zip(*cases, strict=True), strict=True))))
    rows = connection.sql(trail.publish_hour_select("ids", "msg_id", "event_ms", "msg_id, sent_ms, zone_ms")).fetchall()
    assert len(rows) == len(cases)
    for msg_id, sent_ms, zone_ms, hour in rows:
        assert hour == (sent_ms + zone_ms) // HOUR_MS, "nominal: the producer's own clock on the wall"
        assert hour in trail.publish_hours(msg_id, first_ms // HOUR_MS - 24, end_ms // HOUR_MS + 24)
        assert len(trail.publish_hours(msg_id, first_ms // HOUR_MS, end_ms // HOUR_MS)) <= 21, "one an hour a month"


def test_births_of_ids() -> None:
    """The birth is the latest possible time up to now by the producer's local clock; a month later it is another
    one."""
    chance = random.Random(9)
    for _ in range(400):
        sent_ms = chance.randrange(1_690_000_000_000, 1_740_000_000_000)
        zone_ms = chance.randrange(-12, 15) * HOUR_MS
        msg_id = made(sent_ms, zone_ms, chance)
        for late_ms in (0, 7_200_000, 20 * 24 * HOUR_MS):
            assert trail.born_ms(msg_id, sent_ms + zone_ms + late_ms) == sent_ms + zone_ms
        assert (trail.born_ms(msg_id, sent_ms + zone_ms - 1) or 0) < sent_ms + zone_ms
    assert trail.born_ms("01" + "A" * 12 + "BBBB" + f"{3600 * 5:08X}" + "00000001", 0) == (447_072 + 5) * HOUR_MS
    assert [trail.born_ms(one, 1_740_000_000_000) for one in ("", "G" * 32, "F" * 32)] == [None] * 3


@pytest.mark.parametrize(
    ("msg_id", "hour"),
    [
        ("", -1),
        ("not an id", -1),
        ("G" * 32, -1),
        ("F" * 32, -1),
        ("01" + "A" * 12 + "BBBB" + f"{3600 * 5:08X}" + "00000001", 447_072 + 5),
    ],
)
def test_ids_of_other_shapes(msg_id: str, hour: int) -> None:
    """Ids of gRPC clients have seconds since 2021. Ids without a time are in the partition of unknown hours."""
    connection = connect()
    connection.execute("CREATE TABLE ids AS SELECT ? AS msg_id, cast(1700000000000 AS bigint) AS event_ms", [msg_id])
    assert connection.sql(trail.publish_hour_select("ids", "msg_id", "event_ms", "msg_id")).fetchall() == [
        (msg_id, hour)
    ]
    assert trail.publish_hours(msg_id, 0, 500_000) == [hour]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"topic": "orders"}, "NORMAL"),
        ({"topic": "orders", "own_unique_key": "A", "last_unique_key": "B"}, "BATCH"),
        ({"topic": "orders", "own_unique_key": "A", "last_unique_key": "A", "delay_level": 3}, "DELAYED"),
        ({"topic": "orders", "origin_msg_id": "X"}, "RESENT"),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "real_topic": "orders", "delay_level": 3}, "DELAY_WAIT"),
        ({"topic": "rmq_sys_wheel_timer", "real_topic": "orders"}, "DELAY_WAIT"),
        ({"topic": "rmq_sys_wheel_timer", "tags": "_RECALL_TAG_"}, "RECALL"),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "real_topic": "%RETRY%g", "origin_msg_id": "X"}, "RETRY_WAIT"),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "real_topic": "%DLQ%g"}, "DLQ_WAIT"),
        ({"topic": "%RETRY%g", "origin_msg_id": "X", "delay_level": 3}, "RETRY"),
        ({"topic": "%DLQ%g"}, "DLQ"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "real_topic": "orders"}, "HALF"),
    ],
)
def test_kinds_of_copies(row: dict[str, object], kind: str) -> None:
    """The kind of a stored copy follows from its topic and properties."""
    connection = connect()
    connection.register("meta", arrow_rows(trail.MESSAGE_META, [row]))
    assert connection.sql(f"SELECT {trail.stored_kind()} FROM meta").fetchall() == [(kind,)]


def test_an_applications_own_names() -> None:
    """Groups and topics of the system, of tools and of traces do not belong to an application."""
    connection = connect()
    names = ["orders", "RMQ_SYS_TRACE_TOPIC", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYSTEMS", ""]
    connection.execute("CREATE TABLE names (topic string)")
    connection.executemany("INSERT INTO names VALUES (?)", [[name] for name in names])
    found = connection.sql(f"SELECT topic FROM names WHERE {trail.business_topic()}").fetchall()
    assert found == [("orders",), ("RMQ_SYSTEMS",)]
    assert [(name,) for name in names if is_business_topic(name)] == found
    for group, own in (
        ("CG", True),
        ("TOOLS_CONSUMER", False),
        ("CID_RMQ_SYS_TRANS", False),
        ("%RETRY%CG", False),
        ("", False),
    ):
        condition = trail.business_group(f"'{group}'")
        assert connection.sql(f"SELECT {condition}").fetchall() == [(own,)], group
        assert is_business_group(group) == own


def test_lag_counts_what_is_still_kept() -> None:
    """Lag is a number of messages, and the age of the first unread one; removed messages do not count.

    An offset past the end means that the queue lost messages or was recreated: the lag is unknown.
    """
    connection = connect()
    at = {"cluster": "c", "broker_name": "b", "topic": "t", "queue_id": 0}
    offsets = [
        at | {"group_name": g, "sampled_ms": 1000, "consumer_offset": o, "queue_id": q}
        for g, q, o in (("a", 0, 5), ("b", 0, 9), ("c", 0, 1), ("d", 0, 10), ("all expired", 1, 2))
    ]
    ranges = [
        at | {"sampled_ms": 900, "min_offset": 3, "max_offset": 9},
        at | {"sampled_ms": 2000, "max_offset": 99},
        at | {"sampled_ms": 900, "queue_id": 1, "min_offset": 9, "max_offset": 9},
    ]
    copies = [at | {"queue_offset": 5, "store_ms": 400}]
    for relation, rows in (
        (trail.GROUP_OFFSETS, offsets),
        (trail.QUEUE_RANGES, ranges),
        (trail.SUBSCRIPTIONS, []),
        (trail.MESSAGE_META, copies),
    ):
        connection.register(relation.name, arrow_rows(relation, rows))
    spans = trail.Stage("queue_spans", trail.queue_spans_sql("message_meta"), ("message_meta",))
    run_stages(connection, [spans, *trail.lag_stages()])
    found = connection.sql("SELECT group_name, lag_count, lag_ms FROM lag ORDER BY ALL").fetchall()
    assert found == [("a", 4, 600), ("all expired", 0, 0), ("b", 0, 0), ("c", 6, None), ("d", None, None)]


def test_what_is_an_application_s_own() -> None:
    """Verdicts use the broker's list of system topics and groups: none of them is judged."""
    duck = connect()
    for names, at_hand, sql in (
        (
            SYSTEM_TOPICS | {"DefaultHeartBeatSyncerTopic", "%RETRY%g", "rmq_sys_x", ""},
            is_business_topic,
            business_topic,
        ),
        (SYSTEM_GROUPS | {"TOOLS_X", "%RETRY%g", "CID_RMQ_SYS_x"}, is_business_group, business_group),
    ):
        for name in (*names, "", "orders"):
            [(found,)] = duck.execute(f"SELECT {sql('name')} FROM (SELECT ? AS name)", [name]).fetchall()
            assert found is at_hand(name) is (name == "orders"), name
