"""Group commit: which replies wait, which are released, and a failing disk."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from mqtrail.node import flusher as flushing
from mqtrail.node.flusher import RELEASED_A_SLICE, Flusher
from mqtrail.store import StoreAway
from mqtrail.wire import ResponseCode
from tests.waiting import until


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


async def test_a_database_that_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies wait until it is back; nothing fails."""
    monkeypatch.setattr(flushing, "AWAY_PAUSE_S", 0.001)
    released, tries = list[int](), 0

    class Away(SlowStore):
        def begin_flush(self) -> Callable[[], int]:
            def commit() -> int:
                nonlocal tries
                tries += 1
                if tries < 5:
                    raise StoreAway("connection refused")
                self.flushed_offset = self.end_offset
                return self.flushed_offset

            return commit

    store = Away()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    store.end_offset = 5
    flusher.after(5, partial(released.append, 5))
    await until(lambda: released == [5])
    assert tries == 5
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


async def test_replies_of_one_flush_are_released_in_turns() -> None:
    """In order and each once. A stop waits for all of them."""
    store, released, turns = SlowStore(), list[int](), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    store.end_offset = 3 * RELEASED_A_SLICE + 1
    for offset in range(1, store.end_offset + 1):
        flusher.after(offset, partial(released.append, offset))

    async def look() -> None:
        while len(released) < store.end_offset:
            turns.append(len(released))
            await asyncio.sleep(0)
        turns.append(len(released))

    looking = asyncio.create_task(look())
    store.permits.release(3)
    await flusher.stop()
    assert released == list(range(1, store.end_offset + 1))
    async with asyncio.timeout(60):
        await looking
    assert max(later - earlier for earlier, later in pairwise(turns)) <= RELEASED_A_SLICE


async def test_the_next_flush_does_not_wait_for_the_release() -> None:
    """The disk works while the loop releases what the last flush made durable."""
    store, released = SlowStore(), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    store.end_offset = 2 * RELEASED_A_SLICE
    for offset in range(1, store.end_offset + 1):
        flusher.after(offset, partial(released.append, offset))  # the first one begins a flush of all these
    store.end_offset += 1
    flusher.after(store.end_offset, partial(released.append, store.end_offset))
    begun: list[int] = []
    begin = store.begin_flush

    def counted() -> Callable[[], int]:
        begun.append(len(released))
        return begin()

    vars(store)["begin_flush"] = counted
    store.permits.release(9)
    await until(lambda: len(released) == store.end_offset)
    assert begun[0] <= RELEASED_A_SLICE, "begun before the others were released"
    await flusher.stop()


async def test_answered_late_replies_are_not_kept() -> None:
    """While the disk hangs, memory and work grow with the waiting replies alone, not with those already answered."""
    store, late_calls, released = SlowStore(), list[int](), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), late_ms=0)
    store.end_offset = count = 2 * RELEASED_A_SLICE
    for offset in range(1, count + 1):
        rest = partial(released.append, offset) if offset % 100 == 0 else None

        def late(
            code: ResponseCode, offset: int = offset, rest: Callable[[], None] | None = rest
        ) -> Callable[[], None] | None:
            late_calls.append(offset)
            return rest

        flusher.after(offset, lambda: pytest.fail("released whole"), late, size=7)
    await until(lambda: len(late_calls) == count)
    assert (flusher.waiting_count, flusher.waiting_size) == (count // 100, 7 * (count // 100))
    store.permits.release(5)
    await flusher.stop()
    assert late_calls == list(range(1, count + 1))
    assert released == list(range(100, count + 1, 100))
    assert (flusher.waiting_count, flusher.waiting_size) == (0, 0)


@pytest.mark.parametrize(("bound", "limit"), [("WAITING_MAX", 2), ("WAITING_SIZE_MAX", 25)])
async def test_waiting_replies_are_bounded(bound: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By count and size. Further ones are refused at once, until some of the others were released."""
    monkeypatch.setattr(flushing, bound, limit)
    store, happened = SlowStore(), list[str]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))

    def send(name: str) -> None:
        store.end_offset += 1
        refuse = partial(happened.append, f"{name} refused")
        flusher.after(store.end_offset, partial(happened.append, name), None, refuse, 10)

    for name in ("a", "b", "c"):
        send(name)
    assert happened == ["c refused"]
    store.permits.release(2)
    await until(lambda: happened == ["c refused", "a", "b"])
    send("d")
    store.permits.release(2)
    await flusher.stop()
    assert happened == ["c refused", "a", "b", "d"]


class Slaves:
    """Replicas that a test sets."""

    replicated_offset = 0
    is_missing = False
    hides_unconfirmed = False


@pytest.mark.parametrize("flushes", [True, False])
async def test_replies_wait_for_slaves_and_for_the_flush(flushes: bool) -> None:
    """Both positions must be reached, in any order; without SYNC_FLUSH the slaves' alone, and nothing is flushed."""
    store, slaves, released = SlowStore(), Slaves(), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), replication=slaves, flushes=flushes)
    store.end_offset = 3
    for offset in (1, 2, 3):
        flusher.after(offset, partial(released.append, offset))
    store.permits.release(2)
    await until(lambda: not flushes or store.flushed_offset == 3)
    assert released == []
    slaves.replicated_offset = 2
    flusher.replicated()
    await until(lambda: released == [1, 2])
    slaves.replicated_offset = 3
    flusher.replicated()
    await until(lambda: released == [1, 2, 3])
    assert (store.flushes > 0) == flushes
    store.permits.release(9)
    await flusher.stop()


async def test_codes_of_replies_that_slaves_do_not_confirm() -> None:
    """12 after the time-out, 11 at once if no slave is there; what else was in the reply goes out then."""
    store, slaves, codes, rest = SlowStore(), Slaves(), list[int](), list[int]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), late_ms=20, replication=slaves, flushes=False)

    def late(code: ResponseCode) -> Callable[[], None] | None:
        codes.append(code)
        return lambda: rest.append(code)

    flusher.after(5, lambda: pytest.fail("acknowledged"), late)
    await until(lambda: codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] == rest)
    flusher.after(6, lambda: pytest.fail("acknowledged"), late)
    slaves.is_missing = True
    flusher.replicated()
    await until(lambda: codes[1:] == [ResponseCode.SLAVE_NOT_AVAILABLE] == rest[1:])
    flusher.after(7, lambda: pytest.fail("acknowledged"), late)
    await until(lambda: len(rest) == 3)
    assert codes[2] == ResponseCode.SLAVE_NOT_AVAILABLE
    assert (flusher.waiting_count, flusher.waiting_size) == (0, 0)
    store.permits.release(9)
    await flusher.stop()


async def test_reads_of_controller_mode_wait_until_the_replicas_have_their_records() -> None:
    """A send is answered with 12 after the time-out; the rest of its reply stays until the records are replicated."""
    store, slaves, codes, rest = SlowStore(), Slaves(), list[int](), list[str]()
    slaves.hides_unconfirmed = True
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), late_ms=20, replication=slaves, flushes=False)

    def late(code: ResponseCode) -> Callable[[], None]:
        codes.append(code)
        return lambda: rest.append("read")

    flusher.after(5, lambda: pytest.fail("acknowledged"), late)
    await until(lambda: codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT])
    slaves.replicated_offset = 4
    flusher.replicated()
    await asyncio.sleep(0)
    assert (rest, flusher.waiting_count) == ([], 1)
    slaves.replicated_offset = 5
    flusher.replicated()
    await until(lambda: rest == ["read"])
    store.permits.release(9)
    await flusher.stop()


async def test_a_read_that_waits_longer_holds_no_send_back() -> None:
    """An overdue read waits for a later record than a send that is replicated now: the send is answered."""
    store, slaves, happened = SlowStore(), Slaves(), list[str]()
    slaves.hides_unconfirmed = True
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), late_ms=20, replication=slaves, flushes=False)

    def late(code: ResponseCode) -> Callable[[], None]:
        happened.append("late")
        return lambda: happened.append("read")

    flusher.after(9, lambda: pytest.fail("acknowledged"), late)
    await until(lambda: happened == ["late"])
    flusher.after(5, partial(happened.append, "sent"))
    slaves.replicated_offset = 5
    flusher.replicated()
    await until(lambda: happened == ["late", "sent"])
    slaves.replicated_offset = 9
    flusher.replicated()
    await until(lambda: happened == ["late", "sent", "read"])
    store.permits.release(9)
    await flusher.stop()


async def test_fewer_replicas_release_without_a_report() -> None:
    """A slave that need not be waited for any longer sends nothing: the time-out sees it, and answers with success."""
    store, slaves, happened = SlowStore(), Slaves(), list[str]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), late_ms=20, replication=slaves, flushes=False)

    def late(code: ResponseCode) -> None:
        happened.append("late")

    flusher.after(5, partial(happened.append, "sent"), late)
    slaves.replicated_offset = 5
    await until(lambda: happened == ["sent"])
    store.permits.release(9)
    await flusher.stop()


async def test_without_a_slave_the_flush_still_counts() -> None:
    """SYNC_FLUSH and no slave: code 11 is sent once the record is durable, not before."""
    store, slaves, codes = SlowStore(), Slaves(), list[int]()
    slaves.is_missing = True
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), replication=slaves)

    def late(code: ResponseCode) -> None:
        codes.append(code)

    store.end_offset = 5
    flusher.after(5, lambda: pytest.fail("acknowledged"), late)
    flusher.replicated()
    await asyncio.sleep(0)
    assert codes == []
    store.permits.release(9)
    await until(lambda: codes == [ResponseCode.SLAVE_NOT_AVAILABLE])
    await flusher.stop()
