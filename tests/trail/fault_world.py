"""A cluster that runs in memory with random faults: what the pipeline reads of it, and what really happened.

One seed is one cluster of a few minutes. Clients are killed, stopped and replaced; trace messages are lost; handlers
fail, hang and are slow; offsets are moved; queues expire; samples are not taken. The truth is kept apart from the
evidence, by the code that causes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from tests.trail.story import BASE_MS, Row, unique_id

from mqtrail import trail
from mqtrail.pipeline.changes import Changes
from mqtrail.pipeline.sampling import ClusterSample

TOPIC: Final = "orders"
OPS: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WAYS: Final = ("live", "live-trace", "once", "once-trace", "trace")
"""How the pipeline looks: live, with a sampler beside it, or once, after the fact; -trace: it does not read the topic.
trace: it has the trace alone."""
SENDS: Final = {
    "plain": 60, "slow": 3, "degraded": 3, "delay": 6, "twice": 3, "retried": 5, "uncertain": 4, "failed": 3,
    "oneway": 3, "half": 8, "equal": 3,
}  # fmt: skip
"""How often each kind of send happens, of 101."""
START: Final = -20_000
SAMPLE_MS: Final = 5_000
COMMIT_MS: Final = 5_000
RETRY_LEVEL_MS: Final = (10_000, 30_000, 60_000)
QUEUES: Final = 2
QUIET_MS: Final = 20_000  # at the end: nothing is sent, no client comes or goes
Queue = tuple[str, str, int]
"""Topic, broker, queue."""


@dataclass(eq=False)
class Copy:
    """A stored copy: an entry of a queue."""

    msg: Message
    kind: str
    topic: str
    broker: str
    queue: int
    offset: int
    store_ms: int
    physical: int
    times: int = 0
    group: str = ""
    due_ms: int | None = None
    origin: str = ""
    born_ms: int = 0

    @property
    def id(self) -> str:
        """Its offset id."""
        return f"{'A' if self.broker.endswith('a') else 'B'}A00000900002A9F{self.physical:016X}"

    @property
    def place(self) -> Queue:
        """Its queue."""
        return self.topic, self.broker, self.queue

    def row(self, cluster: str, read_ms: int, *, topic_read: bool) -> Row:
        """Its row of message_meta. topic_read: whether the messages of the topic are read, too."""
        own = {"broker_name": self.broker, "topic": self.topic, "queue_id": self.queue, "queue_offset": self.offset}
        own |= {"physical_offset": self.physical, "offset_msg_id": self.id, "own_unique_key": self.msg.id}
        own |= {"last_unique_key": self.msg.id, "tags": self.msg.tag, "keys": self.msg.keys, "body_size": 10}
        own |= {"born_ms": BASE_MS + self.born_ms, "born_host": self.msg.producer.host, "body_crc": self.msg.crc}
        own |= {"store_ms": BASE_MS + self.store_ms, "store_size": 200, "sys_flag": 8 if self.kind == "COMMIT" else 0}
        own |= {"reconsume_times": self.times, "group_name": self.group}
        own |= {"stored_kind": "HALF" if self.kind == "HALF_READ" and not topic_read else self.kind}
        own |= {"read_ms": BASE_MS + read_ms, "trace_on": "true", "origin_msg_id": self.origin}
        if self.due_ms is not None:
            own |= {"due_ms": BASE_MS + self.due_ms}
        if self.kind in ("RETRY", "RETRY_WAIT", "DLQ"):
            own |= {"retry_topic": TOPIC, "delay_level": 2 + self.times}
        if self.kind == "RETRY_WAIT":
            own |= {"real_topic": f"%RETRY%{self.group}"}
        if self.kind in ("DELAY_WAIT", "HALF_READ", "OP"):
            own |= {"real_topic": TOPIC}
        return {"cluster": cluster, **own}


@dataclass(eq=False)
class Delivery:
    """A hand-over to a handler. outcome: '', OK, FAILED."""

    client: Consumer
    start_ms: int
    times: int
    resent: bool = False
    outcome: str = ""
    end_ms: int | None = None
    traced: int = 0  # records that arrived, of 2

    def arrived(self, got: bool) -> None:
        self.traced += got


@dataclass(eq=False)
class Message:
    """A message, and what happened to it."""

    id: str
    producer: Client
    born: int = 0
    tag: str = "TagA"
    keys: str = ""
    crc: int = 1
    acked: bool = False
    degraded: bool = False
    tries: int = 0
    failed: bool = False
    uncertain: bool = False
    slow: bool = False
    send_lost: int = 0  # records of its sends that did not arrive
    sends: int = 0
    copies: list[Copy] = field(default_factory=list)
    half: str = ""
    due_ms: int | None = None
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    pending: dict[str, bool] = field(default_factory=dict)
    dead_ms: dict[str, int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    resent: dict[str, int] = field(default_factory=dict)
    equal_to: Message | None = None

    @property
    def visible(self) -> list[Copy]:
        """Copies in its topic."""
        return [copy for copy in self.copies if copy.topic == TOPIC]


class Client:
    """A process that traces: it keeps records for a while, and takes them along if it is killed."""

    def __init__(self, world: World, name: str, host: str, *, ours: bool, traced: bool = True) -> None:
        self.world, self.id, self.host, self.ours, self.traced = world, name, host, ours, traced
        self.alive = True
        self.born = world.now
        self.died: int | None = None
        self.skew = world.skew(host.split(":")[0])
        self.kept: list[tuple[Row, Callable[[bool], None]]] = []
        self.sequence = 0
        self.flush_ms = world.chance.choice((300, 1_000, 5_000)) if not ours else world.chance.choice((100, 1_000))
        world.later(world.chance.randrange(self.flush_ms), self.flush_often)

    def record(self, record_type: str, at_ms: int, done: Callable[[bool], None], **values: Any) -> None:
        """Keep a record. done: called with whether it arrived."""
        if not self.traced:
            done(False)
            return
        row = {"record_type": record_type, "event_ms": BASE_MS + at_ms + self.skew, **values}
        self.kept.append((row, done))

    def flush_often(self) -> None:
        if self.alive:
            self.flush()
            self.world.later(self.flush_ms, self.flush_often)

    def flush(self, *, is_last: bool = False) -> None:
        """Send what was kept as one trace message, which may get lost."""
        if not self.kept and not (is_last and self.ours and self.traced):
            return
        kept, self.kept = self.kept, []
        self.sequence += 1
        lost = self.world.chance.random() < self.world.trace_loss and (self.ours or self.world.java_loss)
        for _, done in kept:
            done(not lost)
        if lost:
            return
        heads = []
        if self.ours:
            batch = {"client_id": self.id, "start_id": "A", "sequence": self.sequence, "dropped_total": 0}
            heads = [{"record_type": "TraceBatch", "event_ms": BASE_MS + self.world.now + self.skew, **batch}]
        self.world.trace_message(self, [*heads, *(row for row, _ in kept)])

    def kill(self) -> None:
        """End at once."""
        self.alive, self.died = False, self.world.now
        for _, done in self.kept:
            done(False)
        self.kept = []

    def stop(self) -> None:
        """End in good order."""
        self.flush(is_last=True)
        self.alive, self.died = False, self.world.now


class Consumer(Client):
    """A client of a group. What it pulls waits in its memory for a thread."""

    def __init__(self, group: Group, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.threads = 1 if group.ordered else self.world.chance.choice((1, 2, 8))
        self.busy = 0
        self.queues: dict[Queue, int] = {}  # next offset to take
        self.open: dict[Queue, set[int]] = {}  # taken and not ended
        self.blocked: set[Queue] = set()
        self.world.later(self.world.chance.randrange(COMMIT_MS), self.commit_often)

    def commit_often(self) -> None:
        if self.alive:
            self.commit()
            self.world.later(COMMIT_MS, self.commit_often)

    def commit(self) -> None:
        """Commit the offsets of its queues."""
        if self.group.broadcast:
            return
        for queue, following in self.queues.items():
            self.group.offsets[queue] = min(self.open[queue], default=following)

    def take(self) -> None:
        """Hand over as much as threads are free."""
        for queue in list(self.queues):
            log = self.world.queues[queue]
            while self.alive and queue in self.queues and self.busy < self.threads and queue not in self.blocked:
                offset = self.queues[queue] = max(self.queues[queue], self.world.minimum(queue))
                if offset >= len(log):
                    break
                self.queues[queue] += 1
                copy = log[offset]
                if copy.topic == TOPIC and not self.group.accepts(copy.msg):
                    continue
                self.open[queue].add(offset)
                if self.group.ordered:
                    self.blocked.add(queue)
                self.hand_over(queue, copy, copy.times)

    def hand_over(self, queue: Queue, copy: Copy, times: int) -> None:
        world, group, msg = self.world, self.group, copy.msg
        self.busy += 1
        delivery = Delivery(self, world.now, times, resent=copy.kind == "RESENT")
        msg.deliveries.setdefault(group.name, []).append(delivery)
        msg.pending[group.name] = False
        request = f"{self.id}-{world.number()}"
        own = {"msg_id": msg.id, "request_id": request, "group_name": group.name, "keys": msg.keys}
        self.record("SubBefore", world.now, delivery.arrived, retry_times=times, **own)
        what, cost = group.handle(msg, times)
        if what == "HANG":
            return
        world.later(cost, lambda: self.end(queue, copy, delivery, what, own))

    def end(self, queue: Queue, copy: Copy, delivery: Delivery, what: str, own: Row) -> None:
        if not self.alive:
            return
        world, group, msg = self.world, self.group, copy.msg
        delivery.outcome, delivery.end_ms = ("OK" if what == "OK" else "FAILED"), world.now
        cost = world.now - delivery.start_ms
        row = {"success": what == "OK", "cost_ms": cost, "context_code": 0 if what == "OK" else 4}
        self.record("SubAfter", world.now, delivery.arrived, **own, **row)
        if self.ours:
            place = {"store_broker_name": copy.broker, "store_queue_id": copy.queue, "store_queue_offset": copy.offset}
            result = {"result": "SUCCESS" if what == "OK" else "EXCEPTION", "cost_ms": cost, "client_id": self.id}
            rest = {name: own[name] for name in ("msg_id", "request_id", "group_name")}
            self.record("SubResult", world.now, lambda got: None, topic=TOPIC, retry_times=delivery.times,
                        **rest, **place, **result)  # fmt: skip
        self.busy -= 1
        if queue in self.queues:  # otherwise another client has the queue now, and the result counts for nothing
            if what == "OK" or group.broadcast:
                self.open[queue].discard(copy.offset)
                self.blocked.discard(queue)
            elif group.ordered and delivery.times + 1 < group.tries:
                msg.pending[group.name] = True
                world.later(1_000, lambda: self.again(queue, copy, delivery.times + 1))
            else:
                self.open[queue].discard(copy.offset)
                self.blocked.discard(queue)
                world.send_back(group, copy, delivery.times + 1, at_once=what == "DEAD")
        self.take()

    def again(self, queue: Queue, copy: Copy, times: int) -> None:
        if self.alive and queue in self.queues:
            self.hand_over(queue, copy, times)


@dataclass(eq=False)
class Group:
    """A consumer group."""

    world: World
    name: str
    ordered: bool = False
    broadcast: bool = False
    tag: str = "*"
    tries: int = 3
    clients: list[Consumer] = field(default_factory=list)
    offsets: dict[Queue, int] = field(default_factory=dict)
    weights: tuple[float, ...] = (1, 0, 0, 0, 0)
    wanted: int = 0

    def accepts(self, msg: Message) -> bool:
        return self.tag in ("*", msg.tag)

    def handle(self, msg: Message, times: int) -> tuple[str, int]:
        """What the handler does, and how long it takes."""
        chance = self.world.chance
        what = chance.choices(("OK", "FAIL", "SLOW", "HANG", "DEAD"), self.weights)[0]
        if what == "SLOW":
            return "OK", chance.choice((1_500, 6_000, 50_000))
        if what == "DEAD" and self.ordered:
            what = "FAIL"
        return ("FAILED" if what == "FAIL" else what), chance.choice((5, 50, 400))

    @property
    def topics(self) -> tuple[str, ...]:
        return (TOPIC,) if self.broadcast else (TOPIC, f"%RETRY%{self.name}")

    def rebalance(self) -> None:
        """Share the queues among the clients."""
        clients = [client for client in self.clients if client.alive]
        queues = sorted(queue for queue in self.world.queues if queue[0] in self.topics)
        for number, client in enumerate(clients):
            own = queues if self.broadcast else queues[number :: len(clients)]
            for queue in set(client.queues) - set(own):
                client.commit()
                del client.queues[queue], client.open[queue]
                client.blocked.discard(queue)
        for number, client in enumerate(clients):
            own = queues if self.broadcast else queues[number :: len(clients)]
            for queue in own:
                if queue not in client.queues:
                    first = len(self.world.queues[queue]) if self.broadcast else self.offsets.get(queue, 0)
                    client.queues[queue], client.open[queue] = first, set()
            client.take()

    def add(self) -> None:
        world = self.world
        number, host = world.number(), f"10.0.1.{world.chance.choice((1, 2, 3))}"
        ours = world.chance.random() < world.ours
        name = f"{host}@{number}#{number}"
        client = Consumer(self, world, name, f"{host}:{30_000 + number}", ours=ours, traced=world.traces(self.name))
        self.clients.append(client)
        world.later(world.chance.choice((50, 1_000)), self.rebalance)

    def remove(self, *, kill: bool) -> None:
        alive = [client for client in self.clients if client.alive]
        if not alive:
            return
        client = self.world.chance.choice(alive)
        if kill:
            client.kill()
        else:
            client.commit()
            if client.ours:
                own = {"group_name": self.name, "client_id": client.id, "start_id": "A"}
                client.record("TraceEnd", self.world.now, lambda got: None, **own)
            client.stop()
        self.world.later(self.world.chance.choice((50, 1_000)), self.rebalance)


class World:
    """One cluster. `run` it, then read `evidence` and `truth`."""

    def __init__(self, seed: int, minutes: float = 3) -> None:
        self.name = f"seed {seed}"
        self.chance = chance = Random(seed)
        self.now = START
        self.end_ms = int(minutes * 60_000)
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._number = 0
        self.brokers = chance.choice((("broker-a",), ("broker-a", "broker-b")))
        self.queues: dict[Queue, list[Copy]] = {}
        self.minimums: dict[Queue, int] = {}
        self.messages: list[Message] = []
        self.trace: list[Row] = []
        self._trace_count = 0
        self.copies: list[Copy] = []
        self.samples: list[ClusterSample] = []
        self.ours = chance.choice((0, 0.5, 1))
        self.trace_loss = chance.choice((0, 0, 0.02, 0.2))
        self.java_loss = False
        self._skewed = chance.choice((0, 0, 2_000, 60_000))
        self._skews: dict[str, int] = {}
        self._untraced = {"none": set(), "CG2": {"CG2"}}[chance.choice(("none", "none", "CG2"))]
        self.gaps = [chance.randrange(self.end_ms)] if chance.random() < 0.2 else []
        for broker in self.brokers:
            for queue in range(QUEUES):
                self.queues[TOPIC, broker, queue] = []
        self.groups = self._make_groups()
        self.producers = [self._producer(number) for number in range(2)]
        self._plan()

    def _make_groups(self) -> list[Group]:
        chance = self.chance
        groups = []
        for number in range(chance.choice((1, 2, 3))):
            kind = chance.choice(("plain", "plain", "plain", "ordered", "broadcast", "filter"))
            weights = chance.choice(
                ((1, 0, 0, 0, 0), (0.8, 0.2, 0, 0, 0), (0.8, 0.05, 0.05, 0.03, 0.07), (0.3, 0.7, 0, 0, 0))
            )
            group = Group(self, f"CG{number + 1}", kind == "ordered", kind == "broadcast", weights=weights)
            group.tag = "TagA" if kind == "filter" else "*"
            groups.append(group)
            if not group.broadcast:
                for broker in self.brokers:
                    self.queues[f"%RETRY%{group.name}", broker, 0] = []
        return groups

    def _producer(self, number: int) -> Client:
        host = f"10.0.2.{number}"
        return Client(self, f"{host}@{number}#1", f"{host}:{20_000 + number}", ours=self.chance.random() < self.ours)

    def _plan(self) -> None:
        chance = self.chance
        for group in self.groups:
            late = chance.random() < 0.15
            for _ in range(chance.choice((0, 1, 1, 2, 3))):
                self.at(chance.randrange(0, self.end_ms) if late else START + chance.randrange(8_000), group.add)
            for _ in range(chance.choice((0, 0, 1, 2, 4))):
                self.at(chance.randrange(self.end_ms - QUIET_MS), partial(self._change, group))
            if chance.random() < 0.2:
                at = chance.randrange(self.end_ms)
                kill = chance.random() < 0.4
                for n in range(3):
                    self.at(at + n * 100, partial(group.remove, kill=kill))
                if chance.random() < 0.5:
                    self.at(at + chance.randrange(6_000, 40_000), partial(self._move, group))
                if chance.random() < 0.5:
                    self.at(at + chance.randrange(40_000, 90_000), group.add)
        if chance.random() < 0.2:
            self.at(chance.randrange(self.end_ms), self._expire)
        for _ in range(chance.choice((10, 30, 60))):
            self.at(chance.randrange(self.end_ms - QUIET_MS), lambda: self._send(self.chance.choice(self.producers)))
        if chance.random() < 0.3:
            self.at(chance.randrange(self.end_ms), self.producers[1].kill)
        for at in range(START, self.end_ms, SAMPLE_MS):
            self.at(at + chance.randrange(500), self._sample)

    def _change(self, group: Group) -> None:
        match self.chance.choice(("add", "stop", "kill", "kill and add", "stop and add")):
            case "add":
                group.add()
            case "stop":
                group.remove(kill=False)
            case "kill":
                group.remove(kill=True)
            case "kill and add":
                group.remove(kill=True)
                group.add()
            case _:
                group.remove(kill=False)
                group.add()

    def _move(self, group: Group) -> None:
        """An operator moves the offsets of a group without clients."""
        if any(client.alive for client in group.clients) or group.broadcast:
            return
        for queue, offset in list(group.offsets.items()):
            if queue[0] == TOPIC:
                last = len(self.queues[queue])
                target = self.chance.choice((last, max(0, offset - 3), min(last, offset + 2)))
                for copy in self.queues[queue][offset:target]:
                    copy.msg.skipped.add(group.name)
                for copy in self.queues[queue][target:offset]:
                    copy.msg.skipped.discard(group.name)
                group.offsets[queue] = target

    def _expire(self) -> None:
        for queue, log in self.queues.items():
            if queue[0] == TOPIC:
                self.minimums[queue] = self.chance.choice((0, len(log) // 2, len(log)))
                for copy in log[: self.minimums[queue]]:
                    for group in self.groups:
                        if group.offsets.get(queue, 0) <= copy.offset:
                            copy.msg.expired.add(group.name)

    # -- events

    def number(self) -> int:
        self._number += 1
        return self._number

    def at(self, at_ms: int, what: Callable[[], object]) -> None:
        heapq.heappush(self._events, (at_ms, self.number(), what))

    def later(self, ms: int, what: Callable[[], object]) -> None:
        self.at(self.now + ms, what)

    def skew(self, ip: str) -> int:
        if ip not in self._skews:
            self._skews[ip] = self.chance.choice((-1, 0, 1)) * self._skewed
        return self._skews[ip]

    def traces(self, group: str) -> bool:
        return group not in self._untraced

    def minimum(self, queue: Queue) -> int:
        return self.minimums.get(queue, 0)

    def run(self) -> World:
        while self._events and self._events[0][0] <= self.end_ms:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = self.end_ms
        return self

    # -- sending

    def _send(self, producer: Client) -> None:
        if not producer.alive:
            return
        chance, number = self.chance, len(self.messages) + 1
        msg = Message(unique_id(number), producer, self.now, chance.choice(("TagA", "TagB")), f"k{number}", number)
        self.messages.append(msg)
        kind = chance.choices(list(SENDS), list(SENDS.values()))[0]
        if not producer.ours and kind in ("retried", "uncertain", "failed"):
            kind = "plain"
        if kind == "equal" and number > 1 and (last := self.messages[-2]).visible and not last.half:
            msg.keys, msg.tag, msg.crc, msg.equal_to = last.keys, last.tag, last.crc, last
        broker = chance.choice(self.brokers)
        match kind:
            case "oneway" | "uncertain" | "failed":
                self._unanswered(msg, broker, kind)
            case "retried":
                self._retried(msg, broker)
            case "twice":
                self._acknowledge(msg, broker, 5)
                self.later(2_000, lambda: self._acknowledge(msg, chance.choice(self.brokers), 5))
            case "delay":
                self._delay(msg, broker)
            case "half":
                self._half(msg, broker)
            case _:
                self._acknowledge(msg, broker, 1_200 if kind == "slow" else 5, degraded=kind == "degraded")

    def _unanswered(self, msg: Message, broker: str, kind: str) -> None:
        """No try is acknowledged; the message may be stored nevertheless, unless the broker refused it."""
        outcome = {"oneway": "ONEWAY", "uncertain": "TIMEOUT", "failed": "ERROR"}[kind]
        tries = (1,) if kind == "oneway" else (1, 2)
        for number in tries:
            self._try(msg, broker, number, outcome, 50, is_final=number == tries[-1])
        msg.uncertain, msg.failed = kind != "failed", kind == "failed"
        if msg.uncertain and self.chance.random() < 0.6:
            self.store(msg, self._queue(broker), born_ms=self.now + msg.producer.skew)

    def _retried(self, msg: Message, broker: str) -> None:
        """The first try fails, and may have stored the message; the second one is acknowledged."""
        outcome = self.chance.choice(("ERROR", "TIMEOUT"))
        self._try(msg, broker, 1, outcome, 50, is_final=False)
        if outcome == "TIMEOUT" and self.chance.random() < 0.5:
            self.store(msg, self._queue(broker), born_ms=self.now + msg.producer.skew)
        degraded = self.chance.random() < 0.3
        self.later(60, lambda: self._acknowledge(msg, broker, 5, tries=2, degraded=degraded))

    def _lost(self, msg: Message) -> Callable[[bool], None]:
        return lambda got: setattr(msg, "send_lost", msg.send_lost + (not got))

    def _try(self, msg: Message, broker: str, number: int, outcome: str, cost: int, *, is_final: bool) -> None:
        msg.tries = max(msg.tries, number)
        if msg.producer.ours:
            own = {"attempt": number, "attempt_max": 3, "outcome": outcome, "is_final": is_final, "cost_ms": cost}
            own |= {"send_id": f"{msg.id}-{msg.sends}", "client_id": msg.producer.id, "response_code": 2}
            own |= {"store_broker_name": broker, "topic": TOPIC, "group_name": "PG", "msg_id": msg.id}
            msg.producer.record("PubAttempt", self.now, self._lost(msg), **own)
        elif outcome == "ONEWAY":
            msg.send_lost += 1

    def _pub(self, msg: Message, copy: Copy, cost: int, *, msg_type: int = 0, tries: int = 1) -> None:
        """Write the records of an acknowledged try, if the producer lives to see it."""
        own = {"msg_id": msg.id, "group_name": "PG", "topic": TOPIC, "cost_ms": cost, "success": not msg.degraded}
        own |= {"store_host": f"{copy.broker}:10911", "body_size": 10, "msg_type": msg_type, "tags": msg.tag}
        own |= {"offset_msg_id": copy.id, "keys": msg.keys}
        begun = self.now

        def answered() -> None:
            if not msg.producer.alive:
                self._lost(msg)(False)
                return
            msg.producer.record("Pub", begun, self._lost(msg), **own)
            if msg.producer.ours and tries > 1:
                self._try(msg, copy.broker, tries, "OK", cost, is_final=True)

        self.later(cost, answered)

    def _acknowledge(self, msg: Message, broker: str, cost: int, *, degraded: bool = False, tries: int = 1) -> None:
        if not msg.producer.alive:
            return
        msg.sends += tries == 1
        msg.tries = max(msg.tries, tries)
        copy = self.store(msg, self._queue(broker), born_ms=self.now + msg.producer.skew)
        msg.acked, msg.degraded = msg.acked or not degraded, degraded
        msg.slow = msg.slow or cost >= 1_000
        self._pub(msg, copy, cost, tries=tries)

    def _delay(self, msg: Message, broker: str) -> None:
        born = self.now + msg.producer.skew
        msg.due_ms = self.now + self.chance.choice((5_000, 30_000, 7_200_000))
        wait = self.store(msg, ("SCHEDULE_TOPIC_XXXX", broker, 3), "DELAY_WAIT", born_ms=born, due_ms=msg.due_ms)
        msg.acked = True
        self._pub(msg, wait, 5, msg_type=3)
        late = self.chance.choice((20, 20, 5_000))
        self.at(msg.due_ms + late, partial(self.store, msg, (TOPIC, broker, 0), "DELAYED", born_ms=born))

    def _half(self, msg: Message, broker: str) -> None:
        born = self.now + msg.producer.skew
        half = self.store(msg, ("RMQ_SYS_TRANS_HALF_TOPIC", broker, 0), "HALF_READ", born_ms=born)
        msg.acked, msg.half = True, "TX_PENDING"
        self._pub(msg, half, 5, msg_type=1)
        end = self.chance.choice(("COMMIT", "COMMIT", "ROLLBACK", ""))

        def finish() -> None:
            msg.half = "TX_COMMITTED" if end == "COMMIT" else "TX_ROLLED_BACK"
            if end == "COMMIT":
                self.store(msg, (TOPIC, broker, 0), "COMMIT", born_ms=born)
            ops = (OPS, broker, 0)
            self.later(20, partial(self.store, msg, ops, "OP", born_ms=born, origin=half.id))

        if end:
            self.later(self.chance.choice((50, 15_000)), finish)

    def _queue(self, broker: str) -> Queue:
        return TOPIC, broker, self.chance.randrange(QUEUES)

    def store(self, msg: Message, queue: Queue, kind: str = "NORMAL", **values: Any) -> Copy:
        """Append a copy, and let the clients of its queue take it."""
        log = self.queues.setdefault(queue, [])
        copy = Copy(msg, kind, *queue, len(log), self.now, 1_000 + 200 * len(self.copies), **values)
        log.append(copy)
        self.copies.append(copy)
        msg.copies.append(copy)
        for each in self.groups:
            for client in each.clients:
                if client.alive and queue in client.queues:
                    self.later(self.chance.choice((1, 20)), client.take)
        return copy

    def send_back(self, group: Group, copy: Copy, times: int, *, at_once: bool) -> None:
        """Store the next attempt, or the dead letter."""
        msg = copy.msg
        own: Any = {"times": times, "group": group.name, "born_ms": copy.born_ms, "origin": copy.origin or copy.id}
        if at_once or times >= group.tries:
            msg.dead_ms[group.name] = self.now
            self.store(msg, (f"%DLQ%{group.name}", copy.broker, 0), "DLQ", **own)
            return
        msg.pending[group.name] = True
        due = self.now + RETRY_LEVEL_MS[min(times, 3) - 1]
        self.store(msg, ("SCHEDULE_TOPIC_XXXX", copy.broker, 2 + times), "RETRY_WAIT", due_ms=due, **own)
        self.at(due + 10, partial(self.store, msg, (f"%RETRY%{group.name}", copy.broker, 0), "RETRY", **own))

    # -- evidence

    def trace_message(self, client: Client, rows: list[Row]) -> None:
        self._trace_count += 1
        own: Row = {"broker_name": self.brokers[0], "trace_topic": "RMQ_SYS_TRACE_TOPIC"}
        own |= {"queue_id": 0, "queue_offset": self._trace_count, "item_no": 0, "item_count": 1}
        own |= {"trace_born_ms": BASE_MS + self.now + client.skew, "trace_store_ms": BASE_MS + self.now + 2}
        own |= {"trace_born_host": client.host, "trace_client_id": client.id if client.ours else ""}
        self.trace += [{**own, "record_no": number, **row} for number, row in enumerate(rows)]

    def state(self, sampled_ms: int, gap: str = "") -> ClusterSample:
        """A sample of this moment."""
        topics = sorted({queue[0] for queue in self.queues})
        found = ClusterSample(sampled_ms, gap=gap, topics=[*topics, "RMQ_SYS_TRACE_TOPIC"])
        found.answers = {("GROUPS", "", ""): ""}
        for broker in self.brokers:
            found.answers |= {("OFFSETS", broker, ""): "", ("GROUPS", broker, ""): ""}
            found.answers |= {("RANGES", b, topic): "" for topic, b, _ in self.queues if b == broker}
        for (topic, broker, queue), log in self.queues.items():
            place = {"topic": topic, "broker_name": broker, "queue_id": queue}
            ends = {"min_offset": self.minimum((topic, broker, queue)), "max_offset": len(log)}
            found.add(trail.QUEUE_RANGES, place | ends)
        for group in self.groups:
            for (topic, broker, queue), offset in group.offsets.items():
                place = {"group_name": group.name, "topic": topic, "broker_name": broker, "queue_id": queue}
                found.add(trail.GROUP_OFFSETS, place | {"consumer_offset": offset})
            alive = [client for client in group.clients if client.alive]
            about = {"group_name": group.name, "client_host": "", "language": "JAVA", "version": 1}
            about |= {"ordered": "true" if group.ordered else "false"}
            for client in alive:
                found.add(trail.CLIENTS, about | {"status": "OK", "client_id": client.id, "client_host": client.host})
            if not alive:
                nothing = {"status": "OFFLINE", "client_id": "", "language": "", "version": None, "ordered": ""}
                found.add(trail.CLIENTS, about | nothing)
            for topic in group.topics if alive else ():
                row = {"group_name": group.name, "topic": topic, "expression_type": "TAG"}
                row |= {"expression": group.tag if topic == TOPIC else "*", "consume_type": "CONSUME_PASSIVELY"}
                row |= {"message_model": "BROADCASTING" if group.broadcast else "CLUSTERING"}
                found.add(trail.SUBSCRIPTIONS, row)
        return found

    def _is_gap(self, at_ms: int) -> bool:
        return any(gap <= at_ms < gap + 30_000 for gap in self.gaps)

    def _sample(self) -> None:
        if self._is_gap(self.now):
            return
        last = self.samples[-1].sampled_ms - BASE_MS if self.samples else None
        gap = "" if last is not None and self.now - last < 15_000 else "not running"
        self.samples.append(self.state(BASE_MS + self.now, gap))

    @property
    def as_of_ms(self) -> int:
        return BASE_MS + self.end_ms

    def evidence(self, way: str) -> dict[str, list[Row]]:
        """What the pipeline has read, as rows of a cluster of its own. way: one of WAYS."""
        cluster, is_live, messages = f"{self.name} {way}", way.startswith("live"), not way.endswith("trace")
        rows: dict[str, list[Row]] = {"trace_events": [{"cluster": cluster, **row} for row in self.trace]}
        if way == "trace":
            return rows
        rows["message_meta"] = [
            copy.row(cluster, self.end_ms - 1_000, topic_read=messages)
            for copy in self.copies
            if (messages or copy.topic != TOPIC) and (is_live or copy.offset >= self.minimum(copy.place))
        ]
        if not is_live and messages:
            rows["gaps"] = [self._left_out(cluster, queue, end) for queue, end in self.minimums.items() if end]
        changes = Changes(cluster, 10**12)
        last = self.state(self.as_of_ms - 100, "" if is_live and not self._is_gap(self.end_ms - 100) else "not running")
        made = [changes.add(found) for found in [*(self.samples if is_live else ()), last]]
        read = {queue[0] for queue in self.queues if messages or queue[0] != TOPIC}
        made.append(changes.read_up_to(last.sampled_ms, read | {OPS}))
        for batch in made:
            for name, some in batch.items():
                rows.setdefault(name, []).extend(some)
        return rows

    def _left_out(self, cluster: str, queue: Queue, end: int) -> Row:
        """The range of a queue that was removed before its first read."""
        place: Row = dict(zip(("topic", "broker_name", "queue_id"), queue, strict=True))
        times = {"from_ms": None, "to_ms": BASE_MS + self.queues[queue][end - 1].store_ms + 1}
        own = {"first_offset": 0, "end_offset": end, "detected_ms": self.as_of_ms, "reason": "NOT_READ"}
        return {"cluster": cluster, **place, **times, **own}
