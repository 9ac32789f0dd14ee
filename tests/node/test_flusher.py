"""Group commit: which replies wait, which are released, and a failing disk."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from mqtrail.node.flusher import Flusher


class SlowStore:
    """A store whose syncs each wait for a permit and may fail."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.flushed_offset = 0
        self.permits = threading.Semaphore(0)
        self.fails = False
        self.fault: str | None = None
        self.flushes = 0

    def begin_flush(self) -> Callable[[], int]:
        end_offset = self.end_offset

        def sync() -> int:
            assert self.permits.acquire(timeout=60)
            if self.fails:
                raise OSError(5, "Input/output error")
            self.flushes += 1
            self.flushed_offset = max(self.flushed_offset, end_offset)
            return self.flushed_offset

        return sync


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def test_one_flush_releases_all_it_covers() -> None:
    """Replies gather during a flush. The next flush releases them together, none before its offset is durable."""
    store, released = SlowStore(), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    for offset in range(1, 11):
        store.end_offset = offset
        flusher.after(offset, partial(released.append, offset))
    assert released == []
    store.permits.release()
    await until(lambda: released == [1])
    store.permits.release()
    await until(lambda: released == list(range(1, 11)))
    assert store.flushes == 2
    assert flusher.waiting_count == 0
    flusher.after(7, lambda: released.append(0))
    assert released[-1] == 0, "durable already: at once"
    store.permits.release()
    await flusher.stop()


async def test_a_failed_flush_releases_nothing() -> None:
    """After EIO no waiting reply is acknowledged and no later flush is tried: the kernel may have dropped pages."""
    store, released, failures = SlowStore(), list[int](), list[BaseException]()
    flusher = Flusher(store, failures.append)
    store.end_offset, store.fails = 5, True
    flusher.after(5, lambda: released.append(5))
    store.permits.release()
    await until(lambda: len(failures) == 1)
    store.fails = False
    store.permits.release()
    flusher.ask()
    flusher.after(5, lambda: released.append(6))
    await flusher.stop()
    assert released == []
    assert store.flushes == 0


async def test_stopping_flushes_and_releases() -> None:
    """stop waits for the disk, so the last replies are not lost."""
    store, released = SlowStore(), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    store.end_offset = 3
    flusher.after(3, lambda: released.append(3))
    for _ in range(3):
        store.permits.release()
    await flusher.stop()
    assert released == [3]


async def test_a_fault_of_another_job_ends_the_flushes_too() -> None:
    """A checkpoint that cannot sync the log has the same effect as a failed flush: the node must stop."""
    store, failures = SlowStore(), list[BaseException]()
    flusher = Flusher(store, failures.append)

    def fail() -> None:
        store.fault = "the sync of commitlog/00000000000000000000 failed"
        raise OSError(5, "Input/output error")

    flusher.run(fail)
    await until(lambda: len(failures) == 1)
    flusher.after(5, lambda: pytest.fail("acknowledged"))
    await flusher.stop()
    assert store.flushes == 0


async def test_other_jobs_share_the_thread() -> None:
    """A checkpoint runs in the same thread; its failure is logged, and flushes continue."""
    store, done = SlowStore(), threading.Event()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    flusher.run(done.set)
    await until(done.is_set)

    def fail() -> None:
        raise OSError(28, "No space left on device")

    flusher.run(fail)
    store.end_offset = 1
    released = list[int]()
    flusher.after(1, lambda: released.append(1))
    for _ in range(2):
        store.permits.release()
    await until(lambda: released == [1])
    await flusher.stop()
