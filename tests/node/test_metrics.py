"""Metrics for Prometheus: RocketMQ's names, correct counts, and a port that withstands bad requests."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from mqtrail.broker import ABSENT, METRICS, BrokerConfig, LedgerState
from mqtrail.namesrv import NameServerConfig
from mqtrail.net import BindError
from mqtrail.node import Node
from mqtrail.wire import ConsumerData, HeartbeatData, ProducerData, RemotingCommand, ResponseCode, SubscriptionData

from .apache_metrics import apache_metrics
from .helpers import read_all, running, send_command
from .test_metrics_waiting import WAITING
from .test_node import route

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


async def read(node: Node) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return sample name -> labels -> value."""
    assert node._metrics is not None
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families((await node._metrics.text()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def labels(**given: str) -> tuple[tuple[str, str], ...]:
    common = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    return tuple(sorted({**common, **given}.items()))


async def test_counts_are_what_happened() -> None:
    """Messages in and out, lag, connections and storage are right after some traffic."""
    async with running(metrics_port=0) as (node, pool):
        broker = node.broker_addresses[0]
        for number in range(5):
            await pool.request(broker, send_command("orders", b"%d" % number), 30_000)
        data = HeartbeatData(
            client_id="c@1",
            producer_data_set=(ProducerData("pg"),),
            consumer_data_set=(
                ConsumerData(group_name="reader", subscription_data_set=(SubscriptionData.build("orders", "*"),)),
            ),
        )
        await pool.request(broker, RemotingCommand(34, {}, data.encode()), 30_000)
        assert len(await read_all(pool, broker, "orders", [0])) == 5
        commit = {"consumerGroup": "reader", "topic": "orders", "queueId": "0", "commitOffset": "3"}
        await pool.request(broker, RemotingCommand(15, commit), 30_000)
        found = await read(node)
        assert set(found) <= set(METRICS)
        assert found["rocketmq_messages_in_total"][labels(topic="orders", is_system="false")] == 5
        size = found["rocketmq_throughput_in_total"][labels(topic="orders", is_system="false")]
        group = {"topic": "orders", "consumer_group": "reader", "is_retry": "false", "is_system": "false"}
        assert found["rocketmq_messages_out_total"][labels(**group)] == 5
        assert found["rocketmq_throughput_out_total"][labels(**group)] == size
        assert found["rocketmq_consumer_lag_messages"][labels(**group)] == 2
        assert found["rocketmq_consumer_inflight_messages"][labels(**group)] == 2
        assert found["rocketmq_consumer_ready_messages"][labels(**group)] == 0
        assert 0 <= found["rocketmq_consumer_lag_latency_milliseconds"][labels(**group)] < 60_000
        client = {"language": "python", "version": "v5_3_3", "protocol_type": "remoting"}
        assert found["rocketmq_producer_connections"][labels(**client)] == 1
        consumer = {**client, "consumer_group": "reader", "consume_mode": "passively", "is_system": "false"}
        assert found["rocketmq_consumer_connections"][labels(**consumer)] == 1
        storage = {"storage_type": "local", "storage_medium": "disk"}
        assert found["rocketmq_storage_size_bytes"][labels(**storage)] >= size
        assert found["rocketmq_broker_permission"][labels()] == 6
        assert found["mqtrail_access_refused_total"][labels()] == 0


async def test_the_name_server_has_its_own_samples() -> None:
    """Rejected requests and loop stalls of the name server are counted separately from the broker's."""
    config = NameServerConfig(acl=True, protect_routes=True)
    async with running(metrics_port=0, namesrv=config) as (node, pool):
        assert (await route(pool, node.namesrv_address, "orders")).code == ResponseCode.NO_PERMISSION
        assert node._namesrv is not None
        node._namesrv.core.stalls["103"] = [2, 130, 70]
        found = await read(node)
        own = {"cluster": "", "node_type": "namesrv", "node_id": node.namesrv_address}
        assert found["mqtrail_access_refused_total"][tuple(sorted(own.items()))] == 1
        assert found["mqtrail_access_refused_total"][labels()] == 0
        stalled = tuple(sorted({**own, "work": "103"}.items()))
        assert found["mqtrail_loop_stalls_total"][stalled] == 2
        assert found["mqtrail_loop_stalled_milliseconds_total"][stalled] == 130
        assert found["mqtrail_loop_stalled_cpu_milliseconds_total"][stalled] == 70


async def test_every_metric_can_be_seen() -> None:
    """After traffic and a dead letter each metric has a sample of its kind.

    Metrics of what waits in the broker are tested in test_metrics_waiting.
    """

    async with running(metrics_port=0, broker=BrokerConfig(acl=False)) as (node, pool):
        broker = node.broker_addresses[0]
        await pool.request(broker, send_command("orders", b"x"), 30_000)
        await pool.request(broker, send_command("%DLQ%reader", b"x"), 30_000)
        beat = HeartbeatData(
            client_id="c@1",
            producer_data_set=(ProducerData("pg"),),
            consumer_data_set=(
                ConsumerData(group_name="reader", subscription_data_set=(SubscriptionData.build("orders", "*"),)),
            ),
        )
        await pool.request(broker, RemotingCommand(34, {}, beat.encode()), 30_000)
        await read_all(pool, broker, "orders", [0])
        commit = {"consumerGroup": "reader", "topic": "orders", "queueId": "0", "commitOffset": "0"}
        await pool.request(broker, RemotingCommand(15, commit), 30_000)
        core = node.brokers["broker-a"].core
        assert core is not None
        assert core.stats is not None
        core.stats.put_counter("%DLQ%reader", 0).count += 1
        core.stats.put_counter("evil\u202e\x1b\ud800", 0).count += 1
        core.stalls["tick"] = [1, 60, 50]
        core.limits.refused_sends["orders"] += 1
        core.limits.refused_pulls["reader"] += 1
        core.replicas.ledger = lambda: LedgerState(1, 1, 0)  # this broker is in no DLedger group
        with capture_logs() as logs:
            core.own.pass_by("rmq_sys_wheel_timer", "found damage")
        assert [(line["event"], line["found"]) for line in logs] == [
            ("store.own_queue_damaged", "found damage: the record is passed")
        ]
        assert node._metrics is not None
        node._metrics._mails = lambda: {"sent": 1}  # there is no door here
        seen = (await read(node)).keys()
        assert seen >= {name for name in METRICS if not name.startswith(WAITING)}
        assert node._metrics is not None
        assert 'topic="evil\\\\u202e\\\\x1b\\\\ud800"' in (await node._metrics.text()).decode(), (
            "as it is escaped everywhere"
        )
        kinds = {
            family.name: family.type for family in text_string_to_metric_families((await node._metrics.text()).decode())
        }
        for name in seen:
            metric = METRICS[name]
            assert kinds[name.removesuffix("_total") if metric.kind == "counter" else name] == metric.kind


async def test_the_port_serves_after_bad_requests() -> None:
    """Only GET /metrics is served; garbage, idle peers and a taken port have no other effect."""
    async with running(metrics_port=0) as (node, _):
        (report,) = node.reports.values()

        def get(url: str, **fields: Any) -> int:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, **fields), timeout=60) as reply:
                    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    return int(reply.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        assert await asyncio.to_thread(get, report.metrics) == 200
        assert await asyncio.to_thread(get, report.metrics + "/more") == 404
        assert await asyncio.to_thread(lambda: get(report.metrics, data=b"x", method="POST")) == 405
        host, _, port = report.metrics.removeprefix("http://").removesuffix("/metrics").rpartition(":")
        for garbage in (b"", b"\x16\x03\x01" + bytes(20_000), b"\r\n\r\n", b"GET /metrics\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            writer.write_eof()
            async with asyncio.timeout(60):
                try:
                    while await reader.read(65_536):
                        pass
                except ConnectionError:
                    pass
            writer.close()
        assert await asyncio.to_thread(get, report.metrics) == 200
        with pytest.raises(BindError, match="--metrics-port"):
            async with running(metrics_port=int(port)):
                pass


def test_every_metric_has_its_entry() -> None:
    """The page lists what METRICS declares with kind, labels and meaning, and absent metrics with the reason."""
    page = PAGE.read_text().partition("## The pipeline's metrics")[0]  # those have a test of their own
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    owed = []
    for name, metric in METRICS.items():
        reported = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        owed.append(f"| `{name}` | {metric.kind} | {reported} | {metric.meaning} |")
    owed += [f"| `{name}` | no | – | {why} |" for name, why in ABSENT.items()]
    assert sorted(rows) == sorted(owed)


def test_each_of_apaches_is_served_or_not() -> None:
    """All of Apache's metrics are listed, and no others. Served ones have Apache's kind and no further label."""
    apache = apache_metrics()
    served = {name: metric for name, metric in METRICS.items() if name.startswith("rocketmq_")}
    assert served.keys() | ABSENT.keys() == apache.keys()
    assert not served.keys() & ABSENT.keys()
    for name, metric in served.items():
        assert metric.kind == apache[name].kind, name
        assert set(metric.labels) <= apache[name].labels, name


@pytest.mark.slow
async def test_an_answer_lets_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop serves others between samples and during formatting, and they may change the data."""
    monkeypatch.setattr("mqtrail.node.metrics_exporter.SLICE_S", 0.0)
    async with running(metrics_port=0) as (node, pool):
        await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)
        core, exporter = node.brokers["broker-a"].core, node._metrics
        assert core is not None
        assert exporter is not None
        for number in range(300):
            core.offsets.commit(f"g{number}", "orders", 0, 0)
        answers = [asyncio.ensure_future(exporter.text()) for _ in range(2)]
        turns = 0
        while not answers[0].done():
            core.offsets.commit(f"late{turns}", "orders", 0, 0)
            turns += 1
            await asyncio.sleep(0)
        assert turns > 300
        assert await answers[0] is await answers[1], "one answer for all who ask meanwhile"
        text = (await exporter.text()).decode()
        assert 'consumer_group="g299"' in text
        assert 'consumer_group="late0"' in text
