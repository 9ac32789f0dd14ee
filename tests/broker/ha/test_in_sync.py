"""The SyncStateSet at its master: who joins, who is removed, and which replicas sends wait for in between."""

from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, InSyncSet, MasterTerm, Replicas
from mqtrail.broker.ha import Epochs, EpochSender
from mqtrail.broker.ha.in_sync import BARRED_MS
from mqtrail.store import MemoryStore

from .test_protocol import NOW_MS, STORE

MIB = 1 << 20
START = 10 * MIB  # of this master's epoch
END = 20 * MIB
LATE_MS = 15_000


class Log:
    end_offset = flushed_offset = END


def slave(broker_id: int, acked_offset: int, *, is_learner: bool = False, late_ms: int = 0) -> EpochSender:
    """late_ms: how long ago it had the whole log."""
    sender = EpochSender(
        MemoryStore(STORE), BrokerConfig(), NOW_MS - late_ms, epochs=Epochs(), confirm_offset=lambda: 0
    )
    sender.broker_id, sender.is_learner, sender.acked_offset = broker_id, is_learner, acked_offset
    return sender


def replicas(*ids: int, log: Log | None = None, **settings: Any) -> Replicas:
    """Return what broker 1 knows, as master with these in-sync replicas besides itself."""
    values: dict[str, Any] = {"broker_role": "SYNC_MASTER", "all_in_sync": True} | settings
    made = Replicas(BrokerConfig(controller_mode=True, controller_addresses="c:1", **values), log or Log())
    made.in_sync = InSyncSet(MasterTerm(1, 3, frozenset({1, *ids}), 7), START, LATE_MS)
    return made


def in_sync_of(found: Replicas) -> InSyncSet:
    assert found.in_sync is not None
    return found.in_sync


def asked(found: Replicas) -> list[int] | None:
    """Return the set that the controller is asked for."""
    wanted = found.review(NOW_MS)
    return None if wanted is None else sorted(wanted)


def test_a_master_alone_confirms_what_it_has() -> None:
    found = replicas()
    assert (found.confirm_offset, found.replicated_offset, found.review(NOW_MS)) == (END, END, None)


def test_slaves_show_what_the_master_cannot_lose() -> None:
    """Under SYNC_FLUSH a power cut takes what it has not flushed, and it may be master again without that."""
    log = Log()
    log.flushed_offset = END - 7
    for ids in ((), (2,)):
        for sync_flush, confirmed in ((True, END - 7), (False, END)):
            found = replicas(*ids, log=log, sync_flush=sync_flush)
            found.add("a", slave(2, END))
            assert found.confirm_offset == confirmed


def test_sends_wait_for_all_in_sync_replicas() -> None:
    """The slowest one decides; one that is not connected holds them back, and learners count for nothing."""
    found = replicas(2, 3)
    found.add("a", slave(2, END))
    found.add("d", slave(4, 0, is_learner=True))
    assert found.replicated_offset == 0
    found.add("b", slave(3, END - 5))
    assert found.replicated_offset == END - 5
    found.remove("b")
    assert found.replicated_offset == END - 5, "what is confirmed stays confirmed"


@pytest.mark.parametrize(
    ("needed", "waits", "replicated"), [(None, False, None), (1, False, None), (2, True, END), (3, True, END - 5)]
)
def test_in_sync_replicas_without_all_of_them(needed: int | None, waits: bool, replicated: int | None) -> None:
    """inSyncReplicas is a number of in-sync replicas, this broker included; its default is 1."""
    found = replicas(2, 3, all_in_sync=False, in_sync_replicas=needed)
    found.add("a", slave(2, END))
    found.add("b", slave(3, END - 5))
    found.add("c", slave(4, END))  # is not in sync
    assert found.waits == waits
    assert not found.is_missing
    if replicated is not None:
        assert found.replicated_offset == replicated


def test_a_slave_joins_when_it_has_what_was_acknowledged() -> None:
    """Sends wait for it from the time when it is near; the controller is asked when it has all that came before."""
    log = Log()
    found = replicas(log=log)
    found.add("a", one := slave(2, END - MIB - 1))
    assert found.review(NOW_MS) is None
    assert in_sync_of(found).counted == frozenset()
    one.acked_offset = END - MIB
    assert found.review(NOW_MS) is None
    assert in_sync_of(found).counted == {2}
    log.end_offset = END + 9
    assert found.replicated_offset == END
    one.acked_offset = END - 1
    assert found.review(NOW_MS) is None
    one.acked_offset = END + 5
    assert asked(found) == [1, 2]
    assert found.replicated_offset == END + 5


@pytest.mark.parametrize(
    "one",
    [
        slave(2, END, is_learner=True),
        slave(-1, END),
        slave(2, -1),
        slave(2, END - 1, late_ms=LATE_MS + 1),
    ],
)
def test_who_does_not_join(one: EpochSender) -> None:
    """A learner; a slave before its handshake or its first report; one that falls behind."""
    found = replicas()
    found.add("a", one)
    for _ in range(2):
        assert found.review(NOW_MS) is None


def test_a_slave_before_this_masters_epoch_does_not_join() -> None:
    """What it has may end in an epoch of which this master cut off the end."""
    found = replicas()
    in_sync = InSyncSet(MasterTerm(1, 3, frozenset({1}), 7), END, LATE_MS)
    found.in_sync = in_sync
    found.add("a", one := slave(2, END - 1))
    for _ in range(2):
        assert found.review(NOW_MS) is None
    assert in_sync.counted == frozenset()
    one.acked_offset = END
    found.review(NOW_MS)
    assert asked(found) == [1, 2]


@pytest.mark.parametrize(("acked", "late_ms", "stays"), [(END, 99_000, True), (END - 1, LATE_MS, True),
                                                        (END - 1, LATE_MS + 1, False)])  # fmt: skip
def test_a_slave_that_falls_behind_is_removed(acked: int, late_ms: int, stays: bool) -> None:
    """After haMaxTimeSlaveNotCatchup without the whole log."""
    found = replicas(2)
    found.add("a", slave(2, acked, late_ms=late_ms))
    assert asked(found) == (None if stays else [1])


def test_sends_wait_for_a_lost_slave_until_the_controller_removed_it() -> None:
    """It could be elected until then."""
    found = replicas(2)
    in_sync = in_sync_of(found)
    assert asked(found) == [1]
    in_sync.ask(frozenset({1}))
    assert found.replicated_offset == 0
    assert not in_sync.settle({1, 2}, 7), "a late answer about the set before"
    assert found.replicated_offset == 0
    assert in_sync.settle({1}, 8)
    assert (found.replicated_offset, found.review(NOW_MS)) == (END, None)


def test_an_unknown_answer_counts_both_sets() -> None:
    """The controller may have added the slave: sends wait for it, although it left, until its set is known."""
    found = replicas()
    in_sync = in_sync_of(found)
    found.add("a", slave(2, END))
    found.review(NOW_MS)
    assert asked(found) == [1, 2]
    in_sync.ask(frozenset({1, 2}))  # its answer is lost
    found.remove("a")
    assert asked(found) == [1]
    assert in_sync.counted == {2}
    in_sync.refused(8)  # refused because the controller's set has another number than ours
    assert in_sync.counted == {2}
    in_sync.settle({1, 2}, 8)
    assert in_sync.counted == {2}
    assert asked(found) == [1]


def test_a_refused_change_is_forgotten() -> None:
    """For example because the controller has not heard of the slave yet."""
    found = replicas()
    in_sync = in_sync_of(found)
    in_sync.ask(frozenset({1, 2}))
    in_sync.refused(7)
    assert in_sync.counted == frozenset()
    assert found.review(NOW_MS) is None


def test_a_stranger_holds_back_neither_sends_nor_other_replicas() -> None:
    """One that the controller refuses: the lost replica is removed, the true one joins, and sends do not wait."""
    found = replicas(3)  # 3 is lost
    in_sync = in_sync_of(found)
    found.add("stranger", slave(0, END))
    found.add("slave", slave(2, END))
    found.review(NOW_MS)
    assert asked(found) == [1], "the lost one is removed first, and alone"
    in_sync.ask(frozenset({1}))
    in_sync.settle({1}, 8)
    assert asked(found) == [0, 1], "one new replica at a time"
    in_sync.ask(frozenset({0, 1}))
    in_sync.refused(8, bars=True)
    assert in_sync.counted == {2}
    assert asked(found) == [1, 2]
    in_sync.ask(frozenset({1, 2}))
    in_sync.settle({1, 2}, 9)
    assert found.review(NOW_MS) is None
    found.review(NOW_MS + BARRED_MS)
    assert found.review(NOW_MS + BARRED_MS) == frozenset({0, 1, 2}), "the controller may know it now"


def test_who_was_refused_comes_after_the_others() -> None:
    """Otherwise strangers with low ids would always come first."""
    found = replicas()
    for broker_id in (4, 0, 3):
        found.add(str(broker_id), slave(broker_id, END))
    found.review(NOW_MS)
    now_ms, order = NOW_MS, []
    for _ in range(6):
        wanted = found.review(now_ms) or found.review(now_ms)
        assert wanted is not None
        order.append(max(wanted - {1}))
        in_sync_of(found).ask(wanted)
        in_sync_of(found).refused(7, bars=True)
        now_ms += BARRED_MS // 2
    assert order == [0, 3, 4, 0, 3, 4]


@pytest.mark.parametrize(("least", "enough"), [(1, True), (2, True), (3, False)])
def test_the_least_number_of_in_sync_replicas(least: int, enough: bool) -> None:
    """minInSyncReplicas counts what the controller has confirmed, the master included."""
    assert replicas(2, min_in_sync_replicas=least).has_enough == enough
