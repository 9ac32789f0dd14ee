"""Wake-ups of pmq's clients: to those who own the queue, where they registered from, and not to the dead."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from mqtrail.gateway import DoorConfig, Gate
from mqtrail.gateway.pmq import Members, waking
from mqtrail.gateway.pmq.broker import PmqBroker
from mqtrail.gateway.pmq.interface import PmqInterface
from mqtrail.gateway.pmq.waking import ClientAddress, Waker, address_of
from mqtrail.wire import Host

from ..conftest import Door
from .test_interface import CONSUMER, arrange, enter, group_of, ok


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("10.9.9.9|77|1234|8081", ClientAddress("10.0.0.1", 8081)),  # the address of the connection, not of the name
        ("10.0.0.1|77|1234", None),
        ("10.0.0.1|77|1234|0", None),
        ("10.0.0.1|77|1234|1023", None),  # of a service of the system
        ("10.0.0.1|77|1234|1024", ClientAddress("10.0.0.1", 1024)),
        ("10.0.0.1|77|1234|70000", None),
        ("10.0.0.1|77|1234|80@evil", None),
        ("x", None),
    ],
)
def test_addresses_of_names(name: str, expected: ClientAddress | None) -> None:
    assert address_of(name, "10.0.0.1") == expected


@pytest.mark.parametrize(
    ("ip", "settings", "woken"),
    [
        ("10.0.0.9", {}, True),
        ("127.0.0.1", {}, False),  # perhaps a proxy, whose clients would choose a port of this machine
        ("::1", {}, False),
        ("10.0.0.5", {}, False),  # the address that the door has itself
        ("127.0.0.1", {"wakes_local": True}, True),
        ("10.0.0.5", {"wakes_local": True}, True),
        ("10.0.0.9", {"proxies": "10.0.0.9"}, False),
        ("127.0.0.1", {"wakes_local": True, "proxies": "127.0.0.1"}, False),
    ],
)
def test_who_gets_wake_ups(ip: str, settings: dict[str, Any], woken: bool) -> None:
    """A client behind a proxy would have the door post to a port of the proxy's machine."""
    nothing: Any = SimpleNamespace()
    config = DoorConfig(hosts=None, **settings)
    interface = PmqInterface(
        nothing, nothing, nothing, "broker-a", asyncio.Event(), Gate(), config, Members(nothing, config)
    )
    broker = PmqBroker(nothing, Host(ip, 1_234), "10.0.0.5")
    expected = ClientAddress(ip, 8081) if woken else None
    assert interface._listens_at("x|77|1234|8081", broker) == expected


async def test_a_wake_up_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues and groups a client has."""
    monkeypatch.setattr(waking, "ITEMS_MAX", 3)
    posts = []

    async def post(address: ClientAddress, body: dict[str, Any]) -> None:
        posts.append(len(body["msgNotifyDtos"]))

    waker = Waker(post)
    for number in range(9):
        waker.wake(ClientAddress("10.0.0.1", 8081), number, "g")
    await asyncio.gather(*waker._posts.values())
    assert posts == [3]
    await waker.stop()


async def test_the_dead_are_left_alone() -> None:
    """An address that failed gets nothing for 5 s; then one more try."""
    now_s, posts = 100.0, []

    async def post(address: ClientAddress, body: dict[str, Any]) -> None:
        posts.append(body["msgNotifyDtos"])
        if len(posts) == 1:
            raise OSError("refused")

    waker, address = Waker(post, lambda: now_s), ClientAddress("10.0.0.1", 80)

    async def wake(*numbers: int) -> None:
        for number in numbers:
            waker.wake(address, number, "g")
        await asyncio.gather(*waker._posts.values())

    await wake(1)
    await wake(2)
    assert len(posts) == 1
    now_s += 5.1
    await wake(3, 3, 4)
    assert posts[1:] == [[{"queueId": number, "consumerGroupName": "g"} for number in (3, 4)]]
    await waker.stop()


class _Client(BaseHTTPRequestHandler):
    """The HTTP port of a client."""

    got: SimpleQueue[tuple[str, bytes]] = SimpleQueue()

    def do_POST(self) -> None:
        self.got.put((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_the_owner_of_a_queue_is_woken(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its registered port, with pmq's body, by a publish through either interface."""
    monkeypatch.setattr("mqtrail.gateway.pmq.waking.TIMEOUT_S", 60.0)  # a busy machine is no dead client
    arrange(door, "woken", "wakes", 1)
    with HTTPServer(("127.0.0.1", 0), _Client) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            consumer = enter(door, f"10.9.9.9|1|1|{server.server_port}", "woken", "wakes")
            (number,) = ok(door, f"{META_TOPICS}", topicNames=["wakes"])["topicQueues"]["wakes"]
            group_of(door, consumer, "woken")
            door.publish("wakes", {"body": "x"})
            expected = f'{{"msgNotifyDtos":[{{"queueId":{number},"consumerGroupName":"woken"}}]}}'
            assert _Client.got.get(timeout=60) == ("/mq/client/notify", expected.encode())
            ok(door, f"{CONSUMER}publish", topicName="wakes", msgs=[{"body": "y"}])
            assert _Client.got.get(timeout=60) == ("/mq/client/notify", expected.encode())
        finally:
            server.shutdown()
            thread.join()


META_TOPICS = "/api/server/meta/getTopicQueueIds"
