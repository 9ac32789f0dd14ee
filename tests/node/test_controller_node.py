"""Controllers on sockets: they elect a leader, serve a broker, and go on without one of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from mqtrail.controller import ControllerConfig
from mqtrail.net import BindError, ConnectionPool, NetError, ServerConfig, TlsClientConfig, TlsMode, TlsServerConfig
from mqtrail.node import ControllerNode
from mqtrail.wire import Credentials, InvalidParameter, RemotingCommand, RequestCode, ResponseCode, sign
from tests.ports import free_ports
from tests.waiting import until

WAIT_S = 60.0
NAMES = {"clusterName": "c", "brokerName": "b"}
INNER = '{"accessKey":"cluster-one","secretKey":"the-secret-of-it"}'
ADMIN = '{"accessKey":"operator","secretKey":"another-secret"}'


@asynccontextmanager
async def group(
    folder: Path,
    count: int = 3,
    server: ServerConfig | None = None,
    tls: TlsClientConfig | None = None,
    **settings: Any,
) -> AsyncIterator[list[ControllerNode]]:
    """Run controllers, each with a folder of its own."""
    peers = ";".join(f"n{place}-127.0.0.1:{port}" for place, port in enumerate(free_ports(count)))
    config = ControllerConfig(peers=peers, heartbeat_ms=50, election_ms=300, **settings)
    nodes = [
        ControllerNode(replace(config, self_id=f"n{place}"), folder / f"n{place}", server=server, tls=tls)
        for place in range(count)
    ]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


async def ask(pool: ConnectionPool, nodes: list[ControllerNode], code: int, ext: dict[str, str]) -> RemotingCommand:
    """Ask the controllers in turn until one of them answers as their leader."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for node in nodes:
                try:
                    reply = await pool.request(node.address, RemotingCommand(code, dict(ext)), 2_000)
                except NetError:
                    continue
                if reply.code != 2007:
                    return reply
            await asyncio.sleep(0.05)


async def test_controllers_agree_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    """What the first leader acknowledged, the next one knows."""
    pool = ConnectionPool()
    async with group(tmp_path) as nodes:
        applied = NAMES | {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
        assert (await ask(pool, nodes, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)).code == 0
        leader = next(node for node in nodes if node.core is not None and node.core.is_leader)
        await leader.stop()
        others = [node for node in nodes if node is not leader]
        reply = await ask(pool, others, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NAMES)
        assert reply.ext["nextBrokerId"] == "2"
    await pool.close()


async def test_a_restart_keeps_the_state(tmp_path: Path) -> None:
    """One controller, stopped and started again on its folder; a second one on its port is refused."""
    pool = ConnectionPool()
    async with group(tmp_path, 1) as (node,):
        applied = NAMES | {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
        assert (await ask(pool, [node], RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)).code == 0
        with pytest.raises(BindError):
            await ControllerNode(node.config, tmp_path / "other").start()
        await node.stop()
        await node.start()
        reply = await ask(pool, [node], RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NAMES)
        assert reply.ext["nextBrokerId"] == "2"
    await pool.close()


async def test_a_stop_with_open_connections_raises_nothing(tmp_path: Path) -> None:
    """The master's connection closes in the stop, which would begin an election at a controller that serves."""
    pool, errors = ConnectionPool(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with group(tmp_path, 1) as (node,):
        for code, more in (
            (RequestCode.CONTROLLER_APPLY_BROKER_ID, {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}),
            (RequestCode.CONTROLLER_REGISTER_BROKER, {"brokerId": "1", "brokerAddress": "127.0.0.1:1"}),
            (RequestCode.BROKER_HEARTBEAT, {"brokerId": "1", "brokerAddr": "127.0.0.1:1", "brokerName": "b"}),
            (RequestCode.CONTROLLER_ELECT_MASTER, {"brokerId": "1"}),
        ):
            assert (await ask(pool, [node], code, NAMES | more)).code == 0, code
        await node.stop()
    await pool.close()
    assert not errors


def encrypted(folder: Path) -> tuple[ServerConfig, TlsClientConfig]:
    """Return settings of a port that takes TLS alone, and of its clients."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    cert, key, ca = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    server = TlsServerConfig(cert_path=cert, key_path=key, mode=TlsMode.ENFORCING)
    return ServerConfig(tls=server), TlsClientConfig(enable=True, trust_path=ca)


async def test_controllers_with_access_control_and_tls(tmp_path: Path) -> None:
    """They know each other by the account, and serve brokers and operators with theirs. A stranger looks, and changes
    nothing: neither a group nor a setting, nor by a message in the name of another controller."""
    server, client = encrypted(tmp_path)
    names = ("cluster-one", "the-secret-of-it"), ("operator", "another-secret")
    broker, operator = (Credentials(access_key=name, secret_key=secret) for name, secret in names)
    pools = [
        ConnectionPool(tls=client.context(), sign=None if who is None else partial(sign, credentials=who))
        for who in (None, broker, operator)
    ]
    stranger, brokers, operators = pools
    applied = NAMES | {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
    plain = ConnectionPool()
    with capture_logs() as logs:
        async with group(tmp_path, 3, server, client, inner_credentials=INNER, admin_credentials=ADMIN) as nodes:
            assert (await ask(brokers, nodes, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)).code == 0
            reply = await ask(stranger, nodes, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NAMES)
            assert reply.ext["nextBrokerId"] == "2"
            for pool, code, ext in (
                (stranger, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied),
                (stranger, RequestCode.UPDATE_CONTROLLER_CONFIG, {}),
                (brokers, RequestCode.UPDATE_CONTROLLER_CONFIG, {}),
                (brokers, RequestCode.CLEAN_BROKER_DATA, NAMES),
            ):
                assert (await ask(pool, nodes, code, ext)).code == ResponseCode.NO_PERMISSION
            assert (await ask(operators, nodes, RequestCode.CLEAN_BROKER_DATA, NAMES)).code == 0
            refused = RemotingCommand(RequestCode.CONTROLLER_CONSENSUS, body=b"anything")
            await stranger.oneway(nodes[0].address, refused)
            await until(lambda: any("code 1901" in line.get("found", "") for line in logs))
            with pytest.raises(NetError):
                await plain.request(nodes[0].address, RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO), 10_000)
    assert {line["event"] for line in logs if "needs a signature" in line.get("found", "")} == {"controller.refused"}
    for pool in (*pools, plain):
        await pool.close()


async def test_controllers_with_certificates_of_another_authority_do_not_agree(tmp_path: Path) -> None:
    """Both sides say what is wrong with the certificate, and what to do."""
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    server, client = encrypted(tmp_path / "ours")
    with capture_logs() as logs:
        async with group(tmp_path, 3, server, client) as nodes:
            await nodes[2].stop()
            other_server, other_client = encrypted(tmp_path / "other")
            nodes[2] = ControllerNode(nodes[2].config, tmp_path / "n2", server=other_server, tls=other_client)
            await nodes[2].start()

            def found(event: str, text: str) -> bool:
                return any(line["event"] == event and text in line.get("error", "") for line in logs)

            await until(
                lambda: (
                    found("controller.unreachable", "expected a valid one signed by an authority in the trust store")
                    and found("connection.tls_failed", "add it to its trust store")
                )
            )
            assert nodes[2].core is not None
            assert not nodes[2].core.raft.may_vote


async def test_controllers_with_another_account_do_not_agree(tmp_path: Path) -> None:
    """One with another secret gets no vote, and each says why."""
    with capture_logs() as logs:
        async with group(tmp_path, 3, inner_credentials=INNER) as nodes:
            await nodes[2].stop()
            other = INNER.replace("the-secret-of-it", "another-one")
            nodes[2] = ControllerNode(replace(nodes[2].config, inner_credentials=other), tmp_path / "n2")
            await nodes[2].start()

            def told() -> set[str]:
                return {line["controller"] for line in logs if "check signature" in line.get("found", "")}

            await until(lambda: told() == {"n0", "n1", "n2"})
            assert nodes[2].core is not None
            assert not nodes[2].core.raft.may_vote


@pytest.mark.parametrize(
    ("settings", "checks"),
    [({}, False), ({"inner_credentials": INNER}, True), ({"inner_credentials": INNER, "acl": False}, False)],
)
def test_an_account_turns_access_control_on(settings: dict[str, Any], checks: bool) -> None:
    node = ControllerNode(ControllerConfig(**settings), host="0.0.0.0")
    assert node.config.acl is checks
    assert node.is_open_to_others is not checks


def test_access_control_needs_an_account(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="inner_credentials"):
        ControllerNode(ControllerConfig(acl=True))
