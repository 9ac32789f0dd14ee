"""Requests to all servers or clients of a list: a limited number at a time, each with its own result."""

import asyncio
import gc
import warnings

import pytest

from mqtrail.client import Admin, NoNameServer
from mqtrail.client.admin.base import REQUESTS_AT_ONCE_MAX


async def test_questions_are_asked_a_bounded_number_at_a_time() -> None:
    """A broker can list any number of clients; all are queried in the end, with results in their order."""
    running = most = 0

    async def ask(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if number % 10 == 3:
            raise NoNameServer("down")
        if number % 10 == 4:
            raise OSError("refused")
        return number

    async with Admin("127.0.0.1:1") as admin:
        found = await admin._gather({f"c{number}": ask(number) for number in range(1_000)})
        assert most == REQUESTS_AT_ONCE_MAX
        assert list(found.found.values()) == [number for number in range(1_000) if number % 10 not in (3, 4)]
        assert len(found.failures) == 200
        assert (await admin._gather({})).complete


async def test_a_bug_among_the_questions_ends_them() -> None:
    """The exception is raised unchanged, and leaves neither a task nor an unsent request."""

    async def ask(number: int) -> int:
        await asyncio.sleep(0)
        return 1 // (number - 70)

    async with Admin("127.0.0.1:1") as admin:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ZeroDivisionError):
                await admin._gather({f"c{number}": ask(number) for number in range(1_000)})
            gc.collect()
    assert asyncio.all_tasks() == {asyncio.current_task()}
