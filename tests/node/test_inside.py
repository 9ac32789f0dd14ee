"""Requests from inside the process: answered as those of a connection, and forgotten when they are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.node.broker_node import BrokerNode
from mqtrail.testing import Embedded, embedded_async
from mqtrail.wire import Host, RemotingCommand, RequestCode, ResponseCode, SendMessageHeader, cut_records, decode_record

HERE = Host("10.0.0.9", 4711)


def send(body: bytes) -> RemotingCommand:
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, SendMessageHeader("p", "orders").to_ext_v2(), body)


def pop(wait_ms: int) -> RemotingCommand:
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000"}
    ext |= {"pollTime": str(wait_ms), "bornTime": "0", "initMode": "0"}
    return RemotingCommand(RequestCode.POP_MESSAGE, ext)


def broker_of(running: Embedded) -> BrokerNode:
    broker = running.node.brokers["broker-a"]
    assert isinstance(broker, BrokerNode)
    return broker


async def test_a_request_is_answered() -> None:
    """The message's born host is the client for which the door asked; under SYNC_FLUSH the reply waits."""
    async with embedded_async(broker=BrokerConfig(sync_flush=True)) as running:
        caller = broker_of(running).caller()
        stored = await asyncio.gather(*(caller.ask(send(b"%d" % number), HERE, 30_000) for number in range(5)))
        assert [reply.code for reply in stored] == [ResponseCode.SUCCESS] * 5
        popped = await caller.ask_held(pop(0), HERE, 30_000)
        messages = [decode_record(record)[0] for record in cut_records(popped.body)]
        assert sorted(message.body for message in messages) == [b"0", b"1", b"2", b"3", b"4"]
        assert {message.born_host for message in messages} == {HERE}


async def test_a_cancelled_pop_takes_nothing() -> None:
    """A message that arrives later goes to the next pop."""
    async with embedded_async() as running:
        broker = broker_of(running)
        caller = broker.caller()
        assert (await caller.ask(send(b"first"), HERE, 30_000)).code == ResponseCode.SUCCESS
        assert (await caller.ask_held(pop(0), HERE, 30_000)).code == ResponseCode.SUCCESS
        waiting = asyncio.create_task(caller.ask_held(pop(20_000), HERE, 30_000))
        await asyncio.sleep(0)  # it asks, and is held: in this process that takes no I/O
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await caller.ask(send(b"second"), HERE, 30_000)).code == ResponseCode.SUCCESS
        popped = await caller.ask_held(pop(20_000), HERE, 30_000)
        (record,) = cut_records(popped.body)
        assert decode_record(record)[0].body == b"second"


async def test_a_held_pop_gets_the_next_message() -> None:
    """It is answered when a message arrives."""
    async with embedded_async() as running:
        caller = broker_of(running).caller()
        assert (await caller.ask(send(b"first"), HERE, 30_000)).code == ResponseCode.SUCCESS
        assert (await caller.ask_held(pop(0), HERE, 30_000)).code == ResponseCode.SUCCESS
        waiting = asyncio.create_task(caller.ask_held(pop(20_000), HERE, 30_000))
        await asyncio.sleep(0)
        assert (await caller.ask(send(b"second"), HERE, 30_000)).code == ResponseCode.SUCCESS
        assert (await waiting).code == ResponseCode.SUCCESS


async def test_a_request_without_an_answer_times_out() -> None:
    """A pop is held longer than the caller waits."""
    async with embedded_async() as running:
        caller = broker_of(running).caller()
        assert (await caller.ask(send(b"first"), HERE, 30_000)).code == ResponseCode.SUCCESS
        assert (await caller.ask_held(pop(0), HERE, 30_000)).code == ResponseCode.SUCCESS
        with pytest.raises(TimeoutError):
            await caller.ask_held(pop(20_000), HERE, 1)


async def test_a_task_that_asks_many_times_lets_others_work() -> None:
    """Replies are there at once: a request to the door that asks the broker thousands of times would hold the loop."""
    async with embedded_async() as running:
        caller = broker_of(running).caller()
        turns = 0

        async def work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        working = asyncio.create_task(work())
        for _ in range(20):
            await caller.ask(RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": "TBW102"}), HERE, 30_000)
        working.cancel()
        assert turns >= 20
