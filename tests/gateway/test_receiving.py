"""Receiving, with a broker that the test answers for."""

from __future__ import annotations

import asyncio
from itertools import count

from mqtrail.gateway.caller import Caller
from mqtrail.gateway.config import DoorConfig
from mqtrail.gateway.receipts import Receipt
from mqtrail.gateway.receiving import Receiver
from mqtrail.gateway.tracer import Tracer
from mqtrail.wire import Host, PopHandle, RemotingCommand, ResponseCode

HERE = Host("127.0.0.1", 1)


class Together(Caller):
    """Answers once so many requests wait, as a commit does: in turn, refusals and successes. asked: their offsets."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._all = asyncio.Event()
        self.asked: list[int] = []

    @property
    def away(self) -> str | None:
        return None

    async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        self.asked.append(int(command.ext["offset"]))
        if len(self.asked) == self._number:
            self._all.set()
        async with asyncio.timeout(30):
            await self._all.wait()
        is_refused = int(command.ext["offset"]) % 2 == 1
        code = ResponseCode.MESSAGE_ILLEGAL if is_refused else ResponseCode.SUCCESS
        return RemotingCommand(code, remark="found an old handle" if is_refused else "")

    async def ask_held(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        raise NotImplementedError


def receipt(offset: int) -> str:
    handle = PopHandle(offset, 1, 60_000, 0, "0", "broker-a", 0, offset)
    return Receipt("orders", handle.encode(), f"ID{offset}", "", 0, "R", 1, "").encode()


async def test_the_messages_of_a_request_share_a_commit() -> None:
    """They are settled together, not one after the other; the outcomes have the order of the receipts."""
    numbers = count()
    caller = Together(4)
    config = DoorConfig(hosts=None)
    receiver = Receiver(caller, Tracer(caller, "TRACE"), lambda: str(next(numbers)), "broker-a", config)
    receipts = [receipt(0), receipt(1), "junk", receipt(2), receipt(3)]
    found = await receiver.ack("g", receipts, HERE)
    assert caller.asked == [0, 1, 2, 3]
    assert [one.receipt for one in found] == receipts
    assert [bool(one.error) for one in found] == [False, True, True, False, True]
