"""A group's first commits: a broker that loses one of two concurrent ones never gets two at once."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mqtrail.client.consumer.offsets import RemoteOffsets, in_waves
from mqtrail.client.core.instance import ClientInstance
from mqtrail.wire import MessageQueue

QUEUES = [MessageQueue("orders", broker, number) for broker in ("a", "b") for number in range(3)]


class LosingBrokers:
    """Brokers that create a group's table at its first commit, as Apache's do, and lose a concurrent commit."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, int]] = {}

    def any_address(self, broker_name: str) -> str:
        return broker_name

    async def call(self, address: str, code: int, ext: dict[str, str]) -> None:
        table = self.tables.get(address)
        await asyncio.sleep(0)  # every call that is under way gets as far as here
        if table is None:
            table = self.tables[address] = {}
        table[ext["queueId"]] = int(ext["commitOffset"])


@pytest.mark.parametrize("way", ["persist", "store"])
def test_first_commits_are_all_kept(way: str) -> None:
    """A new group commits the offsets of six queues on two brokers, in the background or explicitly."""
    brokers = LosingBrokers()

    async def commit() -> None:
        offsets = RemoteOffsets(cast(ClientInstance, brokers), "CG", lambda queue, offset: None)
        if way == "store":
            await offsets.store(dict.fromkeys(QUEUES, 7))
        else:
            for queue in QUEUES:
                offsets.update(queue, 7)
            await offsets.persist(QUEUES)

    asyncio.run(commit())
    assert brokers.tables == {broker: dict.fromkeys("012", 7) for broker in "ab"}


def test_waves() -> None:
    """One queue of each topic and broker goes first; each queue is in exactly one wave."""
    other = MessageQueue("stock", "a", 1)
    first, rest = in_waves([*QUEUES, other])
    assert first == [QUEUES[0], QUEUES[3], other]
    assert sorted(first + rest) == sorted([*QUEUES, other])
    assert in_waves([]) == ([], [])
