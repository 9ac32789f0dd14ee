"""`mqtrail.pmq` with a real door, and with answers that a door gives in trouble."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.pmq import (
    Broadcast,
    Message,
    PmqConfig,
    PmqError,
    Published,
    Publisher,
    ReceivedMessage,
    RequestFailed,
    RequestRefused,
    Subscriber,
    SyncPublisher,
    SyncSubscriber,
)
from mqtrail.pmq.door import DoorClient
from mqtrail.testing import embedded

from ..waiting import until

UNTIL_S = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a door of a broker on SQLite."""
    folder: Path = tmp_path_factory.mktemp("door")
    with embedded(folder / "data", store_url=f"sqlite:///{folder}/m.db", http=True) as running:
        yield running.http_url


async def take(subscriber: Subscriber, count: int) -> list[ReceivedMessage]:
    """Receive and acknowledge that many messages."""
    found = []
    async with asyncio.timeout(UNTIL_S):
        async for message in subscriber:
            async with message.process():
                found.append(message)
            if len(found) == count:
                break
    return found


async def test_a_message_arrives_as_it_was_published(url: str) -> None:
    """Every field of it, text and bytes; a list goes in requests of 32."""
    text = Message("all", "袜子".encode(), tags="NEW", keys=["k1", "k2"], properties={"shop": "north"})
    async with Publisher(url) as publisher, Subscriber(url, "g", "all", concurrency=40) as subscriber:
        first = await publisher.publish(text)
        places = await publisher.publish([Message("all", bytes([255, number])) for number in range(33)])
        assert len({(one.queue_id, one.queue_offset) for one in [first, *places]}) == 34
        found = await take(subscriber, 34)
    by_id = {message.msg_id: message for message in found}
    got = by_id[first.msg_id]
    assert (got.topic, got.body, got.tags, got.keys, got.properties) == (
        "all",
        text.body,
        "NEW",
        "k1 k2",
        {"shop": "north"},
    )
    assert (got.queue_id, got.queue_offset, got.attempt) == (first.queue_id, first.queue_offset, 1)
    assert [by_id[one.msg_id].body for one in places] == [bytes([255, number]) for number in range(33)]


@pytest.mark.slow
async def test_a_list_of_large_messages(url: str) -> None:
    """It goes in requests that the door takes, however large the whole is; each message may have 4 MiB."""
    messages = [Message("large", bytes([number]) * 600_000) for number in range(10)]
    messages.insert(1, Message("large", b"\xff" * 4_000_000))
    async with Publisher(url) as publisher:
        first = await publisher.publish(messages, idempotency_key="large")
        assert len({(one.queue_id, one.queue_offset) for one in first}) == 11
        assert await publisher.publish(messages, idempotency_key="large") == first


async def test_names_that_a_path_would_change(url: str) -> None:
    """RocketMQ allows percent signs; %41 stays what it is."""
    async with Publisher(url) as publisher, Subscriber(url, "g%41", "t%41") as subscriber:
        place = await publisher.publish(Message("t%41", b"x"))
        (found,) = await take(subscriber, 1)
    assert (found.msg_id, found.topic) == (place.msg_id, "t%41")


async def test_a_key_of_the_application_stores_once(url: str) -> None:
    """Also in another call, as after a crash of the publisher."""
    async with Publisher(url) as publisher:
        messages = [Message("once", b"%d" % number) for number in range(40)]
        first = await publisher.publish(messages, idempotency_key="order-1")
        assert await publisher.publish(messages, idempotency_key="order-1") == first
        with pytest.raises(RequestRefused, match="on other messages"):
            await publisher.publish(Message("once", b"another"), idempotency_key="order-1")


async def test_each_subscriber_of_a_broadcast_group_gets_each_message(url: str) -> None:
    """From its first receive on; a member with a name continues where it was, another one ends when it closes."""
    north, other = Broadcast("all-of-us", "north"), Broadcast("all-of-us")
    async with Publisher(url) as publisher, Subscriber(url, other, "news") as passing:
        await publisher.publish(Message("news", b"before"))
        async with Subscriber(url, north, "news", invisible_s=5) as first:  # a receive of it may still take "2"
            receiving = [asyncio.create_task(take(one, 1)) for one in (first, passing)]
            await until(lambda: all(one._joined for one in (first, passing)))
            await publisher.publish(Message("news", b"1"))
            async with asyncio.timeout(UNTIL_S):
                found = await asyncio.gather(*receiving)
            assert [message.body for some in found for message in some] == [b"1", b"1"]
        await publisher.publish(Message("news", b"2"))
        async with Subscriber(url, north, "news") as second:
            assert [message.body for message in await take(second, 1)] == [b"2"]


async def test_a_member_that_ended_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause that was longer than its lease: with all topics, before it receives from any."""
    asked: list[tuple[str, str, Any]] = []
    ended = iter([True, False])

    async def ask(door: object, path: str, body: Any, *, method: str = "POST", hold_s: float = 0) -> Any:
        asked.append((method, path, body))
        if method == "PUT":
            return {"group": f"own{sum(one[0] == 'PUT' for one in asked)}"}
        if next(ended, None):
            raise RequestRefused(404, "found no member")
        await asyncio.sleep(0)
        return {"messages": [], "slow_down_ms": 0}

    monkeypatch.setattr("mqtrail.pmq.subscriber.PAUSE_S", 0)
    monkeypatch.setattr(DoorClient, "ask", ask)
    subscriber = Subscriber("http://door:8080", Broadcast("g", "m", from_first=True), "t")
    receiving = asyncio.create_task(subscriber.receive())
    async with asyncio.timeout(UNTIL_S):
        while len(asked) < 4:
            await asyncio.sleep(0)
    receiving.cancel()
    await subscriber.close()
    join = ("PUT", "/groups/g/members/m", {"topics": ["t"], "lease_s": 60.0, "from_first": True})
    assert asked[0] == asked[2] == join
    assert [path for _, path, _ in asked[1:4:2]] == ["/groups/own1/receive", "/groups/own2/receive"]
    assert "DELETE" not in [method for method, _, _ in asked]


async def test_handlers_run_until_the_subscriber_closes(url: str) -> None:
    """Coroutines on the loop, plain functions in threads."""
    seen: dict[str, threading.Thread] = {}
    subscriber = Subscriber(url, "handlers")

    @subscriber.handler("slow")
    async def slow(message: ReceivedMessage) -> None:
        seen[message.topic] = threading.current_thread()

    @subscriber.handler("plain", "YES")
    def plain(message: ReceivedMessage) -> None:
        assert message.tags == "YES"
        seen[message.topic] = threading.current_thread()

    async with Publisher(url) as publisher, subscriber:
        running = asyncio.create_task(subscriber.run())
        await publisher.publish(Message("plain", b"not wanted", tags="NO"))
        for topic in ("slow", "plain"):
            await publisher.publish(Message(topic, b"x", tags="YES"))
        async with asyncio.timeout(UNTIL_S):
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        await subscriber.close()
        await running
    assert seen["slow"] is threading.current_thread() is not seen["plain"]
    assert await subscriber.receive() is None


async def _break(message: ReceivedMessage) -> None:
    async with message.process(reraise=True):
        await message.retry(1)
        raise ValueError("broken")


@pytest.mark.slow
async def test_what_is_not_done_is_delivered_again(url: str) -> None:
    """After a retry, after an exception in the block, and what a closed subscriber had not begun."""
    async with Publisher(url) as publisher:
        await publisher.publish([Message("again", b"%d" % number) for number in range(3)])
        async with Subscriber(url, "again", "again") as subscriber:
            first = await subscriber.receive(UNTIL_S)
            assert first is not None
            await first.retry(1, "not now")
            with pytest.raises(PmqError, match="already settled"):
                await first.ack()
            second = await subscriber.receive(UNTIL_S)
            assert second is not None
            with pytest.raises(ValueError, match="broken"):
                await _break(second)
        async with Subscriber(url, "again", "again") as subscriber:
            found = await take(subscriber, 3)
    assert {(message.body, message.attempt) for message in found} >= {(first.body, 2), (second.body, 2)}


def test_without_a_loop(url: str) -> None:
    """The synchronous twins, from a thread of their own."""
    with SyncPublisher(url) as publisher, SyncSubscriber(url, "sync", "sync") as subscriber:
        place = publisher.publish(Message("sync", b"x"))
        assert isinstance(place, Published)
        for message in subscriber:
            with message.process() as got:
                assert (got.msg_id, message.body) == (place.msg_id, b"x")
            break
    handled = threading.Event()
    runner = SyncSubscriber(url, "sync-run")

    @runner.handler("sync")
    def handle(message: ReceivedMessage) -> None:
        handled.set()

    thread = threading.Thread(target=runner.run)
    thread.start()
    assert handled.wait(UNTIL_S)
    runner.close()
    thread.join(UNTIL_S)
    assert not thread.is_alive()


async def test_what_the_door_refuses(url: str) -> None:
    """A subscriber raises it where it is used; a wrong address is refused before any request."""
    async with Subscriber(url, "g", "all", invisible_s=0.5) as subscriber:
        with pytest.raises(RequestRefused) as caught:
            await subscriber.receive(UNTIL_S)
    assert caught.value.status == 422
    for wrong in ("127.0.0.1:8080", "http://host/other", "ftp://host"):
        with pytest.raises(PmqError, match="expected http://host:port"):
            Publisher(wrong)
    with pytest.raises(PmqError, match="a delay or a flag"):
        await Publisher(url).publish(Message("t", b"x", delay_level=3))
    with pytest.raises(PmqError, match="several topics"):
        await Publisher(url).publish([Message("a", b"x"), Message("b", b"x")])
    with pytest.raises(PmqError, match="found no handler"):
        await Subscriber(url, "g", "t").run()


def answer(status: int, body: object, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


ITEM = {"topic": "t", "body": "x", "id": "ID", "queue": 0, "offset": 0, "attempt": 1, "born_ms": 0, "stored_ms": 0}
STORED = {"messages": [{"id": "ID", "queue": 1, "offset": 2}], "slow_down_ms": 0}
AWAY = {"detail": "the database does not answer"}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([httpx.ConnectError("refused"), answer(503, AWAY), httpx.ReadError("cut"), answer(200, STORED)], "ID"),
        ([answer(409, AWAY), answer(429, AWAY), answer(200, STORED)], "ID"),
        ([answer(422, {"detail": "wrong"})], "wrong"),
        ([httpx.ConnectError("refused")] * 9, "nothing was done"),
        ([httpx.ReadTimeout("slow")] * 9, "may have been done"),
        ([answer(502, {})] * 9, "found status 502"),
    ],
)
async def test_repeats(answers: Sequence[Any], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same key, until the time is over; the error says what is known."""
    monkeypatch.setattr("mqtrail.pmq.door.PAUSE_S", 0.001)
    monkeypatch.setattr("mqtrail.pmq.door.PAUSE_MAX_S", 0.002)
    keys = set()
    given = iter(answers)

    async def send(door: object, path: str, body: object, headers: Any, *further: object) -> httpx.Response:
        keys.add(headers["Idempotency-Key"])
        found = next(given, answers[-1])
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, httpx.Response)
        return found

    monkeypatch.setattr(DoorClient, "_send", send)
    is_endless = len(answers) == 9
    publisher = Publisher("http://door:8080", config=PmqConfig(timeout_s=0.05 if is_endless else UNTIL_S))
    try:
        found = (await publisher.publish(Message("t", b"x"))).msg_id
    except (RequestFailed, RequestRefused) as error:
        found = str(error)
    assert expected in found
    assert len(keys) == 1


async def test_a_message_that_is_just_extended_is_acknowledged_by_its_new_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old receipt is void: an acknowledgement with it would do nothing, and the message would come again."""
    message_of_door = {**ITEM, "receipt": "R0"}
    extending, goes_on = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    async def ask(door: object, path: str, body: Any, **further: Any) -> Any:
        act = path.rpartition("/")[2]
        if act == "receive":
            return {"messages": [message_of_door], "slow_down_ms": 0}
        if act == "extend":
            extending.set()
            await goes_on.wait()
        asked.append(f"{act} {body['receipts'][0]}")
        return {"results": [{"receipt": "R1"}]}

    monkeypatch.setattr(DoorClient, "ask", ask)
    async with Subscriber("http://door", "g", "t", concurrency=1, invisible_s=0.04) as subscriber:
        message = await subscriber.receive(UNTIL_S)
        assert message is not None
        async with asyncio.timeout(UNTIL_S):
            await extending.wait()
        settling = asyncio.create_task(message.ack())
        await asyncio.sleep(0)
        goes_on.set()
        await settling
        assert asked == ["extend R0", "ack R1"]
        await message.extend(1)  # it is settled: nothing is asked
        assert asked == ["extend R0", "ack R1"]


async def test_long_work_is_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is settled, or was held for too long; then others are received."""
    asked: list[str] = []

    async def ask(door: object, path: str, body: Any, **further: Any) -> Any:
        act = path.rpartition("/")[2]
        if act == "receive":
            asked.append(act)
            return {"messages": [{**ITEM, "receipt": "R0"}], "slow_down_ms": 0}
        asked.append(f"{act} {body['receipts'][0]}")
        return {"results": [{"receipt": f"R{len(asked)}"}]}

    monkeypatch.setattr(DoorClient, "ask", ask)
    config = PmqConfig(hold_max_s=0.3)
    async with Subscriber("http://door", "g", "t", concurrency=1, invisible_s=0.04, config=config) as subscriber:
        message = await subscriber.receive(UNTIL_S)
        assert message is not None
        async with asyncio.timeout(UNTIL_S):
            while asked.count("receive") < 2:  # given up: there is room for the next one
                await asyncio.sleep(0.01)
    assert asked[:3] == ["receive", "extend R0", "extend R2"]
