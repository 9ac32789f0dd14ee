"""The stage of a labelled scenario: its topics, groups, clients, and what each of its messages is owed.

A scenario does something on the broker that all share, and says of each message which codes are owed by the truth. What
a message makes a group's handler do is in its body, `group=plan;group=plan`; groups without a plan handle it at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.waiting import until

from mqtrail.client import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    InstanceConfig,
    Producer,
    ProducerConfig,
    RetryLater,
    SendResult,
    TraceConfig,
)
from mqtrail.wire import Message, MessageExt, MessageQueue, SubscriptionGroupConfig, TopicConfig

SLOW_S: Final = 1.3
LONG_LEVEL: Final = 18  # two hours
WITHIN_S: Final = 120.0
ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True)
class Owed:
    """What one message is owed: comma-joined codes; `A|B` says that either is true, as of different instants. A `?` in
    front says that the evidence need not show all of it: a part may be said, and then the message is not COMPLETE.

    groups: those that must be judged. others: those that may be, with these codes. complete: None: not checked.
    """

    scenario: str
    label: str
    msg_id: str
    send: str
    message: str
    groups: Mapping[str, str]
    others: Mapping[str, str]
    complete: bool | None

    @property
    def name(self) -> str:
        return f"{self.scenario}: {self.label}"


@dataclass
class Play:
    """One run of all scenarios: the broker, shared clients, and what is owed."""

    namesrv: str
    folder: Path
    admin: Admin
    producer: Producer
    stack: AsyncExitStack
    samples: Callable[[], int]
    """Number of samples that were taken."""
    cycles: Callable[[], int]
    """Number of cycles of the pipeline that ended."""
    owed: list[Owed] = field(default_factory=list)

    async def sampled(self) -> None:
        """Wait until two more samples: the second one begins after this call."""
        end = self.samples() + 2
        await until(lambda: self.samples() >= end, WITHIN_S)

    async def read(self) -> None:
        """Wait until the pipeline has read what is there now."""
        end = self.cycles() + 2
        await until(lambda: self.cycles() >= end, WITHIN_S)

    @property
    def trace(self) -> TraceConfig:
        return TraceConfig(spool_dir=self.folder / "spool", linger_ms=20, retry_ms=50)

    @property
    def no_room(self) -> TraceConfig:
        """That of a client that drops every record."""
        return TraceConfig(spool_dir=self.folder / "none", memory_size_max=1, spool_size_max=0)


@dataclass
class Process:
    """A client in another process."""

    process: asyncio.subprocess.Process
    sent: list[str] = field(default_factory=list)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()

    async def end(self) -> None:
        """Let it end in good order."""
        if self.process.returncode is None and self.process.stdin is not None:
            self.process.stdin.close()
        await self.process.wait()


@dataclass
class Scene:
    """One scenario's part of the broker. Its topic and groups begin with its name."""

    play: Play
    name: str
    handled: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(group, message id) -> ends of handlers."""
    begun: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def topic(self) -> str:
        return f"T-{self.name}"

    def group(self, short: str) -> str:
        """The name of a group of this scenario."""
        return f"{short}-{self.name}"

    async def make_topic(self, queues: int = 1, topic: str = "") -> None:
        topic = topic or self.topic
        assert (await self.play.admin.create_topic(TopicConfig(topic, queues, queues))).complete

    async def make_group(self, short: str, **settings: Any) -> None:
        assert (await self.play.admin.create_group(SubscriptionGroupConfig(self.group(short), **settings))).complete

    async def consumer(
        self,
        short: str,
        expression: Any = "*",
        *,
        topics: Mapping[str, Any] | None = None,
        trace: bool = True,
        trace_keeps: bool = True,
        batch: bool = False,
        **settings: Any,
    ) -> Consumer:
        """A running consumer; the play closes it at its end, if the scenario does not."""
        group = self.group(short)
        config = ConsumerConfig(
            **{
                "consume_from": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                "rebalance_ms": 200,
                "offset_persist_ms": 100,
                "pull_error_ms": 50,
                "close_wait_ms": 300,
                "poll_suspend_ms": 1_000,
                "suspend_ms": 200,
                "instance": InstanceConfig(route_refresh_ms=500, heartbeat_ms=1_000, request_timeout_ms=20_000),
                "trace": self.play.trace if trace_keeps else self.play.no_room,
                "offset_dir": self.play.folder / "offsets",
                **settings,
            }
        )
        consumer = Consumer(group, self.play.namesrv, topics or {self.topic: expression}, config=config, trace=trace)
        await self.play.stack.enter_async_context(consumer)
        running = asyncio.create_task(consumer.run(self._batch(short) if batch else self._one(short)))
        self.play.stack.callback(running.cancel)
        return consumer

    def _one(self, short: str) -> Callable[[Any], Awaitable[None]]:
        async def handle(delivery: Any) -> None:
            await self._act(short, delivery)

        return handle

    def _batch(self, short: str) -> Callable[[Any], Awaitable[None]]:
        async def handle(batch: Any) -> None:
            for number, delivery in enumerate(batch):
                try:
                    await self._act(short, delivery)
                except RetryLater:
                    batch.retry_from(number)
                    return

        return handle

    async def _act(self, short: str, delivery: Any) -> None:
        key = (short, delivery.msg_id)
        self.begun[key] += 1
        plan, _, count = plans(delivery.body).get(short, "ok").partition(":")
        try:
            match plan:
                case "ok":
                    return
                case "slow":
                    if not count or self.begun[key] <= int(count):
                        await asyncio.sleep(SLOW_S)
                case "hang":
                    await asyncio.Event().wait()
                case "fail":
                    if not count or self.begun[key] <= int(count):
                        raise RetryLater()
                case "later":
                    raise RetryLater(LONG_LEVEL)
                case "dead":
                    raise RetryLater(-1)
                case "raise":
                    if self.begun[key] <= int(count):
                        raise ValueError("on purpose")
                case "suspend":
                    raise RetryLater(suspend_ms=30_000)
                case _:
                    raise AssertionError(f"no such plan: {plan}")
        finally:
            if plan != "hang":
                self.handled[key] += 1

    async def done(self, short: str, *msg_ids: str, count: int = 1) -> None:
        """Wait until the group's handler ended so often with each message."""
        await until(lambda: all(self.handled[short, msg_id] >= count for msg_id in msg_ids), WITHIN_S)

    async def started(self, short: str, *msg_ids: str) -> None:
        """Wait until the group's handler began with each message."""
        await until(lambda: all(self.begun[short, msg_id] for msg_id in msg_ids), WITHIN_S)

    async def process(self, short: str, plan: str = "", **values: Any) -> Process:
        """A client in another process, until it is killed or told to end. plan: the group whose plans it
        follows, if not its own."""
        own = {"namesrv": self.play.namesrv, "folder": str(self.play.folder / f"spool-{self.name}-{short}")}
        own |= {"topic": self.topic, "group": self.group(short), "short": plan or short}
        given = {**own, **values}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.pipeline.labelled.worker", json.dumps(given)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )
        made = Process(process)

        async def listen() -> None:
            assert process.stdout is not None
            async for line in process.stdout:
                if line.startswith(b"{"):
                    said = json.loads(line)
                    if said["what"] == "sent":
                        made.sent.append(said["msg_id"])
                    else:
                        counts = self.begun if said["what"] == "begun" else self.handled
                        counts[given["short"], said["msg_id"]] += 1

        listening = asyncio.create_task(listen())
        self.play.stack.push_async_callback(made.end)
        self.play.stack.callback(listening.cancel)
        return made

    def message(self, body: str = "", topic: str = "", **fields: Any) -> Message:
        """A message whose body is a plan."""
        return Message(topic or self.topic, (body or "-").encode(), **fields)

    async def send(self, body: str = "", producer: Producer | None = None, **fields: Any) -> str:
        """Send a message with the shared producer; return its id."""
        return (await self.sent(body, producer, **fields)).msg_id

    async def sent(self, body: str = "", producer: Producer | None = None, **fields: Any) -> SendResult:
        return await (producer or self.play.producer).send(self.message(body, **fields))

    async def producer(
        self, *, trace: bool = True, trace_keeps: bool = True, trace_topic: str = "", **settings: Any
    ) -> Producer:
        """A producer of its own."""
        traces = self.play.trace if trace_keeps else self.play.no_room
        config = ProducerConfig(
            trace=replace(traces, topic=trace_topic) if trace_topic else traces,
            **{"send_timeout_ms": 20_000, **settings},
        )
        producer = Producer(self.group("P"), self.play.namesrv, trace=trace, config=config)
        return await self.play.stack.enter_async_context(producer)

    async def warmed(self, *shorts: str, **fields: Any) -> str:
        """Send a message that each group handles, so that all are known and trace; wait for the next sample."""
        msg_id = await self.send(keys=f"warm-{self.name}", **fields)
        for short in shorts:
            await self.done(short, msg_id)
        await self.play.sampled()
        return msg_id

    async def messages(self) -> list[MessageExt]:
        """The messages in the first queue of the topic."""
        queue = MessageQueue(self.topic, "broker-a", 0)
        end = await self.play.admin.max_offset(queue)
        return [one async for one in self.play.admin.messages_of_queue(queue, 0, end)]

    async def offset_is(self, short: str, offset: int, queue_id: int = 0, topic: str = "") -> None:
        """Wait until the group has committed an offset."""
        queue = MessageQueue(topic or self.topic, "broker-a", queue_id)
        async with asyncio.timeout(WITHIN_S):
            while (await self.play.admin.consumer_offset(self.group(short), queue) or 0) < offset:
                await asyncio.sleep(0.05)

    async def left(self, short: str) -> None:
        """Wait until the group has no client, and a sample shows it."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = await self.play.admin.group_connections(self.group(short))
                if not any(one.connection_set for one in found.values()):
                    break
                await asyncio.sleep(0.05)
        await self.play.sampled()

    def owes(
        self,
        label: str,
        msg_id: str,
        send: str = "SEND_OK",
        message: str = "",
        complete: bool | None = True,
        others: Mapping[str, str] | None = None,
        **groups: str,
    ) -> None:
        """Say what a message is owed. groups, others: short name of a group -> codes."""
        full = {self.group(short): codes for short, codes in groups.items()}
        more = {self.group(short): codes for short, codes in (others or {}).items()}
        self.play.owed.append(Owed(self.name, label, msg_id, send, message, full, more, complete))


def plans(body: bytes) -> dict[str, str]:
    """Read a body: group -> plan."""
    pairs = (part.partition("=") for part in body.decode().split(";"))
    return {group: plan for group, _, plan in pairs if plan}
