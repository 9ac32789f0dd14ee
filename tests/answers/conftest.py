"""One lake and one cluster for all tests of the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqtrail.answers import examine
from mqtrail.broker import BrokerConfig
from mqtrail.client import ConsumeFromWhere, ConsumerConfig, SyncConsumer, SyncProducer
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message
from tests.answers.collectors import collector
from tests.answers.lakes import make_lake, rows_of

__all__ = ["collector"]


@pytest.fixture(scope="session")
def lake_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of histories, in a path with a blank, with one gap and two rejects."""
    path = tmp_path_factory.mktemp("answers") / "a lake"
    make_lake(path, rows_of(), gaps=True, rejects=2)
    return path


@dataclass(frozen=True)
class Shop:
    """A live cluster with one traced and consumed message, one without trace, one delayed."""

    broker: Embedded
    traced: str
    untraced: str
    delayed: str

    @property
    def namesrv(self) -> str:
        return self.broker.namesrv_address


def _wait_for_trace(namesrv: str) -> None:
    """The trace follows its message; on a busy machine it comes after the clients' close."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = examine(namesrv, 0).trace
        if found.records.get("Pub/14") == 2 and "SubAfter/9" in found.records and found.numbered_clients == 2:
            return
    raise AssertionError(f"the trace did not arrive: {found}")


@pytest.fixture(scope="session")
def shop() -> Iterator[Shop]:
    with embedded(broker=BrokerConfig(trace_topic_enable=True)) as broker:
        namesrv = broker.namesrv_address
        with SyncProducer("shop", namesrv, trace=True) as producer:
            traced = producer.send(Message("orders", b"42 socks", tags="CREATED", keys=["order-42"])).msg_id
            delayed = producer.send(Message("orders", b"remind", keys=["later-1"], delay_level=18)).msg_id
        with SyncProducer("silent", namesrv) as producer:
            untraced = producer.send(Message("stock", b"1", keys=["stock-1"])).msg_id
        config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        with SyncConsumer("billing", namesrv, {"orders": "*"}, trace=True, config=config) as consumer:
            delivery = consumer.receive(timeout_ms=20_000)
            assert delivery is not None
            with delivery.process():
                pass
        _wait_for_trace(namesrv)
        yield Shop(broker, traced, untraced, delayed)
