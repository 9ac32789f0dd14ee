"""Shared parts of the client's tests: waiting for a condition, and a broker double for dispatchers."""

import asyncio
from collections.abc import Callable
from typing import Any

from mqtrail.client.trace.dispatcher import TraceRefused
from mqtrail.client.trace.spool import SpooledMessage
from mqtrail.net import ConnectError
from mqtrail.wire import decode_trace


class TraceSink:
    """Accepts trace messages like a broker, or fails on demand."""

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
        """Return all records of all messages, in the order of arrival."""
        found: list[Any] = []
        for message in self.messages:
            records, rejects = decode_trace(message.body)
            assert not rejects, rejects
            found += records
        return found

    def of(self, name: str) -> list[Any]:
        """Return the records of one type."""
        return [record for record in self.records() if type(record).__name__ == name]
