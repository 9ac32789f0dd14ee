"""Effects of --shake on an event loop: no event is lost, and most come late."""

import asyncio
import socket

import pytest

from ..shaking import shake

COUNT = 12


def arrivals() -> tuple[list[int], int]:
    """Write to COUNT sockets at once; return the order of reception, and the number of checks by a waiter."""

    async def main() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(COUNT)]
        heard: list[int] = []

        async def hear(number: int) -> None:
            reader, writer = await asyncio.open_connection(sock=pairs[number][1])
            await reader.readexactly(1)
            heard.append(number)
            writer.close()
            await writer.wait_closed()

        tasks = [asyncio.create_task(hear(number)) for number in range(COUNT)]
        for ours, _ in pairs:
            ours.send(b"x")
        look_count = 0
        end = loop.time() + 10
        while len(heard) < COUNT and loop.time() < end:
            look_count += 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        for ours, _ in pairs:
            ours.close()
        return heard, look_count

    return asyncio.run(main())


def test_a_shaken_loop_loses_nothing_and_changes_the_order() -> None:
    """All bytes arrive, in another order for another seed; a waiter checks in each round, not every 10 ms."""
    orders = []
    for seed in "abc":
        with pytest.MonkeyPatch.context() as patch:
            shake(patch, seed)
            heard, look_count = arrivals()
        assert sorted(heard) == list(range(COUNT))
        assert look_count > 3
        orders.append(heard)
    assert orders[0] != orders[1] or orders[1] != orders[2]
