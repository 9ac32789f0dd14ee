"""Clients of the HTTP door in a process of their own, on raw sockets: a full HTTP client would take as much time as the
door, with which it shares two cores.

    published(url, topic="orders", connections=64, count=1, warm_s=0.3, seconds=1.2) -> {"perS": …, "errors": 0, …}

`PmqMember` acts like pmq's client 5.5, as far as its reference describes it.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

from mqtrail.net import loop_factory
from mqtrail.pmq import Publisher, ReceivedMessage, Subscriber
from mqtrail.wire import Message

Json = dict[str, Any]
BODY: Final = "x" * 500
START_S: Final = 60.0
LATE_S: Final = 30.0  # for the last message to arrive
PULL_STEP_S, PULL_LEAST_S, PULL_MAX_S = 0.15, 0.05, 5.0  # pauses of pmq's client between pulls without messages
EQUAL_POLLS: Final = 4  # after which pmq's client starts
COMMIT_S: Final = 0.5
BEAT_S: Final = 10.0
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def published(url: str, **order: Any) -> Json:
    """Publish requests of count messages on so many connections; return messages a second, and the ms of a request."""
    return _process("publish", url=url, **order)


def consumed(url: str, **order: Any) -> Json:
    """Receive and acknowledge by so many consumers of a group; return messages a second."""
    return _process("consume", url=url, **order)


def latency(url: str, **order: Any) -> Json:
    """Publish at a steady rate; return ms from publish to handler. way: events, wake-ups or subscriber."""
    return _process("latency", url=url, **order)


def join_delay(url: str, **order: Any) -> Json:
    """Publish at a steady rate while a second member joins, then leaves; return the longest delays of messages since.
    way: subscriber or pmq."""
    return _process("join", url=url, **order)


@contextmanager
def idle_members(url: str, **order: Any) -> Iterator[None]:
    """Let members of a group wait for messages, from when all of them do. way: receive or pmq."""
    command = [sys.executable, "-m", "bench.door_load", json.dumps({"do": "idle", "url": url, **order})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise RuntimeError(f"the idle consumers ended with {process.wait()}; their log is above")
            yield
        finally:
            process.kill()


def _process(do: str, **order: Any) -> Json:
    command = [sys.executable, "-m", "bench.door_load", json.dumps({"do": do, **order})]
    timeout_s = 3 * (order["warm_s"] + order["seconds"]) + START_S + LATE_S
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise RuntimeError(f"the clients of the door failed at {do}: {done.stderr.strip()[-2000:]}")
    found: Json = json.loads(done.stdout.splitlines()[-1])
    return found


# HTTP.


class Connection(asyncio.Protocol):
    """A kept connection with one request at a time. on_data: takes what comes instead, of an answer without an end."""

    def __init__(self, on_data: Callable[[bytes], None] | None = None) -> None:
        self._on_data = on_data
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the door closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._on_data is not None:
            self._on_data(data)
            return
        self._data += data
        head_end = self._data.find(b"\r\n\r\n")
        found = _LENGTH.search(self._data, 0, head_end) if head_end >= 0 else None
        if found is not None and len(self._data) >= head_end + 4 + int(found[1]):
            assert self._answer is not None
            if not self._answer.done():
                self._answer.set_result(self._data)
            self._data = b""

    async def ask(self, request: bytes) -> bytes:
        """Send a request; return the answer with its head."""
        assert self.transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


class Door:
    """The door at a URL. A request takes a free connection, or a new one."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self._free: list[Connection] = []

    def request(self, path: str, body: object | None, method: str = "POST") -> bytes:
        """Return the bytes of a request."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def connect(self, on_data: Callable[[bytes], None] | None = None) -> Connection:
        """Return a new connection."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: Connection(on_data), self.host, self.port)
        return made

    async def ask(self, path: str, body: object | None, method: str = "POST") -> Json:
        """Return the JSON of an answer. RuntimeError: its status is not 200."""
        connection = self._free.pop() if self._free else await self.connect()
        answer = await connection.ask(self.request(path, body, method))
        self._free.append(connection)
        return answer_of(answer)


def answer_of(answer: bytes) -> Json:
    """Return the JSON of an answer. RuntimeError: its status is not 200."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the door answered {answer[:500]!r}")
    found: Json = json.loads(body)
    return found


# Load.


async def _publish(order: Json) -> Json:
    door = Door(order["url"])
    item, count = {"body": BODY}, order["count"]
    request = door.request(f"/v1/topics/{order['topic']}/messages", item if count == 1 else [item] * count)
    connections = [await door.connect() for _ in range(order["connections"])]
    begin_s = time.perf_counter() + order["warm_s"]
    end_s = begin_s + order["seconds"]
    took_ms, errors = list[float](), 0

    async def work(connection: Connection) -> None:
        nonlocal errors
        while (began_s := time.perf_counter()) < end_s:
            is_done = (await connection.ask(request)).startswith(b"HTTP/1.1 200")
            ended_s = time.perf_counter()
            if begin_s <= ended_s < end_s:
                errors += not is_done
                took_ms.append((ended_s - began_s) * 1000)

    await asyncio.gather(*map(work, connections))
    per_s = (len(took_ms) - errors) * count / order["seconds"]
    times = _percentiles(took_ms) if len(took_ms) > 1 else {"p50Ms": None, "p99Ms": None}
    return {"perS": per_s, "errors": errors, **times}


async def _consume(order: Json) -> Json:
    door = Door(order["url"])
    path = f"/v1/groups/{order['group']}"
    receive = door.request(f"{path}/receive", {"topic": order["topic"], "max": 32, "wait_s": 1})
    begin_s = time.perf_counter() + order["warm_s"]
    end_s = begin_s + order["seconds"]
    count = 0

    async def work() -> None:
        nonlocal count
        connection = await door.connect()
        while time.perf_counter() < end_s:
            messages = answer_of(await connection.ask(receive))["messages"]
            if not messages:
                continue
            receipts = [one["receipt"] for one in messages]
            results = answer_of(await connection.ask(door.request(f"{path}/ack", {"receipts": receipts})))["results"]
            if begin_s <= time.perf_counter() < end_s:
                count += sum("error" not in one for one in results)

    await asyncio.gather(*(work() for _ in range(order["consumers"])))
    return {"perS": count / order["seconds"]}


async def _idle(order: Json) -> Json:
    """Wait until all members wait, say so, and stay."""
    door, count = Door(order["url"]), order["count"]
    if order["way"] == "pmq":
        members = [PmqMember(order["url"], f"idle-{n}", order["group"], order["topic"], print) for n in range(count)]
        for member in members:
            await member.start()
        async with asyncio.timeout(START_S):
            while not all(member.is_started for member in members):
                await asyncio.sleep(0.1)
        print("ready", flush=True)
        await asyncio.Event().wait()
    path, wanted = f"/v1/groups/{order['group']}/receive", {"topic": order["topic"], "wait_s": 20}

    async def wait() -> None:
        while True:
            await door.ask(path, wanted)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(wait())
        await asyncio.sleep(1)
        print("ready", flush=True)
    return {}


# From publish to handler.


@dataclass
class Flow:
    """Messages on their way. sent_s, handled_s: by the number that is their body, in seconds of time.perf_counter."""

    sent_s: dict[str, float] = field(default_factory=dict)
    handled_s: dict[str, float] = field(default_factory=dict)

    def handle(self, body: str) -> None:
        """Note the first delivery of a message."""
        self.handled_s.setdefault(body, time.perf_counter())

    def delays_s(self, from_s: float, until_s: float) -> list[float]:
        """Return the delays of messages that were published in a time."""
        chosen = [(body, sent_s) for body, sent_s in self.sent_s.items() if from_s <= sent_s < until_s]
        return [self.handled_s[body] - sent_s for body, sent_s in chosen]

    async def publish(self, send: Callable[[str], Awaitable[object]], per_s: float, seconds: float) -> None:
        """Publish messages, each at its time, whether or not earlier ones are answered."""
        async with asyncio.TaskGroup() as tasks:
            begin_s = time.perf_counter()
            for number in range(int(per_s * seconds)):
                at_s = begin_s + number / per_s
                await asyncio.sleep(max(0.0, at_s - time.perf_counter()))
                body = str(len(self.sent_s))
                self.sent_s[body] = at_s  # the intended time: a late client makes no message faster
                tasks.create_task(_awaited(send(body)))

    async def all_handled(self) -> None:
        """Wait until each message was delivered. TimeoutError."""
        async with asyncio.timeout(LATE_S):
            while len(self.handled_s) < len(self.sent_s):
                await asyncio.sleep(0.01)


async def _awaited(sent: Awaitable[object]) -> None:
    await sent


async def _latency(order: Json) -> Json:
    flow = Flow()
    async with _sender(order) as send, _consumer(order, flow, "first"):
        await send("first")
        async with asyncio.timeout(LATE_S):
            while "first" not in flow.handled_s:
                await asyncio.sleep(0.01)
        await flow.publish(send, order["per_s"], order["warm_s"])
        begin_s = time.perf_counter()
        await flow.publish(send, order["per_s"], order["seconds"])
        end_s = time.perf_counter()
        del flow.handled_s["first"]
        await flow.all_handled()
    return _percentiles([delay_s * 1000 for delay_s in flow.delays_s(begin_s, end_s)])


async def _join(order: Json) -> Json:
    """Measure after the join, and after the leave, of a second member."""
    flow, seconds = Flow(), order["seconds"]
    async with _sender(order) as send, _consumer(order, flow, "one"):
        await flow.publish(send, order["per_s"], order["warm_s"])
        await flow.all_handled()
        async with AsyncExitStack() as second:
            publishing = asyncio.create_task(flow.publish(send, order["per_s"], 2 * seconds))
            join_s = time.perf_counter()
            await second.enter_async_context(_consumer(order, flow, "two"))
            await asyncio.sleep(max(0.0, join_s + seconds - time.perf_counter()))
            leave_s = time.perf_counter()
        await publishing
        await flow.all_handled()
    joined = flow.delays_s(join_s - 0.5, leave_s)
    left = flow.delays_s(leave_s, time.perf_counter())
    return {"joinS": max(joined), "leaveS": max(left)}


@asynccontextmanager
async def _sender(order: Json) -> Any:
    """Yield a function that publishes a text: our client's for our subscriber, else a bare request."""
    topic, door = order["topic"], Door(order["url"])
    path = f"/v1/topics/{topic}/messages"
    if order["way"] != "subscriber":
        yield lambda body: door.ask(path, {"body": body})
        return
    async with Publisher(order["url"]) as publisher:
        yield lambda body: publisher.publish(Message(topic, body.encode()))


@asynccontextmanager
async def _consumer(order: Json, flow: Flow, name: str) -> Any:
    """Consume in one of the ways inside the block."""
    url, group, topic = order["url"], order["group"], order["topic"]
    async with AsyncExitStack() as stack:
        match order["way"]:
            case "subscriber":
                subscriber = await stack.enter_async_context(Subscriber(url, group, topic))

                @subscriber.handler(topic)
                async def handle(message: ReceivedMessage) -> None:
                    flow.handle(message.body.decode())

                running = asyncio.create_task(subscriber.run())
                stack.callback(running.cancel)
            case "events":
                await stack.enter_async_context(Events(url, group, topic, flow.handle))
            case _:
                member = PmqMember(url, name, group, topic, flow.handle, listens=order["way"] == "wake-ups")
                await stack.enter_async_context(member)
                if name != "two":
                    async with asyncio.timeout(START_S):
                        while not member.is_started:
                            await asyncio.sleep(0.01)
        yield


class Events:
    """Receives Server-Sent Events, hands each to handle, then acknowledges it."""

    def __init__(self, url: str, group: str, topic: str, handle: Callable[[str], None]) -> None:
        self._door = Door(url)
        self._group, self._topic, self._handle = group, topic, handle
        self._data = b""
        self._acks = set[asyncio.Task[Json]]()
        self._connection: Connection | None = None

    async def __aenter__(self) -> None:
        self._connection = await self._door.connect(self._take)
        path = f"/v1/groups/{self._group}/events?topic={self._topic}"
        assert self._connection.transport is not None
        self._connection.transport.write(self._door.request(path, None, "GET"))

    async def __aexit__(self, *_: object) -> None:
        assert self._connection is not None
        assert self._connection.transport is not None
        self._connection.transport.close()
        await asyncio.gather(*self._acks)

    def _take(self, data: bytes) -> None:
        """Chunks and events: only lines of data are of interest; the door writes each event as one chunk."""
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            message = json.loads(line[6:])
            self._handle(message["body"])
            ack = self._door.ask(f"/v1/groups/{self._group}/ack", {"receipts": [message["receipt"]]})
            task = asyncio.create_task(ack)
            self._acks.add(task)
            task.add_done_callback(self._acks.discard)


@dataclass
class OwnedQueue:
    """A queue that a member owns. offset: the id of the last message that it has handled."""

    offset_id: int
    topic: str
    version: int
    offset: int
    committed: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class PmqMember:
    """A consumer that speaks pmq's interface as its client 5.5 does: it pulls with growing pauses, commits twice a
    second, stops when its group changes, hands over, and starts after four equal polls.

    listens: it takes wake-ups. is_started: it consumes.
    """

    def __init__(
        self, url: str, name: str, group: str, topic: str, handle: Callable[[str], None], *, listens: bool = False
    ) -> None:
        self._door = Door(url)
        self._name, self._group, self._topic, self._handle = name, group, topic, handle
        self._listens = listens
        self._server: asyncio.Server | None = None
        self._id = 0
        self._version = self._rebalance_version = self._equal_polls = 0
        self._queues: dict[int, OwnedQueue] = {}
        self._pulls: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.is_started = False

    async def __aenter__(self) -> None:
        await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register, and begin to poll."""
        port = "0"
        if self._listens:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = str(self._server.sockets[0].getsockname()[1])
        name = "|".join(["127.0.0.1", self._name, str(time.time_ns() % 10_000), port])
        self._id = (await self._ask("register", {"name": name}))["id"]
        groups = {self._group: [self._topic]}
        asked = {"consumerId": self._id, "consumerName": name, "consumerGroupNames": groups}
        await self._ask("registerConsumerGroup", asked)
        self._tasks = [asyncio.create_task(one) for one in (self._poll(), self._commit_often(), self._beat())]

    async def stop(self) -> None:
        """Hand over, and leave."""
        for task in (*self._tasks, *self._pulls):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._pulls, return_exceptions=True)
        await self._commit(flag=1)
        await self._ask("deRegister", {"id": self._id})
        if self._server is not None:
            self._server.close()

    async def _ask(self, path: str, body: Mapping[str, object]) -> Json:
        answer = await self._door.ask(f"/api/client/consumer/{path}", body)
        if not answer["suc"]:
            raise RuntimeError(f"{path} was refused: {answer}")
        return answer

    async def _poll(self) -> None:
        while True:
            asked = {"consumerId": self._id, "consumerGroupVersion": {self._group: self._version}}
            answer = await self._ask("getConsumerGroupPolling", asked)
            found = answer.get("consumerGroups", {}).get(self._group)
            if found is not None:
                await self._take(found)
            self._equal_polls += 1
            if self._equal_polls >= EQUAL_POLLS and not self.is_started:
                self.is_started = True
                self._pulls = [asyncio.create_task(self._pull(number)) for number in self._queues]

    async def _take(self, found: Json) -> None:
        """Take over what a poll brought. A larger rebalance version stops the member."""
        meta = found["meta"]
        self._version = meta["version"]
        if meta["rbVersion"] > self._rebalance_version:
            self._rebalance_version = meta["rbVersion"]
            self._equal_polls, self.is_started = 0, False
            for pull in self._pulls:
                pull.cancel()
            await asyncio.gather(*self._pulls, return_exceptions=True)
            self._pulls = []
            await self._commit(flag=1)
            self._queues = {}
        for text, one in found["queues"].items():
            known = self._queues.get(int(text))
            if known is None or known.version != one["offsetVersion"]:
                self._queues[int(text)] = OwnedQueue(
                    one["queueOffsetId"], one["topicName"], one["offsetVersion"], one["offset"], one["offset"]
                )

    async def _pull(self, number: int) -> None:
        pause_s = PULL_LEAST_S
        while True:
            queue = self._queues[number]
            queue.woken.clear()
            answer = await self._ask(
                "pullData",
                {
                    "queueId": number,
                    "offsetStart": queue.offset,
                    "offsetEnd": queue.offset + 50,
                    "topicName": queue.topic,
                    "consumerGroupName": self._group,
                },
            )
            for message in answer["msgs"]:
                self._handle(message["body"])
                queue.offset = message["id"]
            if answer["msgs"]:
                pause_s = PULL_LEAST_S
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await queue.woken.wait()
            pause_s = PULL_LEAST_S if pause_s >= PULL_MAX_S else min(pause_s + PULL_STEP_S, PULL_MAX_S)

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self._commit(flag=0)

    async def _commit(self, flag: int) -> None:
        """Commit what has moved. flag 1: for the last time, all queues."""
        offsets = []
        for queue in self._queues.values():
            if flag or queue.offset != queue.committed:
                queue.committed = queue.offset
                offsets.append(
                    {
                        "queueOffsetId": queue.offset_id,
                        "offsetVersion": queue.version,
                        "offset": queue.offset,
                        "consumerGroupName": self._group,
                        "topicName": queue.topic,
                    }
                )
        if offsets:
            await self._ask("commitOffset", {"queueOffsets": offsets, "flag": flag})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self._ask("heartbeat", {"consumerId": self._id, "asyn": 1})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one wake-up."""
        head = await reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        body = json.loads(await reader.readexactly(int(found[1]))) if found is not None else {}
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()
        for one in body.get("msgNotifyDtos", ()):
            if (queue := self._queues.get(one["queueId"])) is not None:
                queue.woken.set()


def _percentiles(values_ms: list[float]) -> Json:
    if len(values_ms) < 2:
        raise RuntimeError(f"found {len(values_ms)} results in the counted time, expected more: measure for longer")
    return {"p50Ms": statistics.median(values_ms), "p99Ms": statistics.quantiles(values_ms, n=100)[98]}


_ACTS: Final[Mapping[str, Callable[[Json], Any]]] = {
    "publish": _publish,
    "consume": _consume,
    "latency": _latency,
    "join": _join,
    "idle": _idle,
}


def main() -> None:
    """Do what the argument says; print the result as JSON."""
    order = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(_ACTS[order["do"]](order))), flush=True)


if __name__ == "__main__":
    main()
