"""Faults of synthetic lakes: each with its expected cause and condition, and the evidence of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.trail.incident_lakes import HOSTS, PRODUCERS, QUEUES, VERSION, IncidentLake, client_of, host_of

from mqtrail import trail

Put = Callable[[IncidentLake, str, int], str]
"""Puts a fault of some minutes into a group (or its topic); returns the expected condition, `dimension = value`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """put: into the lake. hide: SQL that removes the evidence of the cause, but not the bad messages where possible."""

    cause: str
    put: Put
    hide: tuple[str, ...]
    minutes: int = 15


def _slow_dependency(lake: IncidentLake, group: str, minutes: int) -> str:
    span = lake.span(minutes)
    lake.verdict("codes = 'CONSUMED,CONSUMED_SLOW', handler_ms = 3000 + hash(msg_id) % 2000",
                 lake.of_group(group, span, 0.7))  # fmt: skip
    lake.verdict("to_delivered_ms = to_delivered_ms + 7000", lake.of_group(group, span, 0.4))
    return f"group_name = {group}"


def _bad_host(lake: IncidentLake, group: str, minutes: int) -> str:
    span, number = lake.span(minutes), lake.chance.randrange(HOSTS)
    lake.verdict(
        "codes = 'CONSUMED,CONSUMED_AFTER_RETRY', failure_count = 1, "
        "detail = 'OSError: [Errno 28] No space left on device: ''/tmp/' || hash(msg_id) || ''''",
        lake.of_group(group, span, 0.8, f"client = '{client_of(group, number)}'"),
    )
    return f"client_host = {host_of(group, number)}"


def _poison_key(lake: IncidentLake, group: str, minutes: int) -> str:
    key = f"cust-{lake.chance.randrange(100)}"
    topic = f"T{group[1]}"
    ids = f"SELECT msg_id FROM trajectories WHERE topic = '{topic}' AND keys LIKE '% {key}'"
    lake.verdict(
        "state = 'DEAD_LETTERED', codes = 'DEAD_LETTERED', success_count = 0, "
        "detail = 'ValueError: bad amount ' || hash(msg_id) % 77",
        f"group_name = '{group}' AND msg_id IN ({ids})",
    )
    return f"key = {key}"


def _rebalance_storm(lake: IncidentLake, group: str, minutes: int) -> str:
    begin, end = lake.span(minutes)
    for at in range(begin, end, 40_000):
        number = lake.chance.randrange(HOSTS)
        lake.gone(group, number, at)
        lake.client(group, number, at + 20_000)
    lake.verdict(
        "codes = 'CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING', delivery_count = 2, success_count = 2",
        lake.of_group(group, (begin, end), 0.15),
    )
    return f"group_name = {group}"


def _dead_consumer(lake: IncidentLake, group: str, minutes: int) -> str:
    span = lake.span(minutes)
    for number in range(HOSTS):
        lake.gone(group, number, span[0])
    lake.verdict(
        "state = 'NO_CONSUMER', codes = 'NO_CONSUMER', client = '', success_count = 0, delivery_count = 0, "
        "first_delivered_ms = NULL, to_delivered_ms = NULL, handler_ms = NULL",
        lake.of_group(group, span, 1.0),
    )
    return f"group_name = {group}"


def _broker_restart(lake: IncidentLake, group: str, minutes: int) -> str:
    begin, end = lake.span(minutes)
    broker = lake.chance.choice(("broker-a", "broker-b"))
    other = "broker-b" if broker == "broker-a" else "broker-a"
    hit = (f"broker_name = '{broker}' AND send_start_ms >= {begin} AND send_start_ms < {end} "
           f"AND {lake.likely(0.7)}")  # fmt: skip
    lake.duck.execute(
        f"""INSERT INTO attempts BY NAME SELECT cluster, publish_hour, msg_id, 'SEND_TRY' AS kind,
        msg_id || '#1' AS attempt_key, 1 AS failed, 1 AS attempt_no, 'ERROR' AS outcome, 14 AS response_code,
        broker_name, '10.0.0.1:10911' AS store_host FROM trajectories WHERE {hit}"""
    )
    lake.duck.execute(
        f"UPDATE trajectories SET send_codes = 'SEND_OK,SEND_RETRIED', broker_name = '{other}' WHERE {hit}"
    )
    for what in ("OFFSETS", "GROUPS"):
        lake.insert(trail.SAMPLES, sampled_ms=begin + 5_000, what=what, broker_name=broker, status="FAILED",
                    seen_ms=begin - 5_000, reason="connection refused")  # fmt: skip
    return f"broker = {broker}"


def _fail_over(lake: IncidentLake, group: str, minutes: int) -> str:
    """The samples of a broker restart, and the record of another broker of the group that became master."""
    condition = _broker_restart(lake, group, minutes)
    broker = condition.removeprefix("broker = ")
    [(at_ms,)] = lake.ask("SELECT max(sampled_ms) FROM samples WHERE status = 'FAILED'")
    lake.insert(
        trail.BROKER_EVENTS, source="trace", event="BECAME_MASTER", event_ms=at_ms, event_broker_name=broker,
        address="10.0.0.2:10911", epoch=2, before_address="10.0.0.1:10911", before_until_ms=at_ms - 5_000,
    )  # fmt: skip
    return condition


def _deployment(lake: IncidentLake, group: str, minutes: int) -> str:
    span = lake.span(minutes)
    lake.verdict("client = replace(client, '@100#', '@200#')", lake.of_group(group, (span[0], 2**60), 1.0))
    for number in range(HOSTS):
        lake.gone(group, number, span[0])
        lake.client(group, number, span[0] - 3_000, process=200, version=VERSION + 10)
    lake.verdict("state = 'RETRYING', codes = 'RETRYING', success_count = 0, detail = 'KeyError: ''new_field'''",
                 lake.of_group(group, (span[0], 2**60), 0.6))  # fmt: skip
    return f"version = {VERSION + 10}"


def _exhausted_pool(lake: IncidentLake, group: str, minutes: int) -> str:
    span = lake.span(minutes)
    lake.verdict("to_delivered_ms = 8000 + hash(msg_id) % 50000", lake.of_group(group, span, 0.9))
    return f"group_name = {group}"


def _hot_queue(lake: IncidentLake, group: str, minutes: int) -> str:
    begin, end = lake.span(minutes)
    queue = lake.chance.randrange(QUEUES)
    broker = "broker-a" if queue < 4 else "broker-b"
    topic = f"T{group[1]}"
    lake.duck.execute(
        f"UPDATE trajectories SET queue_id = {queue}, broker_name = '{broker}' WHERE topic = '{topic}' "
        f"AND visible_ms >= {begin} AND visible_ms < {end} AND {lake.likely(0.3, 'hot')}"
    )
    on_queue = f"msg_id IN (SELECT msg_id FROM trajectories WHERE topic = '{topic}' AND queue_id = {queue})"
    lake.verdict("to_delivered_ms = 6000 + hash(msg_id) % 30000", lake.of_group(group, (begin, end), 0.9, on_queue))
    return f"queue = {broker}/{topic}/{queue}"


def _wrong_clock(lake: IncidentLake, group: str, minutes: int) -> str:
    host = f"10.9.0.{lake.chance.randrange(PRODUCERS)}"
    begin, _ = lake.span(minutes)
    shift = lake.chance.choice((-1, 1)) * lake.chance.randrange(2_000, 90_000)
    hit = f"producer_host = '{host}:4000' AND stored_ms >= {begin}"
    lake.verdict(f"to_stored_ms = to_stored_ms - {shift}", f"msg_id IN (SELECT msg_id FROM trajectories WHERE {hit})")
    lake.duck.execute(
        f"UPDATE trajectories SET send_start_ms = send_start_ms + {shift}, acked_ms = acked_ms + {shift} WHERE {hit}"
    )
    return f"producer_host = {host}"


def _consumer_ahead(lake: IncidentLake, group: str, minutes: int) -> str:
    """Deliveries read like long waits: only the order of events shows that the clock is wrong."""
    host = host_of(group, lake.chance.randrange(HOSTS))
    begin, end = lake.span(minutes)
    shift = lake.chance.randrange(6_000, 90_000)
    times = ("first_delivered_ms", "success_start_ms", "done_ms", "to_delivered_ms")
    at = "(SELECT t.visible_ms FROM trajectories t WHERE t.msg_id = verdicts.msg_id)"
    lake.verdict(
        ", ".join(f"{name} = {name} + {shift}" for name in times),
        f"group_name = '{group}' AND client LIKE '{host}@%' AND {at} >= {begin} AND {at} < {end}",
    )
    window = trail.clock_window("visible_ms")
    lake.duck.execute(
        f"INSERT INTO clock_bounds SELECT DISTINCT cluster, '{host}', broker_name, {window}, {shift - 3}, "
        f"CASE WHEN {window} >= {begin} THEN {shift + 5} ELSE 5 END "
        f"FROM trajectories WHERE visible_ms >= {begin} AND visible_ms < {end}"
    )
    return f"client_host = {host}"


_NO_CLIENTS = "UPDATE verdicts SET client = ''"
_NO_CLIENT_SAMPLES = "DELETE FROM clients"

FAULTS: dict[str, Fault] = {
    "slow dependency": Fault("DEPENDENCY", _slow_dependency, (_NO_CLIENTS,)),
    "bad host": Fault("BAD_HOST", _bad_host, (_NO_CLIENTS,)),
    "poison key": Fault("POISON_KEY", _poison_key, ("UPDATE trajectories SET keys = ''",)),
    "rebalance storm": Fault("REBALANCES", _rebalance_storm, (_NO_CLIENT_SAMPLES,)),
    "dead consumer": Fault(
        "CONSUMER_GONE",
        _dead_consumer,
        ("UPDATE verdicts SET state = 'UNKNOWN', codes = 'UNKNOWN' WHERE state = 'NO_CONSUMER'",),
    ),
    "broker restart": Fault(
        "BROKER_RESTARTED",
        _broker_restart,
        ("DELETE FROM attempts", "UPDATE trajectories SET broker_name = '' WHERE send_codes LIKE '%RETRIED'",
         "DELETE FROM samples WHERE status = 'FAILED'"),
        minutes=5,
    ),
    "fail-over": Fault(
        "MASTER_CHANGED",
        _fail_over,
        ("DELETE FROM attempts", "UPDATE trajectories SET broker_name = '' WHERE send_codes LIKE '%RETRIED'",
         "DELETE FROM samples WHERE status = 'FAILED'", "DELETE FROM broker_events"),
        minutes=5,
    ),
    "deployment": Fault("DEPLOYMENT", _deployment, (_NO_CLIENT_SAMPLES, _NO_CLIENTS)),
    "exhausted pool": Fault(
        "THREADS_EXHAUSTED", _exhausted_pool, ("UPDATE verdicts SET handler_ms = NULL, handler_cost_ms = NULL",)
    ),
    "hot queue": Fault("HOT_QUEUE", _hot_queue, ("UPDATE trajectories SET queue_id = NULL",)),
    "wrong clock": Fault("WRONG_CLOCK", _wrong_clock, ("UPDATE trajectories SET producer_host = ''",)),
    "consumer ahead": Fault("WRONG_CLOCK", _consumer_ahead, ("DELETE FROM clock_bounds", _NO_CLIENTS), minutes=30),
}  # fmt: skip
"""Every fault of the issue, by name."""
