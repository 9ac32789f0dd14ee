"""A server that answers as the tests request, on both event loops."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from mqtrail.net import Server, ServerConfig, ServerConnection, next_command
from mqtrail.wire import RemotingCommand, encode_command

ECHO, SILENT, BIG, ASK_BACK, BATCH = 1001, 1002, 1003, 1004, 1005


class Answering:
    """ECHO returns the request's body; SILENT nothing; BIG as many bytes as ext says; ASK_BACK sends a request (40).

    BATCH returns as many message ids as ext says, with a header of the request's kind.
    """

    def __init__(self, piece_size_max: int = 1 << 30) -> None:
        self.connections: list[ServerConnection] = []
        self.gone: list[int] = []
        self.seen: list[RemotingCommand] = []
        self.piece_size_max = piece_size_max

    def connected(self, connection: ServerConnection) -> None:
        self.connections.append(connection)

    def disconnected(self, connection: ServerConnection) -> None:
        self.gone.append(connection.id)

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        written = 0
        while start < end and written < self.piece_size_max:
            command, start = next_command(buffer, start, end)
            if command is None:
                break
            written += self._answer(connection, command)
        return start

    def _answer(self, connection: ServerConnection, command: RemotingCommand) -> int:
        self.seen.append(command)
        if command.is_oneway or command.is_response or command.code == SILENT:
            return 0
        if command.code == ASK_BACK:
            connection.write(encode_command(RemotingCommand(40, {"consumerGroup": "g"}, opaque=command.opaque)))
        body = bytes(int(command.ext["size"])) if command.code == BIG else command.body
        answer = RemotingCommand.reply_to(command, 0, body=body)
        if command.code == BATCH:
            answer.ext["msgId"] = ",".join(["7F000001000077350000000000000000"] * int(command.ext["count"]))
            answer.serialize = command.serialize
        reply = encode_command(answer)
        connection.write(reply)
        return len(reply)


@asynccontextmanager
async def serving(
    application: Answering | None = None, config: ServerConfig | None = None
) -> AsyncIterator[tuple[Server, Answering]]:
    application = application or Answering()
    server = Server(application, config)
    server.bind("127.0.0.1", 0)
    await server.start()
    try:
        yield server, application
    finally:
        await server.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every coroutine of this folder on both loops (see pytest_pyfunc_call)."""
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop_factory")
        metafunc.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
