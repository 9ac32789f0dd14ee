"""Tests of your own code with a real broker: in the test's process, in memory, on free ports.

    pip install mqtrail pytest
    pytest examples/test_with_a_broker.py

mqtrail registers the fixture `mqtrail_broker`; no import is needed. Each test gets a new broker (some 10 ms). A
fixture of your own, like `shared_broker` below, can share one in a module.
"""

from collections.abc import Iterator

import pytest

from mqtrail.client import ConsumeFromWhere, ConsumerConfig, Message, SyncConsumer, SyncProducer
from mqtrail.testing import Embedded, embedded

FROM_FIRST = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=100)


def test_an_order_is_billed(mqtrail_broker: Embedded) -> None:
    """A sent message arrives; a failed one is delivered again."""
    namesrv = mqtrail_broker.namesrv_address
    with SyncProducer("shop", namesrv) as producer:
        producer.send(Message("orders", b"order 1", tags="placed"))
    with SyncConsumer("billing", namesrv, {"orders": "placed"}, config=FROM_FIRST) as consumer:
        delivery = consumer.receive(timeout_ms=10_000)
        assert delivery is not None
        with delivery.process():
            assert delivery.body == b"order 1"


def test_a_broker_that_goes_away(mqtrail_broker: Embedded) -> None:
    """The broker can be stopped and started during a test."""
    with SyncProducer("shop", mqtrail_broker.namesrv_address) as producer:
        producer.send(Message("orders", b"before"))
        mqtrail_broker.stop_broker()
        with pytest.raises(Exception, match="not acknowledged"):
            producer.send(Message("orders", b"during"), timeout_ms=500)


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Embedded]:
    """Two brokers for all tests of this module."""
    with embedded(brokers=2) as broker:
        yield broker


def test_a_topic_on_two_brokers(shared_broker: Embedded) -> None:
    """Messages are distributed over the brokers."""
    with SyncProducer("shop", shared_broker.namesrv_address) as producer:
        places = {producer.send(Message("orders", b"x")).queue.broker_name for _ in range(20)}
    assert places == {"broker-a", "broker-b"}
