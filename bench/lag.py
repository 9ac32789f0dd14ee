"""Benchmark of `mqtrail lag`: the lag of a thousand groups, read from a live broker of ours, beside mqadmin."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping

from interop.mqadmin import MqAdmin

from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import APACHE_VERSION, Session
from mqtrail.client import SyncAdmin, SyncProducer
from mqtrail.wire import (
    CreateTopicHeader,
    FrameDecoder,
    Message,
    MessageQueue,
    Perm,
    RemotingCommand,
    RequestCode,
    SubscriptionGroupConfig,
    decode_command,
    encode_command,
    retry_topic,
)

GROUPS, GROUPS_QUICK = 1_000, 50
TOPICS = 20
QUEUES = 8
MESSAGES = 20  # of each queue, of which a group has read half
BAR_S = 2.0
TIMEOUT_S = 60.0
IN_FLIGHT = 100
GROUPS_AT_ONCE = 100


@figure("lag", "mqtrail lag of 1 000 groups × 8 queues from a live cluster, beside mqadmin", seconds=90)
def lag(session: Session) -> Iterator[Row]:
    """All groups are behind in all queues. The command is timed from its fork; the JVM of mqadmin is warm."""
    session.alone()
    count = GROUPS_QUICK if session.quick else GROUPS
    folder = session.fresh_folder("lag")
    with OurPeer(folder / "broker") as server:
        prepare(server, count)
        ours: list[float] = []
        peer: list[float] = []
        with MqAdmin(APACHE_VERSION, folder / "mqadmin", server.namesrv_address) as mqadmin:
            timed_progress(mqadmin, count)  # the JVM compiles
            for number in range(session.rounds):
                for name in session.order(number, ("ours", "mqadmin")):
                    if name == "ours":
                        ours.append(timed_lag(server.namesrv_address, count))
                    else:
                        peer.append(timed_progress(mqadmin, count))
    yield Row(
        "lag/all-groups",
        f"mqtrail lag of {count} groups × {QUEUES} queues, all behind, with the age of the first waiting message",
        "s",
        ours,
        peer,
        f"mqadmin {APACHE_VERSION} consumerProgress in a warm JVM, which reports no ages",
        Bar("<=", BAR_S, of="ours"),
    )


def timed_lag(namesrv: str, count: int) -> float:
    """Run the command; return its seconds."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "mqtrail", "lag", "--json", "--namesrv", namesrv],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    took_s = time.monotonic() - began_s
    groups = json.loads(done.stdout)["groups"]
    known = [group for group in groups if group["topics"]["lag_count"] == QUEUES * MESSAGES // 2 and group["lag_ms"]]
    assert len(known) == count, f"found the lag of {len(known)} groups, expected {count}"
    return took_s


def timed_progress(mqadmin: MqAdmin, count: int) -> float:
    """Run mqadmin's overview of all groups; return its seconds."""
    began_s = time.monotonic()
    shown = mqadmin.run("consumerProgress")
    took_s = time.monotonic() - began_s
    found = sum(line.startswith("group-") for line in shown.splitlines())
    assert found == count, f"found {found} groups in consumerProgress, expected {count}"
    return took_s


def prepare(server: OurPeer, count: int) -> None:
    """Create topics with messages, and groups that have read half of them."""
    topics = [f"lag-{number}" for number in range(TOPICS)]
    headers = [CreateTopicHeader(topic, QUEUES, QUEUES, int(Perm.READ | Perm.WRITE)).to_ext() for topic in topics]
    ask_all(server.broker_address, RequestCode.UPDATE_AND_CREATE_TOPIC, headers)
    with SyncProducer("bench", server.namesrv_address) as producer:
        broker_name = producer.send(Message("bench", b"body")).queue.broker_name
        for topic in topics:
            for queue_id in range(QUEUES):
                for _ in range(MESSAGES):
                    producer.send(Message(topic, b"body"), queue=MessageQueue(topic, broker_name, queue_id))
    with SyncAdmin(server.namesrv_address) as admin:
        groups = [SubscriptionGroupConfig(group_name=f"group-{number}") for number in range(count)]
        for first in range(0, count, GROUPS_AT_ONCE):
            admin.create_groups(groups[first : first + GROUPS_AT_ONCE])
    # mqadmin finds groups by their retry topics, which members create when they start.
    retry = [CreateTopicHeader(retry_topic(one.group_name), 1, 1, int(Perm.READ | Perm.WRITE)) for one in groups]
    ask_all(server.broker_address, RequestCode.UPDATE_AND_CREATE_TOPIC, [header.to_ext() for header in retry])
    offsets = (
        {
            "consumerGroup": f"group-{number}",
            "topic": topics[number % TOPICS],
            "queueId": str(queue_id),
            "commitOffset": str(MESSAGES // 2),
        }
        for number in range(count)
        for queue_id in range(QUEUES)
    )
    ask_all(server.broker_address, RequestCode.UPDATE_CONSUMER_OFFSET, offsets)


def ask_all(address: str, code: RequestCode, headers: Iterable[Mapping[str, str]]) -> None:
    """Send requests over one connection, IN_FLIGHT at a time; each must be answered with code 0."""
    host, _, port = address.rpartition(":")
    decoder = FrameDecoder()
    waiting = iter(headers)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        left = 0
        while True:
            while left < IN_FLIGHT and (ext := next(waiting, None)) is not None:
                connection.sendall(encode_command(RemotingCommand(code, dict(ext))))
                left += 1
            if not left:
                return
            while (frame := decoder.next_frame()) is None:
                data = connection.recv(1 << 16)
                assert data, "the broker closed the connection"
                decoder.feed(data)
            reply = decode_command(frame)
            assert reply.code == 0, f"the broker answered {reply.code}: {reply.remark}"
            left -= 1
