"""Background work outlives unexpected errors: each task logs the traceback, waits, and continues until cancelled."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mqtrail.client import (
    Consumer,
    InstanceConfig,
    LitePullConsumer,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from mqtrail.client.consumer.lite_queues import LiteQueues
from mqtrail.client.consumer.puller import Puller
from mqtrail.client.consumer.rebalance import Rebalancer
from mqtrail.client.core import ClientInstance, background, keep_going
from mqtrail.client.delivery.send_back import SendBackCalls
from mqtrail.client.pop.queues import PoppedQueues
from mqtrail.client.producer import transactions
from mqtrail.client.trace.shared_spool import SharedSpool
from mqtrail.client.trace.spool import SpooledMessage
from mqtrail.wire import HeartbeatData, Message
from tests.waiting import until

from ..consumer.test_consumer import QUICK, committed, consume, put
from ..consumer.test_lite_pull import LITE
from ..fake_cluster import fake_cluster
from ..fake_pop import FakePop
from ..helpers import TraceSink
from ..producer.test_transactions import check, ends
from ..producer.test_transactions import committed as commit
from ..trace.test_dispatcher import play, text


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_MS", 5)
    monkeypatch.setattr(background, "PAUSE_MAX_MS", 20)


def failing_at_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int = 2) -> list[int]:
    """Let a method raise an unexpected error at its first calls; return the failures so far."""
    real = getattr(owner, name)
    failures: list[int] = []

    def fail(*arguments: Any, **further: Any) -> Any:
        if len(failures) < count:
            failures.append(1)
            raise ZeroDivisionError("a bug")
        return real(*arguments, **further)

    monkeypatch.setattr(owner, name, fail)
    return failures


async def test_a_task_continues_until_it_is_cancelled() -> None:
    """The wait grows with consecutive errors up to a limit; a success resets it; a cancellation ends it at once."""
    script: list[Exception | None] = [*[ValueError("bug")] * 4, None, KeyError("bug")]
    waiting = asyncio.Event()

    async def turn() -> None:
        if not script:
            waiting.set()
            await asyncio.Event().wait()
        if (error := script.pop(0)) is not None:
            raise error

    with capture_logs() as logs:
        task = asyncio.create_task(keep_going("work", turn, group="CG"))
        await waiting.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert [log["pause_ms"] for log in logs] == [5, 10, 20, 20, 5]
    assert all((log["event"], log["task"], log["group"]) == ("client.task_failed", "work", "CG") for log in logs)
    assert all(log["exc_info"] for log in logs)


async def test_periodic_work_continues() -> None:
    """An unexpected error does not end a client's heartbeats and route refreshes."""
    with pytest.MonkeyPatch.context() as patch:
        encoded = failing_at_first(patch, HeartbeatData, "encode")
        async with fake_cluster({"orders": 1}) as cluster:
            client = ClientInstance(cluster.namesrv, InstanceConfig(route_refresh_ms=10, heartbeat_ms=10))
            routes = failing_at_first(patch, client.name_servers, "route")
            client.add_producer("PG")
            await client.start()
            try:
                await until(lambda: routes or client.known_route("orders") is None)
                client._routes["orders"] = cast(Any, None)
                await until(lambda: client.known_route("orders"))
                await until(lambda: len(encoded) == 2 and cluster.brokers[0].of(34))
            finally:
                await client.close()


CONSUMERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "rebalance": (Rebalancer, "once", {}),
    "rebalance of a topic": (Rebalancer, "_topic", {}),
    "pull": (Puller, "_take", {}),
    "pop": (PoppedQueues, "_offer", {"client_rebalance": False, "poll_suspend_ms": 20, "pull_interval_ms": 5}),
}


@pytest.mark.parametrize("task", CONSUMERS)
async def test_a_consumer_continues(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same consumer gets the messages within a rebalance interval."""
    owner, method, changes = CONSUMERS[task]
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        FakePop(broker, "POP" if task == "pop" else "PULL")
        failures = failing_at_first(monkeypatch, owner, method)
        put(broker, "orders", b"1", b"2", b"3")
        config = replace(QUICK, rebalance_ms=50 if task.startswith("rebalance") else 3_600_000, **changes)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: len(failures) == 2 or task == "pop")
            if task == "pop":  # what was popped and not offered comes again by its broker alone
                await until(lambda: failures)
                put(broker, "orders", b"4")
                await until(lambda: len(failures) == 2)
                put(broker, "orders", b"5")
                assert await consume(consumer, 1) == [b"5"]
            else:
                assert await consume(consumer, 3) == [b"1", b"2", b"3"]


async def test_a_lite_pull_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's puller repeats the pull whose reply raised the error."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"1")
        failures = failing_at_first(monkeypatch, LiteQueues, "_readable")
        async with LitePullConsumer("CG", cluster.namesrv, {"orders": "*"}, config=LITE) as consumer:
            found: list[bytes] = []
            while not found:
                found += [message.body for message in await consumer.poll()]
        assert (found, len(failures)) == ([b"1"], 2)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_message_that_cannot_be_given_back_is_tried_again(
    ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the send-back neither ends the handlers nor stops the queue."""
    failures = failing_at_first(monkeypatch, SendBackCalls, "_to_broker", 1)
    resends = failing_at_first(monkeypatch, SendBackCalls, "_copy", 1)
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"1", b"2")
        attempts: list[bytes] = []

        async def handle(delivery: Any) -> None:
            attempts.append(delivery.body)
            if delivery.body == b"1" and attempts.count(b"1") < 4:
                raise ValueError("not yet")

        config = replace(QUICK, ordered=ordered, attempts_max=1 if ordered else None)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await until(lambda: committed(cluster) == {("broker-a", 0): 2})
            assert not running.done()
        await running
        assert attempts.count(b"2") == 1
        assert failures or ordered
        assert resends


async def test_transaction_checks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that raised is lost, because the broker checks again; the next one is answered."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=commit) as producer,
    ):
        (broker,) = cluster.brokers
        await producer.send_in_transaction(Message("orders", b"order"), _unknown)
        await ends(broker, 1)
        count = producer.config.check_concurrency
        failures = failing_at_first(monkeypatch, transactions, "_outcome", count)
        for _ in range(count):
            check(broker, "ID-1")
        await until(lambda: len(failures) == count)
        check(broker, "ID-1")
        await until(lambda: any(one.ext["fromTransactionCheck"] == "true" for one in broker.of(37)))


def test_the_trace_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in sending or in the spool delays records or counts them as lost; the close always ends."""

    class Sink(TraceSink):
        async def send(self, message: SpooledMessage) -> None:
            if self.attempts < 2:
                self.attempts += 1
                raise ZeroDivisionError("a bug")
            await super().send(message)

    async def scenario(dispatcher: Any, sink: TraceSink) -> None:
        dispatcher.record("orders", text(1), ["k"], 1)
        await until(lambda: dispatcher.counts.sent == 1)

    dispatcher, sink = play(tmp_path, scenario, Sink())
    assert len(sink.of("Pub")) == 1

    async def without_spool(dispatcher: Any, sink: TraceSink) -> None:
        sink.down = True
        monkeypatch.setattr(SharedSpool, "append", _fail)
        dispatcher.record("orders", text(1), ["k"], 1)

    dispatcher, sink = play(tmp_path, without_spool)
    assert (dispatcher.counts.lost, dispatcher.counts.in_memory) == (1, 0)


def _fail(*arguments: Any, **further: Any) -> None:
    raise ZeroDivisionError("a bug")


async def _unknown(transaction: Transaction) -> TransactionState:
    return TransactionState.UNKNOWN
