"""A broker of controller mode as async learner: a controller and masters that say what those of 5.3.3 say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.net import ConnectionPool, next_command
from mqtrail.node import Node, NodeConfig
from mqtrail.node.data_folder import DataFolder
from mqtrail.store import CommitLogConfig, RealDisk
from mqtrail.wire import InvalidParameter, RemotingCommand, RequestCode, ResponseCode, encode_command
from tests.waiting import until

LOG = (Path(__file__).parents[1] / "broker/ha/data/apache-5.3.3-two-epochs").read_bytes()
# Its records end at 218, 436, 654, 872 and 1090; epoch 5 begins at 654.
DEADLINE_S = 60.0
ME = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


class Master:
    """The HA port of a master: its epochs, and how much of the log it has."""

    def __init__(self, epochs: list[tuple[int, int]], end: int) -> None:
        self.epochs, self.end = epochs, end
        self.hellos: list[bytes] = []
        self.reports: list[int] = []
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.hellos.append(await reader.readexactly(16))
            epochs = b"".join(number(epoch, 4) + number(start, 8) for epoch, start in self.epochs)
            writer.write(number(1, 4) + number(len(epochs), 4) + number(self.end, 8) + number(self.epochs[-1][0], 4))
            writer.write(epochs)
            while True:
                at = int.from_bytes((await reader.readexactly(12))[4:], "big")
                self.reports.append(at)
                if at < self.end:
                    epoch, start = [one for one in self.epochs if one[1] <= at][-1]
                    stop = min([one[1] for one in self.epochs if one[1] > at] + [self.end])
                    writer.write(number(2, 4) + number(stop - at, 4) + number(at, 8) + number(epoch, 4))
                    writer.write(number(start, 8) + number(self.end, 8) + LOG[at:stop])
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


class Group:
    """A controller, which is the request port of all masters too. master: (id, address, epoch); None: there is none."""

    def __init__(self) -> None:
        self.address = ""
        self.master: tuple[int, Master, int] | None = None
        self.requests: list[RemotingCommand] = []
        self.unknown_count = 0  # requests to answer as if there were no master yet
        self.next_id = 2
        self.taken: dict[int, str] = {1: "127.0.0.1:1;1"}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = number(size, 4) + await reader.readexactly(size)
                request, _ = next_command(frame, 0, len(frame))
                assert request is not None
                self.requests.append(request)
                if not request.is_oneway:
                    code, ext = self.answer(request)
                    reply = RemotingCommand(code, ext, b"")
                    reply.opaque, reply.flag = request.opaque, 1
                    writer.write(encode_command(reply))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def answer(self, request: RemotingCommand) -> tuple[int, dict[str, str]]:
        match request.code:
            case 1005:
                return 0, {"controllerLeaderAddress": self.address, "isLeader": "true", "group": "controllers"}
            case 1012:
                return 0, {**ME, "nextBrokerId": str(self.next_id)}
            case 1013:
                broker_id, code = int(request.ext["appliedBrokerId"]), request.ext["registerCheckCode"]
                if self.taken.setdefault(broker_id, code) != code:
                    self.next_id = 3
                    return ResponseCode.CONTROLLER_BROKER_ID_INVALID, ME
                return 0, ME
            case 1003 | 1004 if self.master is None or self.unknown_count:
                self.unknown_count = max(0, self.unknown_count - 1)
                return 0, {}
            case 1003 | 1004:
                assert self.master is not None
                broker_id, _, epoch = self.master
                return 0, {
                    "masterBrokerId": str(broker_id),
                    "masterAddress": self.address,
                    "masterEpoch": str(epoch),
                }
            case 906:
                assert self.master is not None
                return 0, {"masterHaAddress": self.master[1].address, "masterAddress": self.address}
        return ResponseCode.QUERY_NOT_FOUND, {}

    def count(self, code: int) -> int:
        return sum(request.code == code for request in self.requests)

    def has_beat(self, *expected: str) -> bool:
        """Whether a heartbeat had this id, last epoch and end of the log."""
        beats = [request.ext for request in self.requests if request.code == 904]
        return any((ext["brokerId"], ext["epoch"], ext["maxOffset"]) == expected for ext in beats)


@asynccontextmanager
async def group(*masters: Master) -> AsyncIterator[Group]:
    found = Group()
    servers = []
    ports: list[Group | Master] = [found, *masters]
    for one in ports:
        server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
        one.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        servers.append(server)
    try:
        yield found
    finally:
        for server in servers:
            server.close()


@asynccontextmanager
async def learner(found: Group, folder: Path, **broker: Any) -> AsyncIterator[Node]:
    settings = BrokerConfig(
        controller_mode=True,
        controller_addresses=f"127.0.0.1:1;{found.address}",
        async_learner=True,
        controller_heartbeat_ms=10,
        **{"controller_poll_ms": 10, **broker},
    )
    store = CommitLogConfig(segment_size=1 << 20, message_size_max=100_000)
    node = Node(NodeConfig(data=folder, namesrv_port=0, broker_port=0, ha_port=0, broker=settings, store=store))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def log_of(node: Node) -> bytes:
    store = node.brokers["broker-a"].store
    return b"" if store is None else store.log_bytes(0, 1 << 20)


def file_of(folder: Path, name: str) -> bytes:
    return (folder / "broker-a" / name).read_bytes()


async def test_a_learner_joins_and_follows(tmp_path: Path) -> None:
    """It takes an id, registers, sends heartbeats, and copies log and epochs; after a restart it goes on."""
    master = Master([(1, 0), (5, 654)], 872)
    async with group(master) as found:
        found.master = 1, master, 5
        for end in (872, 1090):
            master.end = end
            async with learner(found, tmp_path) as node:
                await until(partial(found.has_beat, "2", "5", str(end)))
                assert log_of(node) == LOG[:end]
                assert master.hellos[-1] == bytes.fromhex("00000001000000010000000000000002")
        assert found.count(1013) == 1
        assert file_of(tmp_path, "brokerIdentity") == b"DefaultCluster#broker-a#2"
        assert file_of(tmp_path, "epochFileCheckpoint") == b"2\n2000752627\n1-0\n5-654\n"


async def test_an_id_that_another_broker_took(tmp_path: Path) -> None:
    """It applies for the next one."""
    master = Master([(1, 0)], 218)
    async with group(master) as found:
        found.master, found.taken[2] = (1, master, 1), "127.0.0.1:9;9"
        async with learner(found, tmp_path) as node:
            await until(lambda: log_of(node) == LOG[:218])
        assert file_of(tmp_path, "brokerIdentity") == b"DefaultCluster#broker-a#3"
        assert not (tmp_path / "broker-a" / "brokerIdentity-temp").exists()


async def test_a_tail_that_the_next_master_lacks_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is kept in a file, which the log names; the queues end with the log."""
    first, second = Master([(1, 0)], 654), Master([(1, 0), (6, 218)], 218)
    async with group(first, second) as found:
        found.master = 1, first, 1
        async with learner(found, tmp_path) as node:
            await until(lambda: log_of(node) == LOG[:654])
            found.master = 3, second, 6
            await until(lambda: 218 in second.reports)
            assert log_of(node) == LOG[:218]
            core = node.brokers["broker-a"].core
            assert core is not None
            ends = [core.store.max_offset("TopicE", queue_id) for queue_id in range(8)]
            assert sum(ends) == 1
    path = f"truncated/{218:020}-{654:020}"
    assert file_of(tmp_path, path) == LOG[218:654]
    logged = capsys.readouterr().err
    assert path in logged
    assert "store.truncated" in logged


async def test_a_learner_is_told_of_another_master(tmp_path: Path) -> None:
    """1008: it asks the controller at once, and does not wait for the next time."""
    first, second = Master([(1, 0)], 218), Master([(1, 0), (6, 218)], 436)
    async with group(first, second) as found:
        found.master = 1, first, 1
        async with learner(found, tmp_path, controller_poll_ms=3_600_000) as node:
            await until(lambda: log_of(node) == LOG[:218])
            found.master = 3, second, 6
            pool = ConnectionPool()
            notice = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {"masterBrokerId": "9"})
            await pool.oneway(node.broker_addresses[0], notice)
            await until(lambda: log_of(node) == LOG[:436])
            await pool.close()


async def test_without_a_master_it_does_not_serve(tmp_path: Path) -> None:
    """It does as soon as there is one, and goes on when there is none again."""
    master = Master([(1, 0)], 218)
    async with group(master) as found:
        found.master, found.unknown_count = (1, master, 1), 3
        async with learner(found, tmp_path) as node:
            assert found.unknown_count == 0
            await until(lambda: log_of(node) == LOG[:218])
            found.master = None
            asked = found.count(1004)
            await until(lambda: found.count(1004) > asked + 1)
            assert log_of(node) == LOG[:218]


async def test_it_does_not_become_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An election without in-sync replicas may choose it; it says so, and stays what it is."""
    master = Master([(1, 0)], 218)
    async with group(master) as found:
        found.master = 1, master, 1
        async with learner(found, tmp_path) as node:
            await until(lambda: log_of(node) == LOG[:218])
            found.master = 2, master, 7
            errors = ""

            def is_logged() -> bool:
                nonlocal errors
                errors += capsys.readouterr().err
                return "enableElectUncleanMaster=false" in errors

            await until(is_logged)
            core = node.brokers["broker-a"].core
            assert core is not None
            assert core.config.is_slave


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        ("DefaultCluster#broker-b#2", "found the identity of broker-b of DefaultCluster"),
        ("OtherCluster#broker-a#2", "found the identity of broker-a of OtherCluster"),
        ("DefaultCluster#broker-a", "expected cluster#broker#id"),
        ("DefaultCluster#broker-a#x", "expected cluster#broker#id"),
    ],
)
async def test_the_folder_of_another_broker(identity: str, found: str, tmp_path: Path) -> None:
    DataFolder.open(tmp_path).close()
    folder = RealDisk(tmp_path / "broker-a")
    folder.replace("brokerIdentity", identity.encode())
    folder.close()
    async with group() as controllers:
        with pytest.raises(InvalidParameter, match=found):
            async with learner(controllers, tmp_path):
                pass


def test_it_needs_controllers() -> None:
    with pytest.raises(InvalidParameter, match=r"controllerAddr.*expected host:port of each controller"):
        BrokerConfig(controller_mode=True)


def test_it_needs_a_folder() -> None:
    settings = BrokerConfig(controller_mode=True, controller_addresses="127.0.0.1:1", async_learner=True)
    node = Node(NodeConfig(namesrv_port=None, broker_port=0, broker=settings))
    with pytest.raises(InvalidParameter, match="pass --data"):
        asyncio.run(node.start())
