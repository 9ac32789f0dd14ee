"""A broker and several name servers, none of which knows of the others."""

import asyncio
from pathlib import Path

from mqtrail.net import ConnectionPool
from mqtrail.node import NameServerNode, Node, NodeConfig
from mqtrail.wire import ClusterInfo, KvTable, RemotingCommand, RequestCode, TopicRouteData

from .helpers import send_command


async def until_route(pool: ConnectionPool, namesrv: str, topic: str, code: int) -> bytes:
    """Wait until a name server answers a route with a code."""
    async with asyncio.timeout(10):
        while True:
            request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            if (reply := await pool.request(namesrv, request, 5_000)).code == code:
                return reply.body
            await asyncio.sleep(0.01)


def test_every_name_server_hears_everything(tmp_path: Path) -> None:
    """Registrations, topics and the leave of a broker reach each of them; each answers alone, by its own port."""

    async def main() -> None:
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

    asyncio.run(main())


def test_values_are_each_servers_own(tmp_path: Path) -> None:
    """A key-value pair is kept by the one it was put into, over a restart, and by no other."""

    async def main() -> None:
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

    asyncio.run(main())
