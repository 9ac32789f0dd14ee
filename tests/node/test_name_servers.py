"""A broker and several name servers, none of which knows of the others."""

import asyncio
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
)

from .helpers import send_command


async def until_route(pool: ConnectionPool, namesrv: str, topic: str, code: int) -> bytes:
    """Wait until a name server answers a route with a code."""
    async with asyncio.timeout(10):
        while True:
            request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            if (reply := await pool.request(namesrv, request, 5_000)).code == code:
                return reply.body
            await asyncio.sleep(0.01)


async def test_every_name_server_hears_everything(tmp_path: Path) -> None:
    """Registrations, topics and the leave of a broker reach each of them; each answers alone, by its own port."""
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
        assert (await pool.request(broker, send_command("orders", b"x"), 5_000)).code == 0
        for server, address in zip(servers, addresses, strict=True):
            route = TopicRouteData.decode(await until_route(pool, address, "orders", 0))
            assert [one.broker_addrs for one in route.broker_datas] == [{0: broker}]
            settings = await pool.request(address, RemotingCommand(RequestCode.GET_NAMESRV_CONFIG), 5_000)
            assert f"listenPort={server.port}\n".encode() in settings.body
        await servers[0].stop()
        assert (await pool.request(broker, send_command("more", b"x"), 5_000)).code == 0
        for address in addresses[1:]:
            await until_route(pool, address, "more", 0)
    finally:
        await node.stop()
    for address in addresses[1:]:
        cluster = await pool.request(address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 5_000)
        assert ClusterInfo.decode(cluster.body).broker_addr_table == {}
    await pool.close()
    for server in servers[1:]:
        await server.stop()


async def test_values_are_each_servers_own(tmp_path: Path) -> None:
    """A key-value pair is kept by the one it was put into, over a restart, and by no other."""
    pool = ConnectionPool()
    folder = tmp_path / "namesrv"
    for put in (True, False):
        server = NameServerNode(folder)
        server.bind("127.0.0.1", 0)
        await server.start()
        address = f"{server.host}:{server.port}"
        if put:
            ext = {"namespace": "n", "key": "k", "value": "v"}
            await pool.request(address, RemotingCommand(RequestCode.PUT_KV_CONFIG, ext), 5_000)
        listed = await pool.request(
            address, RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}), 5_000
        )
        assert KvTable.decode(listed.body).table == {"k": "v"}
        await server.stop()
    await pool.close()


class SlowNameServer:
    """Answers registrations only while `lets` is set; says yes to all else."""

    def __init__(self) -> None:
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
                if request.code == RequestCode.REGISTER_BROKER:
                    self.registered.put_nowait(request)
                    await self.lets.wait()
                writer.write(encode_command(RemotingCommand.reply_to(request, ResponseCode.SUCCESS)))
            kept = kept[start:]
        writer.close()


async def test_a_topic_is_known_when_its_making_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer waits for name servers as Apache's does, for one that hangs no longer than a client would."""
    async with SlowNameServer() as slow:
        pool = ConnectionPool()
        node = Node(NodeConfig(namesrv_port=0, namesrv_addresses=(slow.address,), broker_port=0))
        await node.start()
        try:
            monkeypatch.setattr(registrar, "TOLD_WAIT_S", 60.0)
            (broker,) = node.broker_addresses
            own = next(address for address in node.namesrv_address.split(";") if address != slow.address)
            await slow.registered.get()

            # as updateTopic makes it, and as a first message does
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
                answering = asyncio.create_task(pool.request(broker, make, 5_000))
                registration = await asyncio.wait_for(slow.registered.get(), 10)
                assert topic.encode() in registration.body
                await until_route(pool, own, topic, 0)  # the one that hangs keeps nothing from the other
                assert not answering.done()
                slow.lets.set()
                assert (await answering).code == 0

            monkeypatch.undo()
            slow.lets.clear()  # and never again: the answer comes all the same
            assert (await pool.request(broker, send_command("later", b"x"), 5_000)).code == 0
        finally:
            slow.lets.set()
            await node.stop()
            await pool.close()
