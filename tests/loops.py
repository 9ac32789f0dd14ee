"""Coroutines in tests: each runs on a new event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


def run(main: Coroutine[Any, Any, Any], loop_factory: LoopFactory = None) -> Any:
    """Run one coroutine on a new loop. A task left behind with an exception fails the test.

    An `async def test_…` runs by itself (tests/conftest.py); this is for other functions.
    """
    problems: list[dict[str, Any]] = []

    async def guarded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        return await main

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(guarded())
    assert not problems, problems
    return result
