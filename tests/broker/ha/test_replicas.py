"""The position up to which sends are replicated, by the rules of 4.9 and of 5.x."""

from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, LogSender, Replicas
from mqtrail.store import MemoryStore

from .test_protocol import NOW_MS, STORE, i64, record

MIB = 1 << 20


class End:
    end_offset = flushed_offset = 1_000 * MIB


class Slave(LogSender):
    """A connection whose position a test sets."""

    def __init__(self, acked_offset: int) -> None:
        super().__init__(MemoryStore(STORE), BrokerConfig(), NOW_MS)
        self.acked_offset = acked_offset


def replicas(*acked: int, role: str = "SYNC_MASTER", **settings: Any) -> Replicas:
    made = Replicas(BrokerConfig(broker_role=role, **settings), End())
    for number, offset in enumerate(acked):
        made.add(f"10.0.0.{number}:1", Slave(offset))
    return made


@pytest.mark.parametrize(
    ("acked", "missing", "replicated"),
    [
        ((), True, -1),
        ((-1,), True, -1),
        ((5,), True, 5),
        ((999 * MIB,), False, 999 * MIB),
        ((7, 999 * MIB), False, 999 * MIB),
    ],
)
def test_the_rule_of_4_9(acked: tuple[int, ...], missing: bool, replicated: int) -> None:
    """The fastest slave decides. A slave that is 256 MiB behind or has not reported does not count."""
    found = replicas(*acked)
    assert (found.waits, found.is_missing, found.replicated_offset) == (True, missing, replicated)


@pytest.mark.parametrize(
    ("needed", "acked", "replicated"),
    [(2, (), -1), (2, (5,), 5), (2, (5, 9), 9), (3, (5, 9), 5), (3, (9,), -1), (4, (1, 5, 9), 1)],
)
def test_the_rule_of_5(needed: int, acked: tuple[int, ...], replicated: int) -> None:
    """The configured number of replicas, including this broker; too few slaves is a time-out, never "not available"."""
    found = replicas(*acked, in_sync_replicas=needed)
    assert (found.waits, found.is_missing, found.replicated_offset) == (True, False, replicated)


def test_brokers_that_do_not_wait() -> None:
    """ASYNC_MASTER does not wait, nor does inSyncReplicas=1, the default of 5.x."""
    assert not replicas(role="ASYNC_MASTER").waits
    assert not replicas(role="").waits
    assert not replicas(in_sync_replicas=1).waits


def test_the_need_follows_who_is_in_sync() -> None:
    """enableAutoInSyncReplicas: fewer replicas suffice if fewer are near the end of the log."""
    near = End.end_offset - MIB
    assert replicas(near, 5, in_sync_replicas=3, auto_in_sync_replicas=True).replicated_offset == near
    assert replicas(5, in_sync_replicas=3, auto_in_sync_replicas=True).replicated_offset > End.end_offset
    assert replicas(near, near - 1, in_sync_replicas=3, auto_in_sync_replicas=True).replicated_offset == near - 1


def test_replicas_are_listed() -> None:
    """Replicas are listed with their positions, -1 for an unknown one."""
    master = MemoryStore(STORE)
    master.append([record()], NOW_MS)
    found = Replicas(BrokerConfig(), master)
    sender = LogSender(master, BrokerConfig(), NOW_MS)
    found.add("10.0.0.2:5", sender)
    assert [(one.address, one.acked_offset, one.next_offset) for one in found.all(NOW_MS)] == [("10.0.0.2:5", -1, -1)]
    sender.receive(i64(0), NOW_MS)
    assert found.all(NOW_MS)[0].acked_offset == 0
    found.remove("10.0.0.2:5")
    assert len(found) == 0
