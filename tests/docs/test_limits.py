"""The limits that the pages state are those of the code. What happens beyond a limit is tested beside the code."""

import re
from pathlib import Path

import pytest

from mqtrail.answers import queries
from mqtrail.broker import bounds, config
from mqtrail.broker.clients import forward
from mqtrail.broker.filter import table
from mqtrail.broker.messages import send
from mqtrail.broker.pop import orders
from mqtrail.broker.tables import offsets
from mqtrail.broker.telemetry import statistics
from mqtrail.client import ConsumerConfig
from mqtrail.client.admin import base
from mqtrail.client.core import empty_answers, routes
from mqtrail.gateway import DoorConfig, http_server
from mqtrail.namesrv import key_values, registrations, requests
from mqtrail.namesrv import route_tables as tables
from mqtrail.net import client, log, metrics_port, server_connection
from mqtrail.node import table_writer
from mqtrail.trail.trace_rows import TRACE_BODY_SIZE_MAX, TRACE_PARTS_MAX
from mqtrail.wire import body, command, frame, jobs, json_bounds, properties, registration, topics
from mqtrail.wire.sql92 import grammar, nodes

PAGES = Path(__file__).parents[2] / "docs"
KIB, MIB = 1024, 1024 * 1024


def joined(text: str) -> str:
    """Return the text without spaces and commas between the digits of a number."""
    return re.sub(r"(?<=\d)[ ,](?=\d{3}(?!\d))", "", text)


ROWS = {
    line.split(" | ")[0].removeprefix("| "): joined(line)
    for line in (PAGES / "reference" / "compatibility.md").read_text().splitlines()
    if line.startswith("| ")
}
THREATS = joined(" ".join((PAGES / "design" / "threats.md").read_text().split()))


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("frame", [f"{frame.FRAME_SIZE_MAX // MIB} MiB"]),
        (
            "header of a frame",
            [
                f"{frame.HEADER_SIZE_MAX // KIB} KiB",
                f"{command.EXT_FIELDS_MAX} fields",
                f"{command.HEADER_NODES_MAX} values",
            ],
        ),
        (
            "JSON body",
            [
                f"{json_bounds.NODES_MAX} values",
                f"({json_bounds.DIALECT_NODES_MAX} when",
                f"{json_bounds.DEPTH_MAX} levels",
            ],
        ),
        ("remark of a reply", [f"{command.REMARK_LENGTH_MAX} characters"]),
        ("properties of a message", [f"{properties.PROPERTIES_SIZE_MAX} bytes"]),
        (
            "topic, group, retry topic",
            [f"{topics.TOPIC_LENGTH_MAX}, {topics.GROUP_LENGTH_MAX}, {topics.RETRY_TOPIC_LENGTH_MAX} characters"],
        ),
        (
            "held pulls, held pops",
            [f"a tenth, or {bounds.HELD_PEER_MIN}", f"{bounds.HELD_SIZE_MAX // MIB} Mi characters"],
        ),
        ("subscription in a pull or pop", [f"{bounds.EXPRESSION_LENGTH_MAX} characters"]),
        ("offsets that groups commit (15, pulls)", [f"{offsets.OFFSETS_MAX};"]),
        ("queues that groups pop in order", [f"{orders.ORDERS_MAX};"]),
        (
            "statistics: counters of queues, and of groups by queue or topic",
            [f"{statistics.COUNTERS_MAX} of each kind", f"{statistics.ITEMS_MAX} figures"],
        ),
        (
            "heartbeat",
            [
                f"{bounds.HEARTBEAT_SIZE_MAX // MIB} MiB",
                f"{bounds.CLIENT_GROUPS_MAX} consumer and {bounds.CLIENT_GROUPS_MAX} producer groups",
                f"{bounds.GROUP_SUBSCRIPTIONS_MAX} subscriptions",
                f"{bounds.EXPRESSION_LENGTH_MAX} characters per expression",
                f"{bounds.CLIENT_ID_LENGTH_MAX} per client id",
            ],
        ),
        ("connections in groups, of producers and consumers together", [f"| {bounds.MEMBERSHIPS_MAX} |"]),
        (
            "subscriptions of all live consumer groups",
            [f"{bounds.SUBSCRIPTIONS_SIZE_MAX // MIB} Mi characters", f"{table.FILTERS_SIZE_MAX // MIB} Mi |"],
        ),
        (
            "queues of one lock request (41, 42)",
            [f"{bounds.LOCK_QUEUES_MAX};", f"{bounds.GROUP_NAME_LENGTH_MAX} characters"],
        ),
        ("queues of a topic, retry queues of a group", [f"| {config.QUEUES_MAX} |"]),
        ("topics (18), groups (225) of one request", [f"| {bounds.CONFIG_LIST_MAX} |"]),
        ("acks of one batch (200151)", [f"{bounds.BATCH_ACKS_MAX} groups"]),
        ("groups with their own mode (401)", [f"| {bounds.REQUEST_MODES_MAX} |"]),
        (
            "registration at a name server (103, 217)",
            [f"addresses {tables.NAME_LENGTH_MAX} characters", f"{registrations.FILTER_SERVERS_MAX} filter servers"],
        ),
        (
            "key-value configuration of a name server (100)",
            [
                f"{key_values.NAMESPACES_MAX} namespaces",
                f"{key_values.VALUES_MAX} values of {key_values.VALUE_LENGTH_MAX} characters",
                f"names of {key_values.NAME_LENGTH_MAX}",
                f"{key_values.SIZE_MAX // MIB} Mi characters in all",
            ],
        ),
        ("replies that wait for tables to be saved", [f"| {table_writer.WAITING_MAX} |"]),
        (
            "requests forwarded to clients (307, 309, 221, 326)",
            [f"{forward.FORWARDS_MAX} at once", f"{forward.FORWARDS_PEER_MAX} from one connection"],
        ),
        (
            "body of a request to a name server, except a registration (103)",
            [f"{requests.BODY_SIZE_MAX // KIB} KiB", f"(318) {requests.LINES_SIZE_MAX // KIB} KiB"],
        ),
        (
            "body of a request to a broker, except messages",
            [
                f"| {bounds.BODY_SIZE_MAX // KIB} KiB",
                f"heartbeats {bounds.HEARTBEAT_SIZE_MAX // MIB} MiB",
                f"200151) {bounds.LIST_SIZE_MAX // MIB} MiB",
                f"(25, 2001) {bounds.LINES_SIZE_MAX // KIB} KiB",
            ],
        ),
        (
            "JSON that clients send to a broker: heartbeats (34), subscriptions (46), groups (200), locks (41, 42), "
            "assignments (400), modes (401), batches of acks (200151), users and policies; to a name server: routes "
            "(217), versions (322)",
            [f"{body.REQUEST_NODES_MAX} names", f"{body.REQUEST_DIALECT_NODES_MAX} if"],
        ),
        (
            "topics of one registration (103)",
            [
                f"{registration.TOPIC_SIZE_MAX // KIB} KiB of text",
                f"{registration.REFERENCES_NODES_MAX} or {registration.DIALECT_TEXT_NODES_MAX} names and values",
            ],
        ),
        (
            "requests that are processed in slices (large batches; registrations; requests on large tables)",
            [
                f"{jobs.JOBS_MAX} at once, {jobs.JOBS_PEER_MAX} of one connection",
                f"{jobs.QUEUED_MAX} wait, {jobs.QUEUED_PEER_MAX} of one connection, {jobs.QUEUED_SIZE_MAX // MIB} MiB",
            ],
        ),
        ("messages of a batch", [f"| {send.BATCH_COUNT_MAX} |"]),
        (
            "SQL92 expression",
            [
                f"{grammar.EXPRESSION_LENGTH_MAX} characters",
                f"{nodes.DEPTH_MAX} levels",
                f"{grammar.TOKENS_MAX} words",
                f"{grammar.UNENDED_MAX} `--`",
            ],
        ),
        ("queues of a topic's route, on all brokers", [f"{routes.ROUTE_QUEUES_MAX} to read"]),
        ("addresses of brokers in a topic's route", [f"| {routes.ROUTE_ADDRESSES_MAX} |"]),
        ("queues that one consumer pulls or pops, of all topics", [f"{ConsumerConfig().assigned_count_max} |"]),
        (
            "requests of one server (39, 40, 220, 221, 307, 309, 326)",
            [f"{client.PEER_REQUESTS_MAX} that", f"{client.PEER_REQUESTS_A_TURN} begin"],
        ),
        (
            "empty answers to pulls and pops that are not held",
            [f"{empty_answers.FREE_COUNT} in a row", f"{empty_answers.WAIT_MS} ms"],
        ),
        ("requests of one call of `Admin` to several servers or clients", [f"{base.REQUESTS_AT_ONCE_MAX} at once"]),
        (
            "body of a trace message, in `trace`, `doctor` and the pipeline",
            [f"{TRACE_BODY_SIZE_MAX // MIB} MiB", f"{TRACE_PARTS_MAX} records"],
        ),
        ("a text in a log line", [f"{log.VALUE_LENGTH_MAX} characters", f"traceback {log.TRACEBACK_LENGTH_MAX}"]),
    ],
)
def test_limits_of_the_page(row: str, parts: list[str]) -> None:
    """Each number in a row of docs/reference/compatibility.md is a constant."""
    assert [part for part in parts if part not in ROWS[row]] == []


@pytest.mark.parametrize(
    "part",
    [
        f"A TLS handshake has {server_connection.HANDSHAKE_S:.0f} s",
        f"at least {bounds.HELD_PEER_MIN}.",
        f"keeps {metrics_port.CONNECTIONS_MAX} connections",
        f"take {http_server.HEAD_SIZE_MAX // KIB} KiB of headers",
        f"{DoorConfig(hosts=None).bodies_size_max // MIB} MiB of large bodies together",
        f"complete within {http_server.REQUEST_S:.0f} s",
        f"above {http_server.UNREAD_SIZE_MAX // MIB} MiB of answers",
        f"the client's loop reads for {client.TURN_S * 1000:.0f} ms",
        f"{ConsumerConfig().assigned_count_max} queues (`assigned_count_max`)",
        f"at most {log.LINES_A_WINDOW} lines in ten seconds",
        f"{queries.MEMORY_LIMIT.removesuffix('GB')} GB of memory",
        f"{queries.SPILL_LIMIT.removesuffix('GB')} GB of temporary files",
    ],
)
def test_limits_of_the_threats(part: str) -> None:
    """The same for docs/design/threats.md."""
    assert part in THREATS
