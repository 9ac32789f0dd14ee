"""The door before a broker of the test: bounds, clients that leave, the trace, requests that are repeated."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from mqtrail.gateway import DoorConfig, Gate, LocalGuard, make_door
from mqtrail.gateway.guard import BODY_FREE, BodyRoom
from mqtrail.gateway.json_size import has_many_values
from mqtrail.wire import (
    Host,
    Pub,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    SendResponseHeader,
    ServiceNotAvailable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TraceBatch,
    TraceLoss,
    decode_trace,
    offset_msg_id,
)
from tests.waiting import until

MESSAGES = "/v1/topics/t/messages"
RECEIVE = "/v1/groups/g/receive"
TRACE = "RMQ_SYS_TRACE_TOPIC"
OFFSETS: dict[int, str] = {
    RequestCode.QUERY_CONSUMER_OFFSET: "0",
    RequestCode.GET_MAX_OFFSET: "9",
    RequestCode.UPDATE_CONSUMER_OFFSET: "",
}
"""What is answered to these requests: every group exists and has read nothing of 9 messages."""


class FakeBroker:
    """A `Caller`: it stores nothing, answers sends, and holds pops that may wait until they are cancelled."""

    def __init__(self) -> None:
        self.gone: str | None = None
        self.asked: list[RemotingCommand] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = asyncio.Event()
        self.looked = asyncio.Event()
        self.cancelled_count = 0
        self.refuses_trace = False
        self.hangs = False

    @property
    def away(self) -> str | None:
        if self.gone is not None:
            self.looked.set()
        return self.gone

    async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        self.asked.append(command)
        if command.code == RequestCode.QUERY_MESSAGE:
            return RemotingCommand.reply_to(command, ResponseCode.QUERY_NOT_FOUND)
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            reply = RemotingCommand.reply_to(command, ResponseCode.SUCCESS)
            reply.body = TopicConfig("t").encode()
            return reply
        if command.code == RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
            reply = RemotingCommand.reply_to(command, ResponseCode.SUCCESS)
            reply.body = SubscriptionGroupConfig(command.ext["group"]).encode()
            return reply
        if command.code in OFFSETS:
            return RemotingCommand.reply_to(command, ResponseCode.SUCCESS, None, {"offset": OFFSETS[command.code]})
        header = SendMessageHeader.from_ext(command.ext)
        if header.topic == TRACE:
            if self.gone is not None:
                raise ServiceNotAvailable(self.gone)
            code = ResponseCode.SYSTEM_BUSY if self.refuses_trace else ResponseCode.SUCCESS
            return RemotingCommand.reply_to(command, code, "busy", _stored())
        await self.gate.wait()
        if self.hangs:
            raise TimeoutError
        return RemotingCommand.reply_to(command, ResponseCode.SUCCESS, None, _stored())

    async def ask_held(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        self.asked.append(command)
        if command.ext["pollTime"] == "0":
            return RemotingCommand.reply_to(command, ResponseCode.POLLING_TIMEOUT)
        self.held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise
        raise AssertionError

    def traced(self) -> list[Any]:
        """Return the records of all trace messages."""
        found: list[Any] = []
        for command in self.asked:
            if command.code == RequestCode.SEND_MESSAGE_V2 and SendMessageHeader.from_ext(command.ext).topic == TRACE:
                records, rejects = decode_trace(command.body)
                assert rejects == []
                found += records
        return found


def _stored() -> dict[str, str]:
    msg_id = offset_msg_id(Host("10.0.0.1", 10911), 0)
    return SendResponseHeader(msg_id, 0, 0, msg_region="R", trace_on=True).to_ext()


@asynccontextmanager
async def asking(broker: FakeBroker, gate: Gate | None = None, **bounds: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a door before the broker. The door is stopped at the end, which sends the rest of the trace."""
    app = make_door(broker, _ids(), "broker-a", DoorConfig(hosts=None, **bounds), asyncio.Event(), gate)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://door", timeout=60) as client,
    ):
        yield client


def _ids() -> Callable[[], str]:
    numbers = iter(range(1_000_000))
    return lambda: f"ID{next(numbers)}"


async def test_requests_are_bounded() -> None:
    """One more request than allowed is refused, and served when another one has ended."""
    broker = FakeBroker()
    broker.gate.clear()
    async with asking(broker, requests_max=1) as client:
        first = asyncio.create_task(client.post(MESSAGES, json={"body": "x"}))
        while not broker.asked:
            await asyncio.sleep(0)
        refused = await client.post(MESSAGES, json={"body": "y"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "found 1 requests in progress, expected at most 1" in refused.json()["detail"]
        broker.gate.set()
        assert (await first).status_code == 200
        assert (await client.post(MESSAGES, json={"body": "y"})).status_code == 200


@asynccontextmanager
async def asking_from(broker: FakeBroker, *ips: str, **bounds: Any) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of one door at these addresses."""
    app = make_door(broker, _ids(), "broker-a", DoorConfig(hosts=None, **bounds), asyncio.Event())
    async with app.router.lifespan_context(app), AsyncExitStack() as stack:
        clients = []
        for ip in ips:
            transport = httpx.ASGITransport(app=app, client=(ip, 1_234))
            client = httpx.AsyncClient(transport=transport, base_url="http://door", timeout=60)
            clients.append(await stack.enter_async_context(client))
        yield clients


async def test_one_address_cannot_take_all_places() -> None:
    """Beyond its share its requests are refused, while others and proxies are served; then it has places again."""
    broker = FakeBroker()
    broker.gate.clear()
    ips, bounds = ("10.0.0.1", "10.0.0.2", "10.1.0.1"), {"requests_max": 8, "address_percent": 25}
    async with asking_from(broker, *ips, **bounds, proxies="10.1.0.1") as clients:
        greedy, other, proxy = clients

        def posts(client: httpx.AsyncClient, count: int) -> list[asyncio.Task[httpx.Response]]:
            return [asyncio.create_task(client.post(MESSAGES, json={"body": "x"})) for _ in range(count)]

        taken = posts(greedy, 2)
        await until(lambda: len(broker.asked) == 2)
        refused = await greedy.post(MESSAGES, json={"body": "y"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.headers["content-type"] == "application/problem+json"
        assert "found 2 requests of 10.0.0.1" in refused.json()["detail"]
        taken += posts(other, 2) + posts(proxy, 4)
        await until(lambda: len(broker.asked) == 8)
        broker.gate.set()
        assert [(await one).status_code for one in taken] == [200] * 8
        assert (await greedy.post(MESSAGES, json={"body": "y"})).status_code == 200


async def test_one_address_cannot_take_all_waits() -> None:
    """Beyond its share its receives do not wait; those of others do, and hold no place of requests."""
    broker = FakeBroker()
    bounds = {"receives_max": 2, "requests_max": 2, "address_percent": 50}
    async with asking_from(broker, "10.0.0.1", "10.0.0.2", **bounds) as (greedy, other):
        wanted = {"topic": "t", "wait_s": 30}
        held = [asyncio.create_task(greedy.post(RECEIVE, json=wanted))]
        await until(lambda: len(broker.asked) == 1)
        assert (await greedy.post(RECEIVE, json=wanted)).json() == {"messages": [], "slow_down_ms": 1_000}
        held.append(asyncio.create_task(other.post(RECEIVE, json=wanted)))
        await until(lambda: len(broker.asked) == 3)
        assert [command.ext["pollTime"] != "0" for command in broker.asked] == [True, False, True]
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_bodies_share_a_room() -> None:
    """Where the bodies under way are too large together, the next large one is refused; small ones are not."""
    broker = FakeBroker()
    broker.gate.clear()
    large = {"body": "x" * 200_000}
    async with asking(broker, bodies_size_max=250_000, request_size_max=250_000) as client:
        first = asyncio.create_task(client.post(MESSAGES, json=large))
        while not broker.asked:
            await asyncio.sleep(0)
        refused = await client.post(MESSAGES, json=large)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "found bodies of 250000 bytes in progress, expected less" in refused.json()["detail"]
        small = asyncio.create_task(client.post(MESSAGES, json={"body": "x" * 60_000}))
        while len(broker.asked) < 2:
            await asyncio.sleep(0)
        broker.gate.set()
        assert [(await one).status_code for one in (first, small)] == [200, 200]
        assert (await client.post(MESSAGES, json=large)).status_code == 200


async def test_a_table_of_topics_is_not_read_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 topics take 200 ms: one topic is asked for alone, and the list is read in a thread."""
    readers: list[int] = []
    read = TopicConfigTable.decode

    def decode(body: bytes) -> TopicConfigTable:
        readers.append(threading.get_ident())
        return read(body)

    class TopicsBroker(FakeBroker):
        async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
            bodies = {
                RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigTable({"t": TopicConfig("t")}).encode(),
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList().encode(),
            }
            if command.code not in bodies:
                return await super().ask(command, host, timeout_ms)
            reply = RemotingCommand.reply_to(command, ResponseCode.SUCCESS)
            reply.body = bodies[RequestCode(command.code)]
            return reply

    monkeypatch.setattr(TopicConfigTable, "decode", decode)
    broker = TopicsBroker()
    async with asking(broker) as client:
        assert (await client.get("/v1/topics/t")).json()["topic"] == "t"
        assert ([one.code for one in broker.asked], readers) == ([RequestCode.GET_TOPIC_CONFIG], [])
        assert [one["topic"] for one in (await client.get("/v1/topics")).json()["topics"]] == ["t"]
    assert len(readers) == 1
    assert threading.get_ident() not in readers


async def test_a_body_that_never_ends_gives_its_room_back() -> None:
    """Also when its client leaves in the middle of it."""
    room = BodyRoom(BODY_FREE)
    parts = iter([{"type": "http.request", "body": bytes(2 * BODY_FREE), "more_body": True}])

    async def receive() -> Any:
        return next(parts, {"type": "http.disconnect"})

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            assert not room.take(1)
        raise ClientDisconnect

    async def send(message: MutableMapping[str, Any]) -> None:
        """Nothing is answered: the client left."""
        raise AssertionError(message)

    await LocalGuard(application, None, 8 * BODY_FREE, room)({"type": "http", "headers": []}, receive, send)
    assert room.take(BODY_FREE)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("register", {"name": "n" * 256}),
        ("registerConsumerGroup", {"consumerGroupNames": {f"g{number}": [] for number in range(1_001)}}),
        ("registerConsumerGroup", {"consumerGroupNames": {"g": ["t"] * 1_001}}),
        ("getConsumerGroupPolling", {"consumerGroupVersion": {f"g{number}": 0 for number in range(1_001)}}),
        ("commitOffset", {"queueOffsets": [{}] * 1_001}),
        ("publish", {"topicName": "t", "msgs": [{"body": "x"}] * 1_001}),
        ("publish", {"topicName": "t", "msgs": [{"body": [[]] * 50_001}]}),
        ("getMessageCount", {"topics": ["t"] * 1_001}),
    ],
)
async def test_requests_of_pmqs_clients_are_bounded(path: str, body: Any) -> None:
    """What would be kept, or be looked through for each change, has a bound; beyond it nothing is asked or kept."""
    broker = FakeBroker()
    async with asking(broker) as client:
        answer = await client.post(f"/api/client/consumer/{path}", json=body)
    assert (answer.status_code, answer.json()["suc"], answer.json()["code"]) == (200, False, "0")
    assert broker.asked == []


@pytest.mark.parametrize("body", [b"[" * 40_000, b'{"msgs": [{"body": ' + b"[" * 40_000])
async def test_deep_json_of_pmqs_clients_is_an_answer(body: bytes) -> None:
    """No error of the server, and no trace back in its log."""
    async with asking(FakeBroker()) as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/api/client/consumer/publish", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (200, "0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[1,2,3]", False),
        (b"[1,2,3,4]", True),
        (b'["a,b,[[[{{{,,,,"]', False),
        (rb'["\",",","",,,,,,"]', False),
        (rb'["\\",1,2,3]', True),
        (b'{"a":{"b":{"c":{"d":1}}}}', True),
        (b'["","","",""]' + b'"' * 9, True),
    ],
)
def test_values_of_json_are_counted_outside_of_texts(text: bytes, expected: bool) -> None:
    assert has_many_values(text, 3) is expected


async def test_receivers_that_wait_keep_no_sender_out() -> None:
    """However many consumers are idle; a request that waits counts again when it goes on."""
    broker = FakeBroker()
    async with asking(broker, requests_max=1) as client:
        waits = asyncio.create_task(client.post(RECEIVE, json={"topic": "t", "wait_s": 30}))
        await broker.held.wait()
        assert (await client.post(MESSAGES, json={"body": "x"})).status_code == 200
        waits.cancel()
        await asyncio.wait([waits])
        broker.gate.clear()
        broker.asked.clear()
        first = asyncio.create_task(client.post(MESSAGES, json={"body": "x"}))
        while not broker.asked:
            await asyncio.sleep(0)
        assert (await client.post(MESSAGES, json={"body": "y"})).status_code == 503
        broker.gate.set()
        assert (await first).status_code == 200


async def test_a_busy_door_asks_to_slow_down() -> None:
    """The messages are taken; the answer has the pause."""
    async with asking(FakeBroker(), busy_from=1) as client:
        assert (await client.post(MESSAGES, json={"body": "x"})).json()["slow_down_ms"] == 100
    async with asking(FakeBroker(), busy_from=2) as client:
        assert (await client.post(MESSAGES, json={"body": "x"})).json()["slow_down_ms"] == 0


async def test_receives_that_wait_are_bounded() -> None:
    """Above the bound a receive does not wait, and its answer has a pause."""
    broker = FakeBroker()
    async with asking(broker, receives_max=0) as client:
        answer = await client.post(RECEIVE, json={"topic": "t", "wait_s": 30})
        assert answer.json() == {"messages": [], "slow_down_ms": 1_000}
        answer = await client.post(RECEIVE, json={"topic": "t"})
        assert answer.json() == {"messages": [], "slow_down_ms": 0}
    assert [command.ext["pollTime"] for command in broker.asked] == ["0", "0"]


async def test_a_client_that_leaves_takes_no_message() -> None:
    """When the connection closes, the pop is taken back."""
    broker = FakeBroker()
    app = make_door(broker, _ids(), "broker-a", DoorConfig(hosts=None), asyncio.Event())
    parts = iter([{"type": "http.request", "body": json.dumps({"topic": "t", "wait_s": 30}).encode()}])

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        if part is None:
            await broker.held.wait()
            return {"type": "http.disconnect"}
        return part

    async def send(message: MutableMapping[str, Any]) -> None:
        """It is not read."""

    scope = {
        "type": "http",
        "method": "POST",
        "path": RECEIVE,
        "raw_path": RECEIVE.encode(),
        "query_string": b"",
        "headers": [(b"host", b"door"), (b"content-type", b"application/json")],
        "client": ("10.0.0.9", 1),
    }
    await app(scope, receive, send)
    assert broker.cancelled_count == 1


async def test_a_stream_ends_with_the_server() -> None:
    """It says so in a last event, and takes no further message."""
    broker, stopping = FakeBroker(), asyncio.Event()
    app = make_door(broker, _ids(), "broker-a", DoorConfig(hosts=None), stopping)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door", timeout=60) as client:
        asked = asyncio.create_task(client.get("/v1/groups/g/events?topic=t"))
        await broker.held.wait()
        stopping.set()
        text = (await asked).text
    assert text.startswith(": no message\n\nevent: problem\ndata: ")
    assert "the server stops" in text
    assert broker.cancelled_count == 1


async def test_a_request_under_way_is_not_sent_again() -> None:
    """A second request with its Idempotency-Key is a conflict until the first one has ended."""
    broker = FakeBroker()
    broker.gate.clear()
    key = {"Idempotency-Key": "k"}
    async with asking(broker) as client:
        first = asyncio.create_task(client.post(MESSAGES, json={"body": "x"}, headers=key))
        while len(broker.asked) < 2:
            await asyncio.sleep(0)
        second = await client.post(MESSAGES, json={"body": "x"}, headers=key)
        assert (second.status_code, "in progress" in second.json()["detail"]) == (409, True)
        broker.gate.set()
        assert (await first).status_code == 200


async def test_an_unanswered_send_is_uncertain() -> None:
    """The problem says that it may have been done."""
    broker = FakeBroker()
    broker.hangs = True
    async with asking(broker) as client:
        answer = await client.post(MESSAGES, json={"body": "x"})
    assert (answer.status_code, "may have been done" in answer.json()["detail"]) == (504, True)
    assert not any(isinstance(record, Pub) for record in broker.traced())


async def test_sends_are_traced() -> None:
    """The stop sends what is gathered; a batch is one record with all ids."""
    broker = FakeBroker()
    async with asking(broker) as client:
        await client.post(MESSAGES, json=[{"body": "x", "key": "a"}, {"body": "y", "key": "a b", "tag": "t"}])
    head, pub = broker.traced()
    assert (type(head), head.sequence, head.dropped_total) == (TraceBatch, 1, 0)
    assert (pub.topic, pub.msg_id, pub.keys, pub.store_host) == ("t", "ID0,ID1", "a b", "10.0.0.1:10911")
    assert (pub.region_id, pub.is_success, pub.group_name) == ("R", True, "HTTP_PRODUCER")


async def test_lost_trace_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that the broker refuses are reported by the next trace message."""
    monkeypatch.setattr("mqtrail.gateway.tracer.LINGER_S", 0)
    broker = FakeBroker()
    broker.refuses_trace = True
    async with asking(broker) as client:
        await client.post(MESSAGES, json={"body": "x"})
        while not broker.traced():
            await asyncio.sleep(0)
        broker.refuses_trace = False
        broker.asked.clear()
        await client.post(MESSAGES, json={"body": "y"})
    head, loss, pub = broker.traced()
    assert (head.sequence, head.dropped_total) == (2, 1)
    assert (type(loss), loss.count, pub.msg_id) == (TraceLoss, 1, "ID1")


async def test_the_trace_waits_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is lost."""
    monkeypatch.setattr("mqtrail.gateway.tracer.LINGER_S", 0)
    broker = FakeBroker()
    broker.gone = "gone"
    async with asking(broker) as client:
        await client.post(MESSAGES, json={"body": "x"})
        await broker.looked.wait()
        assert (await client.get("/healthz")).status_code == 503
        broker.gone = None
        assert (await client.get("/healthz")).text == "ok\n"
    head, pub = broker.traced()
    assert (head.dropped_total, pub.msg_id) == (0, "ID0")


@pytest.mark.parametrize(
    ("scheme", "headers", "expected"),
    [
        ("http", [(b"host", b"door:8080")], "http://door:8080"),
        ("https", [(b"host", b"door:8443")], "https://door:8443"),
        ("http", [], "http://10.0.0.1:8080"),  # HTTP/1.0
    ],
)
async def test_pmqs_client_gets_the_address_that_it_asked(
    scheme: str, headers: list[tuple[bytes, bytes]], expected: str
) -> None:
    """It replaces its own list of addresses by the answer: with http, it would not find a door that speaks HTTPS."""
    app = make_door(FakeBroker(), _ids(), "broker-a", DoorConfig(hosts=None), asyncio.Event())
    for path, name in (("getMetaGroup", "brokerIpG1"), ("getMeta", "brokerIp")):
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: MutableMapping[str, Any], parts: list[bytes] = parts) -> None:
            parts.append(message.get("body", b""))

        full = f"/api/server/meta/{path}"
        scope = {
            "type": "http",
            "method": "POST",
            "scheme": scheme,
            "path": full,
            "raw_path": full.encode(),
            "query_string": b"",
            "headers": headers,
            "client": ("10.0.0.9", 1),
            "server": ("10.0.0.1", 8080),
        }
        await app(scope, receive, send)
        assert json.loads(b"".join(parts))[name] == [expected]


async def test_a_consumer_of_pmq_that_leaves_while_its_group_registers_gets_no_queues() -> None:
    """It would own them for ever: nobody waits for a heartbeat of a consumer that is not known."""
    consumer = "/api/client/consumer"
    asked, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(FakeBroker):
        async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
            if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
                asked.set()
                await goes_on.wait()
            return await super().ask(command, host, timeout_ms)

    broker = Slow()
    async with asking(broker) as client:

        async def ask(path: str, **body: Any) -> Any:
            return (await client.post(f"{consumer}/{path}", json=body)).json()

        groups = {"g": ["t"]}
        leaves = (await ask("register", name="leaves"))["id"]
        entering = asyncio.create_task(ask("registerConsumerGroup", consumerId=leaves, consumerGroupNames=groups))
        await asked.wait()
        await ask("deRegister", id=leaves)
        goes_on.set()
        assert (await entering)["suc"] is False
        stays = (await ask("register", name="stays"))["id"]
        assert (await ask("registerConsumerGroup", consumerId=stays, consumerGroupNames=groups))["suc"] is True
        polled = await ask("getConsumerGroupPolling", consumerId=stays, consumerGroupVersion={"g": 0})
    topics = [one["topicName"] for one in polled["consumerGroups"]["g"]["queues"].values()]
    assert topics == ["t"] * TopicConfig("t").read_queue_nums + ["g_t_fail"] * 2


async def test_an_operator_moves_an_offset_while_pmqs_client_commits() -> None:
    """The commit looks at the offset at last, so it is void."""
    consumer, offsets = "/api/client/consumer", [0]

    class Moved(FakeBroker):
        async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
            reply = RemotingCommand.reply_to(command, ResponseCode.SUCCESS, None, {"offset": str(offsets[-1])})
            match command.code:
                case RequestCode.QUERY_CONSUMER_OFFSET:
                    return reply
                case RequestCode.GET_MAX_OFFSET if len(offsets) == 2:
                    offsets.append(3)  # by an operator
                case RequestCode.UPDATE_CONSUMER_OFFSET:
                    offsets.append(int(command.ext["commitOffset"]))
            return await super().ask(command, host, timeout_ms)

    async with asking(Moved()) as client:

        async def ask(path: str, **body: Any) -> Any:
            return (await client.post(f"{consumer}/{path}", json=body)).json()

        number = (await ask("register", name="c"))["id"]
        await ask("registerConsumerGroup", consumerId=number, consumerGroupNames={"g": ["t"]})
        polled = await ask("getConsumerGroupPolling", consumerId=number, consumerGroupVersion={"g": 0})
        queue = next(iter(polled["consumerGroups"]["g"]["queues"].values()))
        item = {name: queue[name] for name in ("queueOffsetId", "offsetVersion")}
        for offset in (5, 6, 7):
            await ask("commitOffset", queueOffsets=[item | {"offset": offset}])
    assert offsets == [0, 5, 3]
