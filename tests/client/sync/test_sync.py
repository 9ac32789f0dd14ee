"""The synchronous facades: the same behaviour from plain code, from threads, and after fork."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mqtrail.client import (
    ClientClosed,
    ClientError,
    ConsumeFromWhere,
    ConsumerConfig,
    NoNameServer,
    RetryLater,
    SendFailed,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from mqtrail.client.sync.facade import background
from mqtrail.wire import Message, RequestCode, TopicConfig

from ..fake_cluster import SILENT, FakeCluster, fake_cluster, on_code

QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    rebalance_ms=50,
    offset_persist_ms=20,
    pull_error_ms=10,
    close_wait_ms=200,
)


@contextmanager
def cluster_in_a_thread(topics: dict[str, int] | None = None) -> Iterator[FakeCluster]:
    """A fake cluster on its own event loop in a thread, as a real one has its own process."""
    ready: list[FakeCluster] = []
    started, stop = threading.Event(), threading.Event()

    async def main() -> None:
        async with fake_cluster(topics or {"orders": 1, "%RETRY%CG": 1}) as cluster:
            ready.append(cluster)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.005)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(60)
    try:
        yield ready[0]
    finally:
        stop.set()
        thread.join()


def test_send_and_receive() -> None:
    """A synchronous consumer processes the messages of a synchronous producer; a failed one is redelivered."""
    with cluster_in_a_thread() as cluster:
        with SyncProducer("PG", cluster.namesrv) as producer:
            ids = [producer.send(Message("orders", b"%d" % number)).msg_id for number in range(3)]
            producer.send_oneway(Message("orders", b"3"))
        with SyncConsumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            seen = []
            for m in consumer:
                with m.process():
                    seen.append((m.body, m.attempt))
                    if m.body == b"1" and m.attempt == 1:
                        raise ValueError("again")
                if len(seen) == 5:
                    break
            assert consumer.receive(timeout_ms=20) is None
        assert sorted(seen) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1), (b"3", 1)]
        assert [m.msg_id for m in cluster.brokers[0].messages("orders")][:3] == ids
        with pytest.raises(ClientClosed):
            producer.send(Message("orders", b"x"))


def test_a_handler_runs_in_threads_until_close() -> None:
    """run() returns when another thread closes the consumer."""
    with cluster_in_a_thread() as cluster:
        with SyncProducer("PG", cluster.namesrv) as producer:
            for number in range(10):
                producer.send(Message("orders", b"%d" % number))
        consumer = SyncConsumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK)
        bodies: list[bytes] = []
        done = threading.Event()

        def handler(m: Any) -> RetryLater | None:
            bodies.append(m.body)
            if len(bodies) == 10:
                done.set()
            return None

        thread = threading.Thread(target=consumer.run, args=(handler,))
        thread.start()
        assert done.wait(60)
        consumer.close()
        thread.join(60)
        assert not thread.is_alive()
        assert sorted(bodies) == [b"%d" % number for number in range(10)]


def test_one_producer_serves_many_threads() -> None:
    """Concurrent calls from several threads each get their own reply."""
    with cluster_in_a_thread() as cluster, SyncProducer("PG", cluster.namesrv) as producer:
        ids: list[str] = []

        def work(name: int) -> None:
            ids.extend(producer.send(Message("orders", b"%d" % name)).msg_id for _ in range(20))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 80
        assert len(cluster.bodies("orders")) == 80


def test_a_child_after_fork_has_its_own_client() -> None:
    """A producer made before a fork works on both sides, each with its own connection and ids."""
    with cluster_in_a_thread() as cluster, SyncProducer("PG", cluster.namesrv) as producer:
        first = producer.send(Message("orders", b"parent"))
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:  # pragma: no cover
            try:
                os.write(writing, producer.send(Message("orders", b"child")).msg_id.encode())
                producer.close()
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with os.fdopen(reading, "rb") as pipe:
            child_id = pipe.read().decode()
        second = producer.send(Message("orders", b"parent again"))
        assert len({first.msg_id, child_id, second.msg_id}) == 3
        assert sorted(cluster.bodies("orders")) == [b"child", b"parent", b"parent again"]
        bodies = {m.body: m.properties["UNIQ_KEY"] for m in cluster.brokers[0].messages("orders")}
        assert bodies[b"child"] == child_id


def test_nothing_runs_at_import() -> None:
    """Importing the client starts no thread and no loop, and imports neither Spark nor the broker."""
    script = (
        "import sys, threading, mqtrail.client\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "wrong = [name for name in sys.modules if name.startswith(('mqtrail.broker', 'mqtrail.store', 'pyspark'))]\n"
        "assert not wrong, wrong\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_a_process_that_forgets_to_close_ends() -> None:
    """The background thread does not keep a process alive, nor does it complain at exit."""
    with cluster_in_a_thread() as cluster:
        script = (
            "from mqtrail.client import SyncProducer\n"
            "from mqtrail.wire import Message\n"
            f"producer = SyncProducer('PG', {cluster.namesrv!r})\n"
            "producer.send(Message('orders', b'x'))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_errors_pass_through() -> None:
    """A synchronous call raises what the asynchronous one does."""
    with cluster_in_a_thread() as cluster:
        cluster.brokers[0].script = on_code(RequestCode.SEND_MESSAGE_V2, SILENT)
        with SyncProducer("PG", cluster.namesrv) as producer, pytest.raises(SendFailed):
            producer.send(Message("orders", b"x"), timeout_ms=50)
    with SyncAdmin("127.0.0.1:1") as admin, pytest.raises(NoNameServer):
        admin.topics()


def test_a_call_from_the_loop_itself_is_refused() -> None:
    """A synchronous call inside the client's own loop would wait for itself."""
    admin = SyncAdmin("127.0.0.1:1")

    async def inside(call: Callable[[], object]) -> None:
        call()

    with pytest.raises(ClientError, match="its own event loop"):
        background().run(inside(admin.topics))
    admin.close()


def test_admin_asks_and_arranges() -> None:
    """The facade's queries reach the cluster; a broker that refuses is a reported failure, not an empty reply."""
    with cluster_in_a_thread() as cluster, SyncAdmin(cluster.namesrv) as admin:
        assert admin.topics() == ["%RETRY%CG", "TBW102", "orders"]
        assert admin.masters() == {"broker-a": cluster.brokers[0].address}
        (queue,) = admin.queues("orders")
        cluster.brokers[0].store("orders", 0, b"x", "")
        assert (admin.min_offset(queue), admin.max_offset(queue)) == (0, 1)
        assert admin.consumer_offset("CG", queue) is None
        assert admin.pull(queue, 0).messages()[0].body == b"x"
        gathered = admin.create_topic(TopicConfig("young"))
        assert (gathered.complete, list(gathered.failures)) == (False, ["broker-a"])
