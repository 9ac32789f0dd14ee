"""What the client's tests share: an event loop runner, waiting for a condition, and a dispatcher's fake broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import HealthCheck, settings

from mqtrail.client.trace.dispatcher import TraceRefused
from mqtrail.client.trace.spool import SpooledMessage
from mqtrail.net import ConnectError
from mqtrail.wire import decode_trace

# Eight test runs may share this machine's two cores: slowness is no fault.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run one coroutine on a fresh loop; a task it leaves behind with an exception fails the test."""
    problems: list[dict[str, Any]] = []

    async def guarded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        return await main

    result = asyncio.run(guarded())
    assert not problems, problems
    return result


async def until(condition: Callable[[], object], within_s: float = 15.0) -> None:
    """Wait until condition holds; fails after within_s."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


class TraceSink:
    """Takes trace messages as a broker would, or fails as it is told."""

    def __init__(self) -> None:
        self.messages: list[SpooledMessage] = []
        self.down = False
        self.refuses: Callable[[SpooledMessage], bool] = lambda message: False
        self.gate: asyncio.Event | None = None
        self.attempts = 0

    async def send(self, message: SpooledMessage) -> None:
        self.attempts += 1
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.down:
            raise ConnectError("the broker is down")
        if self.refuses(message):
            raise TraceRefused("MESSAGE_ILLEGAL")
        self.messages.append(message)

    @property
    def record_count(self) -> int:
        return sum(message.record_count for message in self.messages)

    def records(self) -> list[Any]:
        """All records of all messages, in the order of arrival."""
        found: list[Any] = []
        for message in self.messages:
            records, rejects = decode_trace(message.body)
            assert not rejects, rejects
            found += records
        return found

    def of(self, name: str) -> list[Any]:
        """The records of one type."""
        return [record for record in self.records() if type(record).__name__ == name]
