"""Waiting too long: for the broker to serve a request, and for the disk to flush."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.net import ServerConnection
from mqtrail.net.log import LINES_A_WINDOW
from mqtrail.node import Node, NodeConfig
from mqtrail.node.broker_shell import BrokerShell
from mqtrail.node.fast_port import FastPort
from mqtrail.node.flusher import Flusher
from mqtrail.node.late import late_replies, refused_replies
from mqtrail.node.shell import TICK_PAUSE_MS, Shell
from mqtrail.store import MemoryStore
from mqtrail.wire import (
    ConsumerData,
    HeartbeatData,
    Host,
    Peer,
    PeerId,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SerializeType,
    cut_frame,
    decode_command,
    encode_command,
    frame_end,
)
from tests.waiting import until

from .helpers import send_command
from .test_flusher import SlowStore

START_MS = 1_700_000_000_000
HEARTBEAT = HeartbeatData("c", (), (ConsumerData("g"),)).encode()


def commands(data: bytes) -> list[RemotingCommand]:
    found, start = [], 0
    while start < len(data):
        end = frame_end(data, start, len(data))
        found.append(decode_command(cut_frame(data, start, end)))
        start = end
    return found


class Listener:
    """The part of a connection that the shell uses."""

    def __init__(self, number: int) -> None:
        self.data = Peer(PeerId(number), Host("10.0.0.1", number))
        self.id, self.host = number, self.data.address
        self.kept_s = 0.0
        self.write_paused = False
        self.written = b""

    def turn_is_over(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data


class Waits:
    """A shell with a clock that the test moves, also while the broker works."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = START_MS
        broker = Broker(BrokerConfig(**settings), MemoryStore(), unique_id=lambda: "ID", now_ms=START_MS)
        self.shell = BrokerShell(broker, clock=lambda: self.now_ms)

    def serve(self, listener: Listener, *requests: RemotingCommand, takes_ms: int = 0) -> list[RemotingCommand]:
        """Serve a piece that takes this long; return the replies."""
        lane = self.shell._lane

        def process(*args: Any) -> Any:
            served = lane.process(*args)
            self.now_ms += takes_ms
            return served

        self.shell._lane = cast(Any, SimpleNamespace(process=process))
        connection = cast(ServerConnection, listener)
        self.shell._connections[listener.data.id] = connection
        data = b"".join(map(encode_command, requests))
        try:
            assert self.shell.process(connection, data, 0, len(data)) == len(data)
        finally:
            self.shell._lane = lane
        written, listener.written = listener.written, b""
        return commands(written)


async def test_what_was_ready_while_a_long_piece_was_served_has_waited() -> None:
    """The next piece of the same round is refused if it waited too long; the next round is not affected."""
    waits = Waits()
    long, other = Listener(1), Listener(2)
    waits.serve(long, send_command("orders", b"x"))
    waits.serve(long, send_command("orders", b"x" * 20_000), takes_ms=300)
    send, route = waits.serve(other, send_command("orders", b"y"), RemotingCommand(RequestCode.GET_MIN_OFFSET))
    assert send.code == 2
    assert (send.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, ")
    assert "period in queue: 300ms" in (send.remark or "")
    assert route.code != 2
    await asyncio.sleep(0)
    (send,) = waits.serve(other, send_command("orders", b"y"))
    assert send.code == 0
    waits.shell.stop()


@pytest.mark.parametrize(("settings", "takes_ms"), [({"fast_failure": False}, 300), ({}, 190), ({}, 0)])
async def test_who_did_not_wait_too_long_is_served(settings: dict[str, Any], takes_ms: int) -> None:
    """Below the limit, or without fast failure, nothing is refused."""
    waits = Waits(**settings)
    waits.serve(Listener(1), send_command("orders", b"x" * 20_000), takes_ms=takes_ms)
    (send,) = waits.serve(Listener(2), send_command("orders", b"y"))
    assert send.code == 0
    waits.shell.stop()


async def test_what_a_peer_left_lying_has_waited() -> None:
    """Requests kept because their peer does not read its replies are refused if it reads them too late."""
    waits = Waits()
    peer = Listener(1)
    peer.kept_s = asyncio.get_running_loop().time() - 6
    sent, pulled, beat = waits.serve(
        peer,
        send_command("orders", b"x"),
        RemotingCommand(
            RequestCode.PULL_MESSAGE,
            PullHeader("g", "orders", 0, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*").to_ext(),
        ),
        RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"c"}'),
    )
    assert (sent.code, pulled.code, beat.code) == (2, 2, 0)
    waits.shell.stop()


async def test_a_concern_that_keeps_failing_neither_floods_the_log_nor_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays due: the next tick comes after a pause, also if requests set the timer, and others get their turn."""
    waits = Waits()
    broker, ticked = waits.shell._broker, list[int]()

    def deliver(_now_ms: int) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("mqtrail.node.shell.FAILED_PAUSE_MS", 10_000)
    monkeypatch.setattr(broker.delays, "deliver", deliver)
    monkeypatch.setattr(broker, "next_tick_ms", lambda: 0)
    monkeypatch.setattr(broker._concerns.clients, "tick", lambda now_ms: ticked.append(now_ms) or [])
    with capture_logs() as logs:
        for _ in range(LINES_A_WINDOW + 5):
            waits.shell._tick()
            waits.shell.set_timer()
            assert waits.shell._timer_ms > START_MS + TICK_PAUSE_MS
    failed = [line for line in logs if line["event"] == "core.tick_failed"]
    assert (len(failed), failed[0]["part"], len(ticked)) == (LINES_A_WINDOW, "delays", LINES_A_WINDOW + 5)
    waits.shell.stop()


async def test_a_core_that_cannot_tell_its_next_tick_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a timer all of its own work would stop."""
    waits = Waits()

    def next_tick_ms() -> int:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(waits.shell._broker, "next_tick_ms", next_tick_ms)
    with capture_logs() as logs:
        waits.shell._tick()
    assert [line["event"] for line in logs] == ["core.tick_failed"]
    assert waits.shell._timer is not None
    waits.shell.stop()


def test_late_replies_are_distinguished() -> None:
    """Successful replies to sends become code 10 with the same header; other replies wait on."""
    good = {"msgId": "A", "queueId": "0", "queueOffset": "1"}
    data = encode_command(RemotingCommand(0, dict(good), opaque=1, flag=1))
    binary = encode_command(RemotingCommand(0, dict(good), opaque=2, flag=1, serialize=SerializeType.ROCKETMQ))
    pull = encode_command(RemotingCommand(0, {"nextBeginOffset": "1"}, b"body", opaque=3, flag=1))
    refused = encode_command(RemotingCommand(13, dict(good), opaque=4, flag=1))
    reported, waiting = late_replies(data + pull + binary + refused)
    assert waiting == pull + refused
    first, second = commands(reported)
    assert (first.code, first.opaque, first.ext, second.code, second.opaque) == (10, 1, good, 10, 2)
    assert second.serialize == SerializeType.ROCKETMQ
    assert late_replies(b"") == (b"", b"")


def test_replies_that_cannot_wait_for_the_disk() -> None:
    """A stored message is reported as code 10, any other reply as busy. Notifications of clients are dropped."""
    sent = encode_command(RemotingCommand(0, {"msgId": "A", "queueId": "0", "queueOffset": "1"}, opaque=1, flag=1))
    pull = encode_command(RemotingCommand(0, {"nextBeginOffset": "1"}, b"body", opaque=2, flag=1))
    notice = encode_command(RemotingCommand(40, {"consumerGroup": "g"}, opaque=3))
    found = commands(refused_replies(pull + sent + notice + pull))
    assert [(one.code, one.opaque, one.body) for one in found] == [(10, 1, b""), (2, 2, b""), (2, 2, b"")]


async def test_the_flusher_asks_what_waits_too_long() -> None:
    """Each callback is called once, in time; the flush calls its result instead."""
    store, happened = SlowStore(), list[str]()
    flusher = Flusher(store, lambda error: pytest.fail(str(error)), late_ms=20)

    def late(name: str, then: Callable[[], None] | None) -> Callable[[ResponseCode], Callable[[], None] | None]:
        def ask(code: ResponseCode) -> Callable[[], None] | None:
            assert code == ResponseCode.FLUSH_DISK_TIMEOUT
            happened.append(f"{name} late")
            return then

        return ask

    store.end_offset = 3
    flusher.after(1, lambda: happened.append("a"), late("a", None))
    flusher.after(2, lambda: happened.append("b"), late("b", lambda: happened.append("rest of b")))
    flusher.after(3, lambda: happened.append("c"))
    await until(lambda: happened == ["a late", "b late"])
    store.permits.release(2)
    await until(lambda: happened == ["a late", "b late", "rest of b", "c"])
    flusher.after(9, lambda: happened.append("d"), late("d", None))
    store.end_offset = 9
    store.permits.release(5)
    await flusher.stop()
    assert "d late" not in happened


async def test_a_disk_that_hangs_is_reported_to_senders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYNC_FLUSH over sockets: code 10 after syncFlushTimeout, and 0 again once the disk works."""
    from mqtrail.net import ConnectionPool

    config = BrokerConfig(sync_flush=True, sync_flush_timeout_ms=50)
    node = Node(NodeConfig(namesrv_port=0, broker_port=0, data=tmp_path / "data", broker=config))
    await node.start()
    pool = ConnectionPool()
    try:
        store = node.brokers["broker-a"].store
        assert store is not None
        hangs, begin = threading.Event(), store.begin_flush

        def slowly() -> Callable[[], int]:
            job = begin()
            return lambda: (hangs.wait(60) and job()) or 0

        monkeypatch.setattr(store, "begin_flush", slowly)
        (address,) = node.broker_addresses
        reply = await pool.request(address, send_command("orders", b"x"), 30_000)
        assert reply.code == 10
        assert {"msgId", "queueId", "queueOffset"} <= reply.ext.keys()
        hangs.set()
        monkeypatch.undo()
        async with asyncio.timeout(60):
            while (await pool.request(address, send_command("orders", b"y"), 30_000)).code != 0:
                await asyncio.sleep(0.01)
    finally:
        hangs.set()
        await pool.close()
        await node.stop()


async def test_async_flush_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reply names the flush that covers it; under ASYNC_FLUSH the node writes it at once."""
    from mqtrail.net import ConnectionPool

    config = BrokerConfig(sync_flush_timeout_ms=50)  # a reply that waits for the disk has code 10 then
    node = Node(NodeConfig(namesrv_port=0, broker_port=0, data=tmp_path / "data", broker=config))
    await node.start()
    pool, hangs = ConnectionPool(), threading.Event()
    try:
        store = node.brokers["broker-a"].store
        assert store is not None
        begin = store.begin_flush

        def slowly() -> Callable[[], int]:
            job = begin()
            return lambda: (hangs.wait(60) and job()) or 0

        monkeypatch.setattr(store, "begin_flush", slowly)
        for body in (b"by handle: the topic is created", b"by the lane"):
            reply = await pool.request(node.broker_addresses[0], send_command("orders", body), 30_000)
            assert reply.code == 0
            assert store.flushed_offset < store.end_offset
        monkeypatch.undo()
    finally:
        hangs.set()
        await pool.close()
        await node.stop()


class EndedTurn(Listener):
    """A connection whose turn is over with its first request."""

    def turn_is_over(self) -> bool:
        return True


@pytest.mark.parametrize("code", [RequestCode.GET_MIN_OFFSET, RequestCode.PULL_MESSAGE, RequestCode.GET_KV_CONFIG])
@pytest.mark.parametrize("port", ["broker", "broker, late", "fast port", "name server"])
async def test_each_port_stops_at_the_end_of_a_turn(port: str, code: int) -> None:
    """The requests after that wait for the connection's next turn, so that others are served."""
    waits = Waits()
    waits.serve(Listener(1), send_command("orders", b"x"))
    waits.serve(Listener(1), RemotingCommand(RequestCode.HEART_BEAT, {}, HEARTBEAT))
    ext = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    frame = encode_command(RemotingCommand(code, ext))
    connection = cast(ServerConnection, EndedTurn(2))
    waits.shell._connections[PeerId(2)] = connection
    names = Shell(NameServer(NameServerConfig()), clock=lambda: START_MS)
    ports: dict[str, Callable[[bytes], int]] = {
        "broker": lambda data: waits.shell.process(connection, data, 0, len(data)),
        "broker, late": lambda data: waits.shell._process_late(connection, data, 0, len(data), START_MS, 1),
        "fast port": lambda data: FastPort(waits.shell, lambda: START_MS).process(connection, data, 0, len(data)),
        "name server": lambda data: names.process(connection, data, 0, len(data)),
    }
    assert ports[port](3 * frame) == len(frame)
    names.stop()
    waits.shell.stop()
