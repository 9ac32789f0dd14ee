"""The synchronous consumers: handlers, batches, changes at run time, from plain threads."""

import threading
from dataclasses import replace

import pytest

from mqtrail.client import Batch, ClientError, Delivery, SyncConsumer, SyncProducer
from mqtrail.wire import Message

from ..consumer.test_consumer import QUICK
from .test_sync import cluster_in_a_thread

TOPICS = {"orders": 1, "bills": 1, "%RETRY%CG": 1}


def wait(condition: threading.Event) -> None:
    assert condition.wait(60)


def test_handlers_by_topic_run_in_threads() -> None:
    """Handlers are registered before the first use, as with the asyncio consumer; run ends with close."""
    with cluster_in_a_thread(TOPICS) as cluster:
        seen: list[tuple[str, bytes, bool]] = []
        done = threading.Event()
        consumer = SyncConsumer("CG", cluster.namesrv, config=QUICK)

        def note(m: Delivery) -> None:
            seen.append((m.topic, m.body, threading.current_thread().name.startswith("mqtrail-handler")))
            if len(seen) == 2:
                done.set()

        consumer.handler("orders", "paid")(note)

        @consumer.handler("bills")
        def bills(m: Delivery) -> None:
            note(m)

        thread = threading.Thread(target=consumer.run)
        thread.start()
        with SyncProducer("PG", cluster.namesrv) as producer:
            producer.send(Message("orders", b"1", tags="paid"))
            producer.send(Message("orders", b"2", tags="open"))
            producer.send(Message("bills", b"3"))
        wait(done)
        with pytest.raises(ClientError, match="before"):
            consumer.handler(note)
        consumer.close()
        thread.join(60)
        assert not thread.is_alive()
        assert sorted(seen) == [("bills", b"3", True), ("orders", b"1", True)]


def test_batches() -> None:
    """Batches by iteration and by handler; a batch that raises is redelivered."""
    with cluster_in_a_thread(TOPICS) as cluster:
        with SyncProducer("PG", cluster.namesrv) as producer:
            for number in range(4):
                producer.send(Message("orders", b"%d" % number))
        config = replace(QUICK, batch_count_max=4)
        with SyncConsumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            got: list[tuple[bytes, int]] = []
            for batch in consumer.batches():
                assert len(batch) == len(batch.batch) <= 4
                with batch.process():
                    got += [(m.body, m.attempt) for m in batch]
                    if batch.batch[0].attempt == 1:
                        raise ValueError("again")
                if len(got) == 8:
                    break
        assert sorted(got) == sorted((b"%d" % number, attempt) for number in range(4) for attempt in (1, 2))
        sizes: list[int] = []
        done = threading.Event()
        again = SyncConsumer("CG3", cluster.namesrv, config=config)

        @again.batch_handler("orders")
        def handle(batch: Batch) -> None:
            sizes.append(len(batch))
            if sum(sizes) == 4:
                done.set()

        thread = threading.Thread(target=again.run)
        thread.start()
        wait(done)
        again.close()
        thread.join(60)


def test_changes_at_run_time() -> None:
    """Another thread subscribes, unsubscribes, suspends, resumes, and settles messages one by one."""
    with (
        cluster_in_a_thread(TOPICS) as cluster,
        SyncProducer("PG", cluster.namesrv) as producer,
        SyncConsumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer,
    ):
        consumer.subscribe("bills")
        producer.send(Message("bills", b"bill"))
        m = consumer.receive(timeout_ms=15_000)
        assert m is not None
        assert (m.body, m.delivery.topic) == (b"bill", "bills")
        m.retry(suspend_ms=10)
        again = consumer.receive(timeout_ms=15_000)
        assert again is not None
        again.ack()
        consumer.unsubscribe("bills")
        pause = threading.Event()
        while any(queue.topic == "bills" for queue in consumer.assignment):
            pause.wait(0.005)
        consumer.suspend()
        consumer.resume()
        producer.send(Message("orders", b"order"))
        order = consumer.receive(timeout_ms=15_000)
        assert order is not None
        order.ack()
