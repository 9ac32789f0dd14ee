"""mqadmin 5.3.3 reads our broker: every command that shows something prints the same as on Apache's.

Each test runs on both servers, so that an expectation is never ours alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from interop.driver import JavaClient, Json
from interop.mqadmin import MqAdmin
from interop.probe import request, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

TOPIC, GROUP, PRODUCER = "AdminTopic", "AdminGroup", "AdminProducer"


@dataclass
class Seen:
    """A server with two messages sent and consumed, traced, and the admin tool pointed at it."""

    broker_address: str
    mqadmin: MqAdmin
    java: JavaClient
    first: Json

    def run(self, *arguments: str) -> str:
        """Return mqadmin's output; it must not report a failure."""
        output = self.mqadmin.run(*arguments)
        assert "SubCommandException" not in output, output
        return output

    def rows(self, *arguments: str) -> list[list[str]]:
        """The printed table's cells, without its heading."""
        return [line.split() for line in self.run(*arguments).splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module", params=["mqtrail", "apache-5.3.3"])
def seen(
    request: pytest.FixtureRequest,
    server: Callable[[str], Any],
    mqadmin: Callable[[Any], MqAdmin],
    stack: ExitStack,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    """One of the two servers after some traffic. The consumer stays alive for commands that need a live one."""
    running = server(request.param)
    java = stack.enter_context(JavaClient("5.3.3", tmp_path_factory.mktemp("java"), running.namesrv_address))
    java.producer("p", group=PRODUCER, trace=True)
    messages = [{"topic": TOPIC, "body": "one", "keys": "key-a key-b", "tags": "A"}, {"topic": TOPIC, "body": "two"}]
    first, _ = java.send("p", messages)
    java.consumer("c", group=GROUP, topics={TOPIC: "*"}, trace=True)
    java.wait(lambda events: sum(event["event"] == "ended" for event in events) == 2, "both consumed")
    mqadmin(running)
    # a client commits its offsets after ten seconds for the first time, and Apache lists the group only then
    committed = partial(_consumer_groups, running.broker_address)
    wait_until(lambda: GROUP in committed(), "offsets committed", 120, 0.5)
    return Seen(running.broker_address, mqadmin(running), java, first)


def test_cluster_list(seen: Seen) -> None:
    """One broker, id 0, version V5_3_3, active."""
    [row] = seen.rows("clusterList")
    assert row[:5] == ["DefaultCluster", "broker-a", "0", seen.broker_address, "V5_3_3"]
    assert row[-1] == "true"


def test_cluster_list_more(seen: Seen) -> None:
    """The counts of messages in and out since midnight."""
    [row] = seen.rows("clusterList", "-m")
    assert row[:2] == ["DefaultCluster", "broker-a"]
    assert int(row[4]) >= 2


def test_topic_list(seen: Seen) -> None:
    """Business, retry, trace and system topics."""
    topics = {row[0] for row in seen.rows("topicList")}
    assert {TOPIC, f"%RETRY%{GROUP}", "RMQ_SYS_TRACE_TOPIC", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= topics


def test_topic_list_of_cluster(seen: Seen) -> None:
    """The same with cluster and consumer groups."""
    rows = [row for row in seen.rows("topicList", "-c") if row[1] == TOPIC]
    assert ["DefaultCluster", TOPIC, GROUP] in rows


def test_topic_route(seen: Seen) -> None:
    """The route, whose broker addresses have a bare number as key."""
    route = json.loads(re.sub(r"{(\d+):", r'{"\1":', seen.run("topicRoute", "-t", TOPIC)))
    assert [broker["brokerAddrs"] for broker in route["brokerDatas"]] == [{"0": seen.broker_address}]
    assert [(q["readQueueNums"], q["writeQueueNums"], q["perm"]) for q in route["queueDatas"]] == [(4, 4, 6)]


def test_topic_cluster_list(seen: Seen) -> None:
    """The cluster that serves the topic."""
    assert seen.rows("topicClusterList", "-t", TOPIC) == [["DefaultCluster"]]


def test_topic_status(seen: Seen) -> None:
    """Each queue's offsets, and a time for queues with messages."""
    rows = [row for row in seen.rows("topicStatus", "-t", TOPIC) if row[0] == "broker-a"]
    assert [row[1] for row in rows] == ["0", "1", "2", "3"]
    assert sum(int(row[3]) - int(row[2]) for row in rows) == 2
    assert all((len(row) > 4) == (row[3] != "0") for row in rows)


def test_broker_status(seen: Seen) -> None:
    """The runtime table has the version and counts stored messages."""
    lines = seen.run("brokerStatus", "-b", seen.broker_address).splitlines()
    table = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert int(table["putMessageTimesTotal"]) >= 2
    assert int(table["commitLogMaxOffset"]) > int(table["commitLogMinOffset"])
    assert {"bootTimestamp", "putTps", "getTransferredTps", "commitLogDiskRatio", "msgPutTotalTodayNow"} <= set(table)


def test_update_topic(seen: Seen) -> None:
    """A topic is made with its queues, changed, and its route follows at once."""
    for count in ("6", "3"):
        made = seen.run("updateTopic", "-c", "DefaultCluster", "-t", "AdminMade", "-r", count, "-w", count)
        assert f"create topic to {seen.broker_address} success" in made
        assert f'"writeQueueNums":{count}' in seen.run("topicRoute", "-t", "AdminMade")


def test_consumer_progress(seen: Seen) -> None:
    """No queue has messages left to consume once the client committed (first after 10 s); neither has the overview."""

    def progress() -> list[list[str]]:
        return [row for row in seen.rows("consumerProgress", "-g", GROUP) if row[0] == TOPIC]

    wait_until(lambda: sum(int(row[4]) for row in progress()) == 2, "the consumer's first commit", 120, 0.5)
    rows = progress()
    assert [row[2] for row in rows] == ["0", "1", "2", "3"]
    assert sum(int(row[3]) for row in rows) == sum(int(row[4]) for row in rows) == 2
    [overview] = [row for row in seen.rows("consumerProgress") if row[0] == GROUP]
    assert overview[1:5] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]
    assert overview[-1] == "0"


def test_consumer_connection(seen: Seen) -> None:
    """The live client and its subscriptions."""
    output = seen.run("consumerConnection", "-g", GROUP)
    assert re.search(r"JAVA\s+V5_3_3", output)
    assert re.search(rf"{TOPIC}\s+\*", output)
    assert "CONSUME_PASSIVELY" in output
    assert "CONSUME_FROM_FIRST_OFFSET" in output


def test_producer_connection(seen: Seen) -> None:
    """The live producer, after its first heartbeat."""

    def listed() -> bool:
        return "V5_3_3" in seen.mqadmin.run("producerConnection", "-g", PRODUCER, "-t", TOPIC)

    wait_until(listed, "the producer's heartbeat", 120, 0.5)


def test_query_by_offset_id(seen: Seen) -> None:
    """One message with all its fields, and who has consumed it."""
    output = seen.run("queryMsgById", "-t", TOPIC, "-i", seen.first["offsetMsgId"])
    assert re.search(rf"Topic: +{TOPIC}", output)
    assert re.search(r"Keys: +\[key-a key-b\]", output)
    assert re.search(rf"Store Host: +{seen.broker_address}", output)
    assert f"consumerGroup={GROUP}, trackType=CONSUMED" in output


def test_query_by_unique_key(seen: Seen) -> None:
    """The same message by the client's id."""
    output = seen.run("queryMsgByUniqueKey", "-t", TOPIC, "-i", seen.first["msgId"])
    assert re.search(r"Tags: +\[A\]", output)
    assert f"consumerGroup={GROUP}, trackType=CONSUMED" in output


def test_query_by_key(seen: Seen) -> None:
    """Each of the message's keys finds it."""
    for key in ("key-a", "key-b"):
        [row] = seen.rows("queryMsgByKey", "-t", TOPIC, "-k", key)
        assert row == [seen.first["msgId"], str(seen.first["queue"]["queueId"]), str(seen.first["queueOffset"])]


def test_query_trace(seen: Seen) -> None:
    """The official viewer shows the send and the consumption."""

    def both() -> bool:
        output = seen.mqadmin.run("queryMsgTraceById", "-i", seen.first["msgId"])
        return bool(
            re.search(rf"Pub\s+{PRODUCER}\s.*success", output) and re.search(rf"Sub\s+{GROUP}\s.*success", output)
        )

    wait_until(both, "the trace", 120, 0.5)


def test_print_messages(seen: Seen) -> None:
    """A pull consumer without its own group reads every queue."""
    output = seen.run("printMsg", "-t", TOPIC)
    assert output.count("MSGID:") == 2


def _consumer_groups(broker_address: str) -> list[str]:
    """QUERY_TOPIC_CONSUME_BY_WHO for the topic."""
    _, body = request(broker_address, 300, {"topic": TOPIC})
    groups: list[str] = json.loads(body)["groupList"]
    return groups
