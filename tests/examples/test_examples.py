"""The examples run, and each one's page contains it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
import time
import types
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    Producer,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from mqtrail.testing import Embedded, embedded
from tests.loops import run

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=500
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_its_page(example: Path) -> None:
    """The page with the same name contains the whole file and says how to run it."""
    page = (ROOT / "docs/how-to/examples" / f"{example.stem.replace('_', '-')}.md").read_text("utf-8")
    assert f"```python\n{example.read_text('utf-8')}```" in page
    assert f"examples/{example.name}" in page or f"examples.{example.stem}" in page


def test_the_plain_script(mqtrail_broker: Embedded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are sent and consumed."""
    script = importlib.import_module("examples.plain_script")
    namesrv = mqtrail_broker.namesrv_address
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    script.main(["put", "letters", str(tmp_path / "notes.txt")], namesrv)
    assert "3 lines stored" in capsys.readouterr().out
    with SyncAdmin(namesrv) as admin:  # an auto-created topic is in the route a moment later
        end = time.monotonic() + 60
        while "letters" not in admin.topics():
            assert time.monotonic() < end
            time.sleep(0.01)
    assert sorted(script.take(namesrv, "letters", 1.0)) == ["one", "three", "two"]
    with pytest.raises(SystemExit):
        script.main([], namesrv)


def test_the_http_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It handles what it published."""
    worker = importlib.import_module("examples.http_worker")
    with embedded(tmp_path / "data", store_url=f"sqlite:///{tmp_path}/m.db", http=True) as running:
        worker.main(["put", "2"], running.http_url)
        worker.work(running.http_url, 2)
    stored, *reserved = capsys.readouterr().out.splitlines()
    assert stored == "2 orders stored"
    assert sorted(reserved) == [f"reserved socks for order-{number}, attempt 1" for number in (1, 2)]


def test_the_asyncio_service(mqtrail_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are billed, an invalid one becomes a dead letter at once, and a stop finishes running work."""
    monkeypatch.setenv("HOME", str(tmp_path))
    service = importlib.import_module("examples.asyncio_service")
    namesrv = mqtrail_broker.namesrv_address

    async def main() -> None:
        async with Producer("shop", namesrv) as producer:
            for number in range(3):
                order = {"id": number, "items": [{"price": 5, "count": number}]}
                await producer.send(Message("orders", json.dumps(order).encode(), tags="placed"))
            await producer.send(Message("orders", b"nonsense", tags="placed"))
            await producer.send(Message("orders", b"not for us", tags="cancelled"))
        billing = service.Billing(namesrv, config=QUICK)
        running = asyncio.create_task(billing.run())
        async with asyncio.timeout(30):
            while (billing.billed_count, billing.refused_count) != (3, 1):
                await asyncio.sleep(0.01)
        billing.stop()
        await running

    run(main())
    for topic, count in (("bills", 3), ("%DLQ%billing", 1)):
        with SyncConsumer(f"reader-of-{count}", namesrv, {topic: "*"}, config=QUICK) as consumer:
            bodies = []
            for _ in range(count):
                delivery = consumer.receive(15_000)
                assert delivery is not None
                delivery.ack()
                bodies.append(delivery.body)
        if topic == "bills":
            assert sorted(json.loads(body)["amount"] for body in bodies) == [0, 5, 10]
        else:
            assert bodies == [b"nonsense"]


def test_the_inbox_and_the_outbox(
    mqtrail_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every order is billed once, also one whose message is sent again as after kill -9; a failed one never."""
    monkeypatch.setenv("HOME", str(tmp_path))
    example = importlib.import_module("examples.inbox_outbox")
    monkeypatch.setattr(example, "SHOP", tmp_path / "shop.db")
    monkeypatch.setattr(example, "BILLING", tmp_path / "billing.db")
    namesrv = mqtrail_broker.namesrv_address

    async def serve_until(count: int) -> None:
        serving = asyncio.create_task(example.serve(namesrv, config=QUICK))
        async with asyncio.timeout(60):
            while len(example.bills()) < count or unsent():
                await asyncio.sleep(0.02)
        serving.cancel()
        await asyncio.wait([serving])

    def unsent() -> int:
        with contextlib.closing(example.open_shop()) as connection:
            return int(connection.execute("SELECT count(*) FROM mqtrail_outbox WHERE sent_ms = 0").fetchone()[0])

    example.main(["order", "3"], namesrv)
    with contextlib.closing(example.open_shop()) as connection:
        example.OUTBOX.add(connection, Message("orders", b"99"))
        connection.rollback()
    run(serve_until(3))
    with contextlib.closing(example.open_shop()) as connection, connection:
        connection.execute("UPDATE mqtrail_outbox SET sent_ms = 0")
    example.main(["order", "1"], namesrv)
    run(serve_until(4))
    example.main(["bills"], namesrv)
    assert capsys.readouterr().out.splitlines() == ["orders [1, 2, 3]", "orders [4]", "billed [1, 2, 3, 4]"]
    with pytest.raises(SystemExit):
        example.main([], namesrv)


def test_the_degraded_producer(
    mqtrail_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Orders placed while the broker is down arrive after it is back, in order, sent by the next run."""
    monkeypatch.setenv("HOME", str(tmp_path))
    example = importlib.import_module("examples.degraded_producer")
    monkeypatch.setattr(
        example, "CONFIG", replace(example.CONFIG, degrade_dir=tmp_path / "degraded", send_timeout_ms=300)
    )
    namesrv = mqtrail_broker.namesrv_address
    mqtrail_broker.stop_broker()
    example.main(["order-1", "order-2"], namesrv, 0.0)
    mqtrail_broker.start_broker()
    monkeypatch.setattr(example, "CONFIG", replace(example.CONFIG, send_timeout_ms=10_000))
    example.main(["order-3"], namesrv, 120.0)
    first, left, _, last = capsys.readouterr().out.splitlines()
    assert first == "0 orders sent, 2 kept for later"
    assert left == "0 sent from the file, 2 wait in it, 0 need a person"
    assert last.endswith("0 wait in it, 0 need a person")
    with SyncConsumer("reader", namesrv, {"orders": "*"}, config=QUICK) as consumer:
        bodies: list[bytes] = []
        while len(set(bodies)) < 3:
            delivery = consumer.receive(60_000)
            assert delivery is not None
            delivery.ack()
            bodies.append(delivery.body)
    assert list(dict.fromkeys(bodies)) == [b"order-1", b"order-2", b"order-3"]


class FakeFastAPI:
    """The part of FastAPI that the example uses, because it is no dependency of this project."""

    def __init__(self, lifespan: Callable[[Any], Any]) -> None:
        self.lifespan = lifespan
        self.state = types.SimpleNamespace()
        self.routes: dict[str, Callable[..., Any]] = {}

    def post(self, path: str, **_: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return self._route(f"POST {path}")

    def get(self, path: str, **_: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return self._route(f"GET {path}")

    def _route(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda handler: self.routes.setdefault(name, handler)


class FakeHTTPException(Exception):
    """fastapi.HTTPException."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(detail)
        self.status_code = status_code


class FakeRequest:
    """fastapi.Request: an application and a body."""

    def __init__(self, app: FakeFastAPI, body: bytes = b"") -> None:
        self.app = app
        self._body = body

    async def body(self) -> bytes:
        return self._body

    async def json(self) -> Any:
        return json.loads(self._body)


@pytest.fixture
def fastapi_app(mqtrail_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's module with a stand-in for FastAPI."""
    stand_in = types.ModuleType("fastapi")
    vars(stand_in).update(FastAPI=FakeFastAPI, HTTPException=FakeHTTPException, Request=FakeRequest)
    monkeypatch.setitem(sys.modules, "fastapi", stand_in)
    monkeypatch.setenv("NAMESRV", mqtrail_broker.namesrv_address)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield importlib.import_module("examples.fastapi_app")
    del sys.modules["examples.fastapi_app"]


async def found_or_none(answer: Awaitable[Any]) -> Any:
    """The answer; None for a 404."""
    try:
        return await answer
    except FakeHTTPException as error:
        if error.status_code != 404:
            raise
        return None


async def test_the_fastapi_app(fastapi_app: Any, mqtrail_broker: Embedded) -> None:
    """An order is stored and found; the status of each failure shows whether to retry."""
    app = fastapi_app.app

    async with app.lifespan(app):
        place, find = app.routes["POST /orders"], app.routes["GET /orders/{order_id}"]
        with pytest.raises(FakeHTTPException) as wrong:
            await place(FakeRequest(app, b"[]"))
        assert wrong.value.status_code == 422
        with pytest.raises(FakeHTTPException) as missing:
            await find("7", FakeRequest(app))
        assert missing.value.status_code == 404
        placed = await place(FakeRequest(app, b'{"id": 7}'))
        async with asyncio.timeout(60):
            while (found := await found_or_none(find("7", FakeRequest(app)))) is None:
                await asyncio.sleep(0.02)  # the index and the route follow a moment later
        assert found == {"messages": [placed["message"]]}
        await asyncio.to_thread(mqtrail_broker.stop_broker)
        with pytest.raises(FakeHTTPException) as down:
            await place(FakeRequest(app, b'{"id": 8}'))
        assert down.value.status_code in (503, 504)


def test_the_pytest_example(mqtrail_broker: Embedded) -> None:
    """Its tests, run as pytest would."""
    example = importlib.import_module("examples.test_with_a_broker")
    example.test_an_order_is_billed(mqtrail_broker)
    with example.embedded(brokers=2) as brokers:
        example.test_a_topic_on_two_brokers(brokers)
    with SyncProducer("shop", mqtrail_broker.namesrv_address) as producer:
        producer.send(Message("orders", b"x"))
    example.test_a_broker_that_goes_away(mqtrail_broker)
