"""The permission matrix over sockets: a running broker, a client with one grant, raw frames on one connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.broker.requests import REQUESTS
from mqtrail.node import Node
from mqtrail.wire import (
    FLAG_ONEWAY,
    FrameDecoder,
    RemotingCommand,
    RequestCode,
    decode_command,
    encode_command,
    sign,
)
from tests.broker.access.matrix import ACCOUNT, CASES, NAMINGS, SECRET, Case, World, expected

from .helpers import running

ANSWER_S = 60


class NodeWorld(World):
    """The matrix's topics, groups, records and account at the broker of a running node."""

    def __init__(self, kind: str, node: Node) -> None:
        found = node.brokers["broker-a"]
        assert found.core is not None
        assert found.store is not None
        self.kind = kind
        self.broker = found.core
        self.store = cast(Any, found.store)
        self.fill()


class Wire:
    """One connection, written to and read from frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._opaque = 0

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        """Return the answer to a request; requests of the broker to this client are left out."""
        self.write(request)
        async with asyncio.timeout(ANSWER_S):
            while True:
                while (frame := self._decoder.next_frame()) is not None:
                    found = decode_command(frame)
                    if found.is_response and found.opaque == self._opaque:
                        return found
                self._decoder.feed(await self._read())

    def write(self, request: RemotingCommand) -> None:
        self._opaque += 1
        request.opaque = self._opaque
        self._writer.write(encode_command(request))

    async def _read(self) -> bytes:
        data = await self._reader.read(1 << 16)
        assert data, "the broker closed the connection"
        return data


@asynccontextmanager
async def connected(node: Node) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(*node.broker_addresses[0].split(":"))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def switches(kind: str) -> dict[str, Any]:
    return {"acl": True} if kind == "files" else {"authentication": True, "authorization": True}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["users", "files"])
async def test_matrix_over_a_socket(kind: str) -> None:
    """The core decides on each request; no reply shows data of others, and one-way requests have no other effect."""
    async with running(broker=BrokerConfig(**switches(kind))) as (node, _), connected(node) as wire:
        world = NodeWorld(kind, node)
        for code in sorted(CASES):
            case = CASES[code]
            world.fill()
            world.grant(case)
            if kind == "files" and world.admin:
                continue  # an admin may do so with all topics and groups
            for naming in NAMINGS:
                is_allowed = expected(code, case, naming)
                refused = world.broker.access.refused
                answer = await wire.ask(world.request(code, naming))
                assert (world.broker.access.refused == refused) is is_allowed, (code, naming.title, answer)
                if not is_allowed:
                    assert answer.code in (1, 16), (code, naming.title, answer)
                    assert SECRET not in encode_command(answer)
                    one_way = world.request(code, naming)
                    one_way.flag |= FLAG_ONEWAY
                    wire.write(one_way)
                    await wire.ask(world.request(RequestCode.CHECK_CLIENT_CONFIG, NAMINGS[0]))
                    assert world.broker.access.refused == refused + 2, (code, naming.title)
        assert node.brokers["broker-a"].core is world.broker


FORGED = (
    {"AccessKey": "nobody"},
    {"AccessKey": ""},
    {"Signature": ""},
    {"Signature": "A" * 28},
    {"Signature": "é"},
    {"AccessKey": "traders\x00"},
    {"SecurityToken": "x"},
    {"consumerGroup": "g "},
    {"extra": "field"},
)


@pytest.mark.parametrize("kind", ["users", "files"])
async def test_no_code_is_served_without_the_right_signature(kind: str) -> None:
    """Unsigned, unknown signer, changed after signing: every code is refused, also with all grants."""
    async with running(broker=BrokerConfig(**switches(kind))) as (node, _), connected(node) as wire:
        world = NodeWorld(kind, node)
        for code in (*sorted(REQUESTS), 4711, -1, 1 << 30):
            world.grant(CASES.get(code, Case("Sub", "Sub", "Get")))
            for change in (None, *FORGED):
                request = world.request(code, NAMINGS[0])
                if change is None:
                    request = RemotingCommand(code, world.fields(code, NAMINGS[0]), world.body(code, NAMINGS[0]))
                else:
                    request.ext |= change
                refused = world.broker.access.refused
                answer = await wire.ask(request)
                assert answer.code in (1, 16), (code, change, answer)
                assert world.broker.access.refused == refused + 1, (code, change)


async def test_the_body_is_signed_too() -> None:
    """A body that was exchanged on the way is refused, whatever the fields say."""
    async with running(broker=BrokerConfig(**switches("users"))) as (node, _), connected(node) as wire:
        world = NodeWorld("users", node)
        for code in sorted(REQUESTS):
            world.grant(CASES[code])
            request = world.request(code, NAMINGS[0])
            request.body += b" "
            assert (await wire.ask(request)).code == 16, code
            sign(request, ACCOUNT)
            refused = world.broker.access.refused
            await wire.ask(request)
            assert world.broker.access.refused == refused, code
