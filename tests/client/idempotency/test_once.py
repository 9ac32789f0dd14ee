"""Idempotent: a handler's effect happens once for a key, and every failure means a retry."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from mqtrail.client import (
    Batch,
    ClaimLost,
    ClientError,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Idempotent,
    IdempotentCounts,
    KeyBusy,
    KeyClaim,
    MemoryClaims,
    Message,
    Producer,
    RetryLater,
    fencing_token,
)
from mqtrail.testing import embedded_async
from tests.waiting import until

from .helpers import Settled, delivered


class Flaky:
    """A store in memory that is down on demand, before or after it did what it was asked for."""

    def __init__(self) -> None:
        self.inner = MemoryClaims()
        self.down: set[str] = set()
        self.hangs = False

    async def _pass(self, name: str, answer: Coroutine[Any, Any, Any]) -> Any:
        if self.hangs:
            answer.close()
            await asyncio.sleep(3_600)
        if name in self.down:
            answer.close()
            raise ConnectionError("the store is down")
        return await answer

    async def claim(self, id: str, lease_ms: int, keep_ms: int) -> KeyClaim:
        claim: KeyClaim = await self._pass("claim", self.inner.claim(id, lease_ms, keep_ms))
        return claim

    async def complete(self, id: str, claim: KeyClaim, result: bytes, keep_ms: int) -> bool:
        return bool(await self._pass("complete", self.inner.complete(id, claim, result, keep_ms)))

    async def release(self, id: str, claim: KeyClaim) -> None:
        await self._pass("release", self.inner.release(id, claim))


async def test_a_repeat_has_no_effect_and_gets_the_result() -> None:
    """The second delivery of a message is a success without a call of the handler."""
    seen: list[tuple[str, int]] = []
    again: list[tuple[str, bytes]] = []

    async def on_repeat(delivery: Delivery, result: bytes) -> None:
        again.append((delivery.msg_id, result))

    once = Idempotent("CG", MemoryClaims(), on_repeat=on_repeat)

    @once
    async def handle(m: Delivery) -> bytes:
        seen.append((m.msg_id, fencing_token()))
        return m.body.upper()

    for msg_id in ("1", "2", "1", "1"):
        assert await handle(delivered(msg_id)) is None
    assert [msg_id for msg_id, _ in seen] == ["1", "2"]
    assert seen[0][1] < seen[1][1]
    assert again == [("1", b"BODY"), ("1", b"BODY")]
    assert once.counts == IdempotentCounts(2, 2, 0, 0, 0, 0)
    assert fencing_token() == 0
    assert handle.__name__ == "handle"


async def test_the_key_is_the_callers_choice_and_the_group_separates() -> None:
    """Two messages with one key have one effect; another group has its own."""
    store = MemoryClaims()
    seen: list[str] = []
    for group in ("CG", "other"):

        @Idempotent(group, store, key=lambda m: m.keys[0])
        def handle(m: Delivery) -> None:
            seen.append(m.msg_id)

        await handle(delivered("1", keys="order-1"))
        await handle(delivered("2", keys="order-1"))
    assert seen == ["1", "1"]


@pytest.mark.parametrize("key", ["", None, 7])
async def test_a_message_without_a_key_is_refused(key: Any) -> None:
    """It must not share an empty key with all others."""

    @Idempotent("CG", MemoryClaims(), key=lambda m: key)
    async def handle(m: Delivery) -> None:
        raise AssertionError

    with pytest.raises(ClientError, match="expected a text that is not empty"):
        await handle(delivered("1"))


async def test_a_second_delivery_during_the_first_is_retried() -> None:
    """It is no success: the first may still fail."""
    once = Idempotent("CG", MemoryClaims(), lease_ms=60_000)
    entered, go_on = asyncio.Event(), asyncio.Event()

    @once
    async def handle(m: Delivery) -> None:
        entered.set()
        await go_on.wait()

    first = asyncio.create_task(handle(delivered("1")))
    await entered.wait()
    with pytest.raises(KeyBusy) as busy:
        await handle(delivered("1"))
    assert 0 < busy.value.left_ms <= 60_000
    assert busy.value.suspend_ms == 30_000
    second = delivered("1")
    async with second.process():
        await handle(second)
    settler = second.settler
    assert isinstance(settler, Settled)
    assert [outcome.result for outcome in settler.outcomes] == ["FAILED"]
    go_on.set()
    await first
    assert await handle(delivered("1")) is None
    assert once.counts == IdempotentCounts(1, 1, 2, 0, 0, 0)


@pytest.mark.parametrize("how", ["raises", "raises RetryLater", "returns RetryLater"])
async def test_a_failed_handler_gives_the_key_back(how: str) -> None:
    """The next delivery runs at once."""
    once = Idempotent("CG", MemoryClaims())
    calls = 0

    @once
    async def handle(m: Delivery) -> RetryLater | None:
        nonlocal calls
        calls += 1
        if calls > 1:
            return None
        if how == "raises":
            raise OSError("no")
        if how == "raises RetryLater":
            raise RetryLater(3)
        return RetryLater(3)

    if how == "returns RetryLater":
        later = await handle(delivered("1"))
        assert later is not None
        assert later.delay_level == 3
    else:
        with pytest.raises((OSError, RetryLater)):
            await handle(delivered("1"))
    assert await handle(delivered("1")) is None
    assert calls == 2
    assert once.counts == IdempotentCounts(1, 0, 0, 1, 0, 0)


async def test_a_store_that_is_down_means_a_retry() -> None:
    """Before the effect nothing happens; after it the effect happens again once the lease is over."""
    store = Flaky()
    once = Idempotent("CG", store, lease_ms=30, store_timeout_ms=20)
    calls = 0

    @once
    async def handle(m: Delivery) -> None:
        nonlocal calls
        calls += 1

    store.down = {"claim"}
    with pytest.raises(ConnectionError):
        await handle(delivered("1"))
    store.hangs = True
    with pytest.raises(TimeoutError):
        await handle(delivered("1"))
    assert calls == 0
    store.hangs, store.down = False, {"complete"}
    with pytest.raises(ConnectionError):
        await handle(delivered("1"))
    store.down = set()
    async with asyncio.timeout(30):
        while True:
            try:
                await handle(delivered("1"))
                break
            except KeyBusy:
                await asyncio.sleep(0.005)
    assert calls == 2, "at least once: the mark of the first effect was lost"
    assert once.counts.store_failed == 3


async def test_a_failed_release_does_not_hide_the_handlers_error() -> None:
    """The handler's exception is raised; the lease ends by itself."""
    store = Flaky()
    store.down = {"release"}

    @Idempotent("CG", store)
    async def handle(m: Delivery) -> None:
        raise ValueError("the handler's")

    with capture_logs() as logs, pytest.raises(ValueError, match="the handler's"):
        await handle(delivered("1"))
    assert [entry["event"] for entry in logs] == ["idempotency.release_failed"]


async def test_the_mark_of_a_late_handler_is_fenced_off() -> None:
    """It took longer than its lease: the heir's mark counts, the late one is told."""
    now = 0
    store = MemoryClaims(clock_ms=lambda: now)
    once = Idempotent("CG", store, lease_ms=1_000)
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> bytes:
        entered.set()
        await go_on.wait()
        return b"late"

    async def quick() -> bytes:
        return b"heir"

    late = asyncio.create_task(once.run("k", slow))
    await entered.wait()
    now = 1_000
    assert await once.run("k", quick) == (True, b"heir")
    go_on.set()
    with pytest.raises(ClaimLost, match="raise lease_ms"):
        await late
    assert await once.run("k", slow) == (False, b"heir")
    assert once.counts.lost == 1


async def test_a_cancelled_handler_keeps_its_key_until_the_lease_ends() -> None:
    """A thread cannot be stopped: its effect may still be going on."""
    now = 0
    once = Idempotent("CG", MemoryClaims(clock_ms=lambda: now), lease_ms=1_000)
    entered, go_on = threading.Event(), threading.Event()

    @once
    def handle(m: Delivery) -> None:
        entered.set()
        go_on.wait(30)

    task = asyncio.create_task(handle(delivered("1")))
    await until(entered.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(KeyBusy):
        await handle(delivered("1"))
    now = 1_000
    go_on.set()
    assert await handle(delivered("1")) is None
    once.close()


async def test_plain_functions_run_in_threads_with_their_token() -> None:
    """The event loop stays free."""
    seen: list[tuple[bool, int]] = []

    @Idempotent("CG", MemoryClaims())
    def handle(m: Delivery) -> None:
        seen.append((threading.current_thread() is threading.main_thread(), fencing_token()))

    await handle(delivered("1"))
    assert seen == [(False, 1)]


async def test_a_large_result_is_not_kept() -> None:
    """The effect happened, so it is marked; the log says what repeats miss."""
    once = Idempotent("CG", MemoryClaims(), result_size_max=10)

    async def effect() -> bytes:
        return b"x" * 11

    with capture_logs() as logs:
        assert await once.run("k", effect) == (True, b"")
    assert [entry["event"] for entry in logs] == ["idempotency.result_dropped"]
    assert await once.run("k", effect) == (False, b"")


async def test_wrong_use_is_refused() -> None:
    """Batches, empty leases."""

    @Idempotent("CG", MemoryClaims())
    async def handle(m: Delivery) -> None:
        raise AssertionError

    batch: Any = Batch.of(delivered("1"))
    with pytest.raises(ClientError, match="expected a Delivery"):
        await handle(batch)
    with pytest.raises(ClientError, match="at least 1"):
        Idempotent("CG", MemoryClaims(), lease_ms=0)


async def test_a_consumer_bills_each_order_once() -> None:
    """Every message is sent twice with one key, and one delivery fails after its effect's rollback: one effect each."""
    bills: list[str] = []
    failed: set[str] = set()
    quick = ConsumerConfig(
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, concurrency=8
    )
    async with embedded_async() as broker:
        consumer = Consumer("billing", broker.namesrv_address, config=quick)
        once = Idempotent("billing", MemoryClaims(), key=lambda m: m.keys[0])

        @consumer.handler("orders")
        @once
        async def bill(m: Delivery) -> RetryLater | None:
            if m.keys[0] == "order-3" and not failed:
                failed.add(m.keys[0])
                return RetryLater(1)
            bills.append(m.keys[0])
            return None

        async with Producer("shop", broker.namesrv_address) as producer:
            for number in [*range(10), *range(10)]:
                await producer.send(Message("orders", b"x", keys=f"order-{number}"))
        async with consumer:
            running = asyncio.create_task(consumer.run())
            await until(lambda: once.counts.effects + once.counts.repeats == 20)
        await running
    assert sorted(bills) == [f"order-{number}" for number in range(10)]
