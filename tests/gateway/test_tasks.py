"""Tasks that run until the server stops."""

import asyncio

import pytest

from mqtrail.gateway.tasks import end_task


async def test_a_task_ends_and_its_end_is_awaited() -> None:
    """What it does at its cancellation is over when `end_task` returns."""
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_task(task)
    assert steps == ["begun", "ended"]
    await end_task(None)


async def test_an_error_that_ended_a_task_is_raised() -> None:
    """A fault of a task is not lost in its end."""

    async def fail() -> None:
        raise ValueError("broken")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="broken"):
        await end_task(task)
