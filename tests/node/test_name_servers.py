"""A broker and several name servers, which do not know each other."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from mqtrail.net import ConnectionPool, next_command
from mqtrail.node import NameServerNode, Node, NodeConfig, registrar
from mqtrail.wire import (
    ClusterInfo,
    KvTable,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicRouteData,
    encode_command,
    version_of,
)

from .helpers import send_command


async def until_route(pool: ConnectionPool, namesrv: str, topic: str, code: int) -> bytes:
    """Wait until a name server answers a route with this code, before the next registration (30 s)."""
    async with asyncio.timeout(25):
        while True:
            request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            if (reply := await pool.request(namesrv, request, 30_000)).code == code:
                return reply.body
            await asyncio.sleep(0.01)


async def test_every_name_server_hears_everything(tmp_path: Path) -> None:
    """Registrations, topics and unregistration reach each name server; each answers on its own port."""
    servers = [NameServerNode(tmp_path / f"namesrv-{number}") for number in range(3)]
    for server in servers:
        server.bind("127.0.0.1", 0)
        await server.start()
    addresses = tuple(f"{server.host}:{server.port}" for server in servers)
    pool = ConnectionPool()
    node = Node(NodeConfig(namesrv_port=None, namesrv_addresses=addresses, broker_port=0))
    await node.start()
    try:
        (broker,) = node.broker_addresses
        assert node.namesrv_address == ";".join(addresses)
        assert (await pool.request(broker, send_command("orders", b"x"), 30_000)).code == 0
        for server, address in zip(servers, addresses, strict=True):
            route = TopicRouteData.decode(await until_route(pool, address, "orders", 0))
            assert [one.broker_addrs for one in route.broker_datas] == [{0: broker}]
            settings = await pool.request(address, RemotingCommand(RequestCode.GET_NAMESRV_CONFIG), 30_000)
            assert f"listenPort={server.port}\n".encode() in settings.body
        await servers[0].stop()
        assert (await pool.request(broker, send_command("more", b"x"), 30_000)).code == 0
        for address in addresses[1:]:
            await until_route(pool, address, "more", 0)
    finally:
        await node.stop()
    for address in addresses[1:]:
        cluster = await pool.request(address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 30_000)
        assert ClusterInfo.decode(cluster.body).broker_addr_table == {}
    await pool.close()
    for server in servers[1:]:
        await server.stop()


async def test_values_are_each_servers_own(tmp_path: Path) -> None:
    """A key-value pair is stored by the name server that received it, survives a restart, and reaches no other."""
    pool = ConnectionPool()
    folder = tmp_path / "namesrv"
    for put in (True, False):
        server = NameServerNode(folder)
        server.bind("127.0.0.1", 0)
        await server.start()
        address = f"{server.host}:{server.port}"
        if put:
            ext = {"namespace": "n", "key": "k", "value": "v"}
            await pool.request(address, RemotingCommand(RequestCode.PUT_KV_CONFIG, ext), 30_000)
        listed = await pool.request(
            address, RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}), 5_000
        )
        assert KvTable.decode(listed.body).table == {"k": "v"}
        await server.stop()
    await pool.close()


class SlowNameServer:
    """Answers registrations only while `lets` is set, and all other requests with success.

    single_code: its reply code to 217; None: no reply, like name servers before 5.0.
    """

    def __init__(self, version: int = version_of(5, 3, 3), single_code: int | None = ResponseCode.SUCCESS) -> None:
        self._version = version
        self._single_code = single_code
        self.registered = asyncio.Queue[RemotingCommand]()
        self.lets = asyncio.Event()
        self.lets.set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = b""
        while read := await reader.read(1 << 16):
            kept += read
            start = 0
            while (found := next_command(kept, start, len(kept)))[0] is not None:
                request, start = found
                assert request is not None
                code: int | None = ResponseCode.SUCCESS
                if request.code in (RequestCode.REGISTER_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV):
                    self.registered.put_nowait(request)
                    await self.lets.wait()
                if request.code == RequestCode.REGISTER_TOPIC_IN_NAMESRV:
                    code = self._single_code
                if code is not None:
                    reply = RemotingCommand.reply_to(request, code)
                    writer.write(encode_command(replace(reply, version=self._version)))
            kept = kept[start:]
        writer.close()


async def test_a_topic_is_known_when_its_making_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply waits for name servers, like Apache's. One that hangs delays it less than a client's timeout."""
    async with SlowNameServer() as slow:
        pool = ConnectionPool()
        node = Node(NodeConfig(namesrv_port=0, namesrv_addresses=(slow.address,), broker_port=0))
        await node.start()
        try:
            monkeypatch.setattr(registrar, "REGISTERED_WAIT_S", 60.0)
            (broker,) = node.broker_addresses
            own = next(address for address in node.namesrv_address.split(";") if address != slow.address)
            await slow.registered.get()

            # as created by updateTopic, and by a first message
            makes = [
                RemotingCommand(
                    RequestCode.UPDATE_AND_CREATE_TOPIC,
                    {
                        "topic": "made",
                        "defaultTopic": "TBW102",
                        "readQueueNums": "2",
                        "writeQueueNums": "2",
                        "perm": "6",
                        "topicFilterType": "SINGLE_TAG",
                        "order": "false",
                    },
                ),
                send_command("makes-itself", b"x"),
            ]
            for make, topic in zip(makes, ("made", "makes-itself"), strict=True):
                slow.lets.clear()
                answering = asyncio.create_task(pool.request(broker, make, 30_000))
                registration = await asyncio.wait_for(slow.registered.get(), 60)
                assert registration.code == RequestCode.REGISTER_TOPIC_IN_NAMESRV
                assert registration.ext["topic"] == topic
                await until_route(pool, own, topic, 0)  # the one that hangs does not delay the other
                assert not answering.done()
                slow.lets.set()
                assert (await answering).code == 0

            monkeypatch.undo()
            slow.lets.clear()  # it hangs for ever, and the reply still comes
            assert (await pool.request(broker, send_command("later", b"x"), 30_000)).code == 0
        finally:
            slow.lets.set()
            await node.stop()
            await pool.close()


@pytest.mark.parametrize(
    ("version", "single_code", "message"),
    [
        (version_of(4, 9, 7), None, [RequestCode.REGISTER_BROKER]),
        (
            version_of(5, 0, 0),
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            [RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.REGISTER_BROKER],
        ),
        (version_of(5, 3, 3), ResponseCode.SUCCESS, [RequestCode.REGISTER_TOPIC_IN_NAMESRV]),
    ],
)
async def test_one_topic_is_registered_in_the_way_that_a_name_server_knows(
    version: int, single_code: int | None, message: list[RequestCode]
) -> None:
    """217 is used from 5.0 on.

    A name server without it gets all topics, and no reply waits for an answer that never comes.
    """
    async with SlowNameServer(version, single_code) as other:
        pool = ConnectionPool()
        node = Node(NodeConfig(namesrv_port=None, namesrv_addresses=(other.address,), broker_port=0))
        await node.start()
        try:
            (broker,) = node.broker_addresses
            assert (await other.registered.get()).code == RequestCode.REGISTER_BROKER
            assert (await pool.request(broker, send_command("orders", b"x"), 30_000)).code == 0
            commands = [other.registered.get_nowait() for _ in message]
            assert [command.code for command in commands] == message
            assert all(b"orders" in command.body or command.ext.get("topic") == "orders" for command in commands)
            assert (await pool.request(broker, send_command("more", b"x"), 30_000)).code == 0
            # After it has refused 217 and accepted all topics, 217 is tried again: it may have been replaced. All
            # topics may have been registered meanwhile, because none changed.
            command = other.registered.get_nowait()
            while not (b"more" in command.body or command.ext.get("topic") == "more"):
                command = other.registered.get_nowait()
            assert command.code == message[0]
        finally:
            await node.stop()
            await pool.close()


async def test_registering_one_topic_gives_the_route_that_a_whole_registration_gives() -> None:
    """Queues and permission of 217 equal those of 103."""
    node = Node(NodeConfig(namesrv_port=0, broker_port=0))
    await node.start()
    pool = ConnectionPool()
    try:
        (broker,) = node.broker_addresses
        assert (await pool.request(broker, send_command("orders", b"x"), 30_000)).code == 0
        single = await until_route(pool, node.namesrv_address, "orders", 0)
        core = next(iter(node.brokers.values())).core
        assert core is not None
        whole = await pool.request(node.namesrv_address, core.registration(), 30_000)
        assert whole.code == 0
        assert await until_route(pool, node.namesrv_address, "orders", 0) == single
    finally:
        await node.stop()
        await pool.close()
