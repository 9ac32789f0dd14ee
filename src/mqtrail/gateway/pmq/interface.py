"""The operations of pmq's interface: paths, answers and messages as pmq's own broker gives them.

A failure inside a known path is an answer with `suc` false and status 200. Where pmq loses messages or stops for ever,
this differs: docs/reference/pmq.md has the list.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from mqtrail.clock import now_ms
from mqtrail.wire import (
    OWN_HOST,
    Message,
    MQError,
    OffsetCommit,
    Perm,
    PropertiesError,
    ServiceNotAvailable,
    TopicConfig,
    address_matcher,
    encode_properties,
    is_loopback,
)

from ..caller import Caller, problem_of_error
from ..config import CLIENT_ID, DoorConfig
from ..exchange import host_of
from ..gate import Gate
from ..json_size import VALUES_MAX, has_many_values
from ..mail import Mail, mail_of
from ..member_names import member_group, origin_of
from ..problems import Problem
from ..publishing import ANY_QUEUE, MessageSender
from ..short_way import Operation
from ..tasks import end_task
from ..tracer import Tracer
from .broker import FAILURE_TRIES, PmqBroker, failure_topic, is_broadcast, message_of, parts_of, pulled
from .desk import EXPIRE_MS, QUEUES_A_TICK, Full, Group, GroupQueue, PmqConsumer, PmqDesk, QueueName
from .members import BroadcastMember, Members
from .shapes import (
    CommitBody,
    CommitItem,
    CountBody,
    DeregisterBody,
    FailBody,
    GroupTopicsBody,
    HeartbeatBody,
    MailBody,
    PollBody,
    PublishBody,
    PullBody,
    RegisterBody,
    RegisterGroupBody,
    ReportBody,
    TopicQueuesBody,
)
from .waking import ClientAddress, Waker, address_of

T = TypeVar("T")
Answer = dict[str, Any]
POLL_S: Final = 10.0  # how long a poll is held
STIRRED_POLL_S: Final = 1.0  # after a change: a client starts after four polls with equal results
STIRRED_S: Final = 10.0  # how long polls are held short after a change
SLEEP_MAX_MS: Final = 1_000  # pmq's own
TICK_S: Final = 0.5
LOOK_S: Final = 5.0  # between two looks for new queues of topics
FAILURE_QUEUES: Final = 2
PULL_MAX: Final = 500  # messages of one answer
MEMBER_LEASE_MS: Final = EXPIRE_MS + 10_000  # of a broadcast group; each heartbeat renews it
POLLS_MAX: Final = 1_000  # polls that wait; further ones are answered after STIRRED_POLL_S
NORMAL, FAILURE = 1, 2
MAIL_TYPES: Final = (1, 2)  # a warning, an error; 0, an information, is not sent
SETTINGS: Final = {
    False: {"delayProcessTime": 0, "threadSize": 5},
    True: {"delayProcessTime": 60, "threadSize": 1},
}
"""Settings of a subscription, as pmq's portal proposes them, for a normal and a failure topic."""


class PmqInterface:
    """`start`, then `stop`. stopping: polls no longer wait once it is set."""

    def __init__(
        self,
        caller: Caller,
        publisher: MessageSender,
        tracer: Tracer,
        broker_name: str,
        stopping: asyncio.Event,
        gate: Gate,
        config: DoorConfig,
        members: Members,
    ) -> None:
        self._caller = caller
        self._gate = gate
        self.members = members
        self._publisher = publisher
        self._tracer = tracer
        self._broker_name = broker_name
        self._stopping = stopping
        self._desk = PmqDesk(now_ms())
        self._waker = Waker()
        self._config = config
        self._is_proxy = address_matcher(config.proxies)
        publisher.on_stored = self._stored
        members.on_end = self._desk.drop
        self._changed = asyncio.Event()
        self._stirred_s = time.monotonic()
        self._commits = asyncio.Lock()
        self._ticker: asyncio.Task[None] | None = None
        self._poll_count = 0
        self._looked_s = time.monotonic()
        self.on_mail: Callable[[Mail], None] = lambda mail: None
        """Called with a mail that a client asks for."""
        self.operations: dict[str, Operation] = {}  # by path; `router` fills it

    def start(self) -> None:
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        await end_task(self._ticker)
        await self._waker.stop()

    def members_of(self, group: str) -> list[PmqConsumer]:
        """Return the members of a group that are online, those of a broadcast group too."""
        own = [one for name in self.members.of(group) for one in self._desk.members_of(name)]
        return [*self._desk.members_of(group), *own]

    def http_members_of(self, group: str) -> list[BroadcastMember]:
        """Return the members of a group that joined by the plain interface."""
        return [one for name, one in self.members.of(group).items() if name not in self._desk.groups]

    def online_of(self, group: str) -> int:
        """Return the number of members of a group that are online, without RocketMQ clients."""
        return len(self.members_of(group)) + len(self.http_members_of(group))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of a group whose members are, or were, online since the start."""
        known = self._desk.groups.get(group)
        return [] if known is None else list(known.topics)

    def settings_changed(self, group: str) -> None:
        """Have the members of a group learn its settings: an operator changed them."""
        if sum(self._desk.renew(name) for name in (group, *self.members.of(group))):
            self._wake()

    def _stored(self, topic: str, queue_id: int) -> None:
        """Wake those who consume a queue."""
        queue = QueueName(topic, queue_id)
        for address, group in self._desk.owners_of(queue):
            self._waker.wake(address, self._desk.number_of(queue), group)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0 if self._desk.is_behind else TICK_S)
            if self._desk.tick(now_ms()):
                self._wake()
            if time.monotonic() - self._looked_s >= LOOK_S:
                await self._look_for_queues()
                self._looked_s = time.monotonic()

    async def _look_for_queues(self) -> None:
        """Have groups consume the queues that their topics have now, whoever changed them."""
        broker = PmqBroker(self._caller, OWN_HOST)
        counts: dict[str, set[int]] = {}  # numbers that groups know
        looked = 0
        for group in list(self._desk.groups.values()):
            for topic, count in group.counts.items() if group.members else ():
                counts.setdefault(topic, set()).add(count)
            looked += 1 + len(group.counts)
            if looked >= QUEUES_A_TICK:
                looked = 0
                await asyncio.sleep(0)
        for topic, known in counts.items():
            with suppress(MQError, TimeoutError, Full):  # it is looked at again
                config = await broker.topic(topic)
                if config is not None and known != {max(config.read_queue_nums, 1)}:
                    changed, full = self._desk.fit(topic, config.read_queue_nums, now_ms())
                    if full:
                        self._config.report("pmq.no_room_for_queues", {"topic": topic, "groups": full})
                    if changed:
                        self._desk.tick(now_ms())
                        self._wake()

    def _wake(self) -> None:
        """Answer the polls that wait."""
        self._stirred_s = time.monotonic()
        self._changed.set()
        self._changed = asyncio.Event()

    # Consumers and groups.

    async def register(self, body: RegisterBody, broker: PmqBroker) -> Answer:
        if not body.name:
            return refused("ConsumerName不能为空！", id=0)
        return done(id=self._desk.register(body.name, now_ms(), self._listens_at(body.name, broker)))

    def _listens_at(self, name: str, broker: PmqBroker) -> ClientAddress | None:
        """Return where a client takes wake-ups; None: it gets none."""
        ip = broker.host.ip
        is_local = is_loopback(ip) or ip == broker.own_ip
        if self._is_proxy(ip) or (is_local and not self._config.wakes_local):
            return None
        return address_of(name, ip)

    async def register_group(self, body: RegisterGroupBody, broker: PmqBroker) -> Answer:
        member = self._desk.name_of(body.consumer_id)
        if member is None:
            return refused(f"ConsumerId_{body.consumer_id}不存在！")
        names = body.consumer_group_names or {}
        empty: Answer = {"broadcastConsumerGroupName": {}, "consumerGroupNameNew": {}}
        if not names:
            return refused("不存在", **empty)
        own: dict[str, str] = {}  # groups of this member by the broadcast groups that it is of
        for name in names:
            config = await broker.group(name)
            if config is None:
                return refused(f"{name}不存在", **empty)
            for topic in names[name] or [""]:
                self._gate.check_subscription(name, None, topic)
            if is_broadcast(config):
                own[name] = member_group(name, member)
        for name, topics in names.items():
            refusal = await self._enter(name, own.get(name, name), topics or (), (body.consumer_id, member), broker)
            if refusal is not None:
                return refused(refusal, **empty)
        self._desk.tick(now_ms())
        self._wake()
        return done(broadcastConsumerGroupName=own, consumerGroupNameNew=own)

    async def _enter(
        self, asked: str, name: str, topics: Sequence[str], consumer: tuple[int, str], broker: PmqBroker
    ) -> str | None:
        """Make a consumer a member of a group; return why it cannot be one. name: the group that it consumes through;
        each member of a broadcast group has its own. consumer: its id and its name."""
        consumer_id, member = consumer
        configs: dict[str, TopicConfig] = {}
        for topic in topics:
            config = await broker.topic(topic)
            if config is None:
                return f"topic_{topic}_is_not_exist!"
            configs[topic] = config
            self._desk.check_room(name, sum(one.read_queue_nums + FAILURE_QUEUES for one in configs.values()))
        is_admitted = self._gate.admits(asked, broker.host.ip)  # else it runs without queues, as in pmq
        readable = {
            topic: [QueueName(topic, number) for number in range(one.read_queue_nums)] for topic, one in configs.items()
        }
        if name != asked:
            if not is_admitted:
                return None
            await self.members.join(asked, member, readable, broker, MEMBER_LEASE_MS, from_first=False)
        subscribed: dict[str, list[tuple[QueueName, bool]]] = {}
        for topic, queues in readable.items():
            failure = failure_topic(name, topic)
            if await broker.topic(failure) is None:
                await broker.create_topic(failure, FAILURE_QUEUES)
            if name == asked:  # else it began with its join
                await broker.begin(name, queues)
            failures = [QueueName(failure, number) for number in range(FAILURE_QUEUES)]
            for queue in failures:
                if await broker.offset_of(name, queue) is None:
                    await broker.commit(name, queue, 0)
            subscribed[topic] = [*((queue, False) for queue in queues), *((queue, True) for queue in failures)]
        if not self._desk.knows(consumer_id):  # it left meanwhile, and would keep its queues for ever
            self.members.leave(name)
            return f"ConsumerId_{consumer_id}不存在！"
        if is_admitted:
            self._desk.join(name, consumer_id, subscribed, now_ms())
        return None

    async def deregister(self, body: DeregisterBody, broker: PmqBroker) -> Answer:
        if not body.id:
            return refused("ConsumerDeRegisterRequest id 不能为空！")
        groups = self._desk.groups_of(body.id)
        for group in groups:
            self._gate.check_group(group, None, broker.host.ip)  # ids can be guessed
        self._desk.deregister(body.id, now_ms())
        for group in groups:
            self.members.leave(group)
        self._desk.tick(now_ms())
        self._wake()
        return done()

    async def heartbeat(self, body: HeartbeatBody, broker: PmqBroker) -> Answer:
        known = self._desk.beat(body.consumer_id, now_ms())
        for group in self._desk.groups_of(body.consumer_id):
            self.members.renew(group)
        is_deleted = not known and body.asyn == 0 and body.consumer_id != 0
        return done(heatbeatTime=5, deleted=int(is_deleted), bakUrl="")

    async def poll(self, body: PollBody, broker: PmqBroker) -> Answer:
        """Answer at once if a group has a newer version than the client, else when one has, or after a while."""
        if body.consumer_group_version is None:
            return failed("consumerGroupVersion: found none, expected the versions of the client's groups")
        if not self._desk.knows(body.consumer_id):
            await self._wait(STIRRED_POLL_S)  # the client would ask again at once, without end
            return done(time=0, sleepTime=0, consumerDeleted=1, brokerMetaMode=0)
        began_s = time.monotonic()
        while not (newer := self._newer(body.consumer_group_version)):
            is_stirred = time.monotonic() - self._stirred_s < STIRRED_S or self._poll_count >= POLLS_MAX
            left_s = began_s + (STIRRED_POLL_S if is_stirred else POLL_S) - time.monotonic()
            if left_s <= 0 or self._stopping.is_set():
                if await self._look_for_moves(body, broker):
                    continue
                return done(time=0, sleepTime=random.randint(50, 2_000), consumerDeleted=0, brokerMetaMode=0)
            await self._wait(left_s)
        groups = {group.name: await self._group_of(group, body.consumer_id, broker) for group in newer}
        return done(time=0, sleepTime=0, consumerGroups=groups, consumerDeleted=0, brokerMetaMode=0)

    async def _look_for_moves(self, body: PollBody, broker: PmqBroker) -> bool:
        """Return whether an operator has moved an offset of the client's queues: idle ones send no commits."""
        has_moved = False
        async with self._commits:
            for name in body.consumer_group_version or ():
                group = self._desk.groups.get(name)
                for one in [] if group is None else self._desk.queues_of(group, body.consumer_id):
                    has_moved |= await self._is_moved(name, one, broker)
        if has_moved:
            self._wake()
        return has_moved

    async def _is_moved(self, group: str, one: GroupQueue, broker: PmqBroker) -> bool:
        """Return whether the offset is not that of the last commit, and note the new one."""
        stored = await broker.offset_of(group, one.queue) or 0
        is_moved = one.committed is not None and stored != one.committed
        if not is_moved:
            one.committed = stored
        else:
            self._desk.moved_by_operator(one.offset_id, stored)
        return is_moved

    def _newer(self, versions: dict[str, int]) -> list[Group]:
        known = ((self._desk.groups.get(name), version) for name, version in versions.items())
        return [group for group, version in known if group is not None and group.version > version]

    async def _wait(self, at_most_s: float) -> None:
        """Wait for a change or the stop."""
        self._poll_count += 1
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, self._stopping)]
        try:
            await asyncio.wait(waits, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._poll_count -= 1
            for wait in waits:
                wait.cancel()

    async def _group_of(self, group: Group, consumer_id: int, broker: PmqBroker) -> Answer:
        meta = {
            "name": group.name,
            "rbVersion": group.rebalance_version,
            "metaVersion": group.meta_version,
            "version": group.version,
        }
        owned = self._desk.queues_of(group, consumer_id) if self._gate.admits(group.name, broker.host.ip) else []
        config = await broker.group(origin_of(group.name)) if owned else None
        is_paused = config is not None and not config.consume_enable  # by an operator
        found = [await self._queue_of(group, one, broker, is_paused=is_paused) for one in owned]
        return {"meta": meta, "queues": {str(one["queueId"]): one for one in found if one is not None}}

    async def _queue_of(self, group: Group, one: GroupQueue, broker: PmqBroker, *, is_paused: bool) -> Answer | None:
        """Return a queue as its owner reads it; None: the group has lost it meanwhile."""
        offset = await broker.offset_of(group.name, one.queue) or 0
        end = await broker.end_of(one.queue)
        if self._desk.group_queue(one.offset_id) is None:
            return None
        if one.committed is None:
            one.committed = offset
        return {
            "queueOffsetId": one.offset_id,
            "offsetVersion": one.version,
            "offset": offset,
            "consumerGroupName": group.name,
            "topicName": one.queue.topic,
            "queueId": self._desk.number_of(one.queue),
            "originTopicName": one.origin_topic,
            "topicType": FAILURE if one.is_failure else NORMAL,
            "topicId": self._desk.topic_number_of(one.queue.topic),
            **SETTINGS[one.is_failure],
            "pullBatchSize": 50,
            "consumerBatchSize": 1,
            "retryCount": FAILURE_TRIES,
            "stopFlag": int(is_paused),
            "traceFlag": 0,
            "lastId": end,
            "maxPullTime": 5,
            "timeout": 0,
        }

    # Messages.

    async def publish(self, body: PublishBody, broker: PmqBroker) -> Answer:
        topic = body.topic_name or ""
        if not body.msgs:
            return refused(f"topic_{topic}_msg_is_null!", sleepTime=0)
        config = await broker.topic(topic) if topic else None
        if config is None:
            return refused(f"topic_{topic}_is_not_exist!", sleepTime=0)
        self._gate.check_topic(topic, body.token)
        try:
            self._gate.take(topic, len(body.msgs), time.monotonic())
        except Problem as problem:  # its client sleeps and repeats
            return failed(problem.detail) | {"sleepTime": min(1000 * problem.retry_after_s, SLEEP_MAX_MS)}
        send_ip = None if body.client_ip == broker.host.ip else body.client_ip
        parts: list[tuple[int, list[Message], bool]] = []  # all are checked before the first one is stored
        for (number, is_strict), items in parts_of(body.msgs).items():
            queue = self._desk.queue_of(number)
            queue_id = ANY_QUEUE
            if queue is not None and queue.topic == topic and _may_write(config, queue.queue_id):
                queue_id = queue.queue_id
            elif is_strict:
                return refused(f"found the queue {number}, expected a writable queue of {topic}", sleepTime=0)
            messages = [message_of(topic, item, secrets.token_hex(16), send_ip) for item in items]
            if (wrong := _wrong_of(messages)) is not None:
                return refused(wrong, sleepTime=0)
            parts.append((queue_id, messages, is_strict))
        for queue_id, messages, is_strict in parts:
            await self._store(messages, queue_id, broker, is_strict=is_strict)
        return done(sleepTime=0)

    async def _store(self, messages: Sequence[Message], queue_id: int, broker: PmqBroker, *, is_strict: bool) -> None:
        """Store messages in a queue, or in any if it takes none and the client does not insist. Problem."""
        try:
            await self._publisher.publish(messages, None, broker.host, queue_id)
        except Problem as problem:
            is_refused = isinstance(problem.__cause__, ServiceNotAvailable)  # then nothing was stored
            if queue_id == ANY_QUEUE or is_strict or not is_refused:
                raise
            await self._publisher.publish(messages, None, broker.host)

    async def pull(self, body: PullBody, broker: PmqBroker) -> Answer:
        """pmq's ids above offsetStart are our offsets from it on. Where ids are gone, the answer skips them."""
        if body.offset_start < 0 or body.offset_start >= body.offset_end:
            return refused("参数不对！")
        queue = self._desk.queue_of(body.queue_id)
        if queue is None:
            return refused(f"queueId_{body.queue_id}_is_not_exist！")
        self._gate.check_group(body.consumer_group_name or "", None, broker.host.ip, queue.topic)
        count = min(body.offset_end - body.offset_start, PULL_MAX)
        return done(msgs=[pulled(one) for one in await broker.pull(queue, body.offset_start, count)])

    async def publish_failures(self, body: FailBody, broker: PmqBroker) -> Answer:
        """Publish messages of a group that failed. Messages that succeeded need nothing: the offset moves past them."""
        if body.fail_msg is not None and body.fail_msg.msgs:
            answer = await self.publish(body.fail_msg, broker)
            if not answer["suc"]:
                return answer
        return done()

    async def commit(self, body: CommitBody, broker: PmqBroker) -> Answer:
        async with self._commits:
            for item in body.queue_offsets or ():
                await self._commit_one(item, is_last=body.flag == 1, broker=broker)
        if body.flag == 1:
            self._desk.tick(now_ms())
            self._wake()
        return done()

    async def _commit_one(self, item: CommitItem, *, is_last: bool, broker: PmqBroker) -> None:
        """Commit if the version is the current one and the offset is larger; an operator's change wins."""
        found = self._desk.group_queue(item.queue_offset_id)
        if found is None:
            return
        group, one = found
        self._gate.check_group(group.name, None, broker.host.ip, one.queue.topic)
        end = await broker.end_of(one.queue)
        if await self._is_moved(group.name, one, broker):  # at last: an operator may move it at any time before
            self._wake()
            return
        if item.offset_version != one.version:
            return
        has_moved = (one.committed or 0) < item.offset <= end
        if has_moved:
            await broker.commit(group.name, one.queue, item.offset)
            one.committed = item.offset
            self._tracer.record(
                OffsetCommit(
                    time_stamp=now_ms(),
                    group_name=group.name,
                    topic=one.queue.topic,
                    broker_name=self._broker_name,
                    queue_id=one.queue.queue_id,
                    consumer_offset=item.offset,
                    client_id=CLIENT_ID,
                )
            )
        if is_last:
            self._desk.hand_over(item.queue_offset_id, item.offset_version, has_moved=has_moved)

    async def count(self, body: CountBody, broker: PmqBroker) -> Answer:
        """Count what a group has still to read."""
        if not body.consumer_group_name:
            return refused("ConsumerGroupName不能为空！", count=0)
        self._gate.check_group(body.consumer_group_name, None, broker.host.ip)
        group = self._desk.groups.get(body.consumer_group_name)
        if group is None:
            return refused("ConsumerGroupName不存在！", count=0)
        waiting = 0
        for one in list(group.queues.values()):  # the group may change while the broker answers
            if body.topics is None or one.queue.topic in body.topics:
                waiting += await broker.end_of(one.queue) - (await broker.offset_of(group.name, one.queue) or 0)
        return done(count=waiting)

    async def send_mail(self, body: MailBody, broker: PmqBroker) -> Answer:
        """Send a mail to the addresses of the group, else of the topic, and to the operator's."""
        rules, group, topic = self._gate.rules, body.consumer_group_name or "", body.topic_name or ""
        if rules.mail is None or body.type not in MAIL_TYPES:
            return done()
        if group:
            self._gate.check_group(group, None, broker.host.ip)
        rule = rules.groups.get(origin_of(group)) if group else rules.topics.get(topic)
        to = [*(() if rule is None else rule.mail), *rules.mail.to]
        names = (f"group {group}" if group else "", f"topic {topic}" if topic else "", f"client {broker.host.ip}")
        if to:
            self.on_mail(mail_of(body.type, names, to, body.subject or "", body.content or "", body.key or ""))
        return done()

    # Lists.

    async def group_topics(self, body: GroupTopicsBody, broker: PmqBroker) -> Answer:
        known = [self._desk.groups.get(name) for name in body.consumer_group_names or ()]
        rows = [{"consumerGroupName": one.name, "topics": list(one.topics)} for one in known if one is not None]
        return done(groupTopics=rows)

    async def topics(self, body: CountBody, broker: PmqBroker) -> Answer:
        group = self._desk.groups.get(body.consumer_group_name or "")
        return done() if group is None else done(topics=list(group.topics))

    async def topic_queues(self, body: TopicQueuesBody, broker: PmqBroker) -> Answer:
        if body.topic_names is None:
            return done()
        found = {}
        for topic in body.topic_names:
            config = await broker.topic(topic)
            if config is not None:
                numbers = (number for number in range(config.write_queue_nums) if _may_write(config, number))
                found[topic] = [self._desk.number_of(QueueName(topic, number)) for number in numbers]
        return done(topicQueues=found)

    # The routes.

    def router(self) -> APIRouter:
        """Return the operations by path."""
        router = APIRouter(include_in_schema=False)
        consumer, meta, tool = "/api/client/consumer", "/api/server/meta", "/api/client/tool"
        self._add(router, f"{consumer}/register", RegisterBody, self.register)
        self._add(router, f"{consumer}/registerConsumerGroup", RegisterGroupBody, self.register_group)
        self._add(router, f"{consumer}/deRegister", DeregisterBody, self.deregister)
        self._add(router, f"{consumer}/heartbeat", HeartbeatBody, self.heartbeat)
        self._add(router, f"{consumer}/getConsumerGroupPolling", PollBody, self.poll)
        self._add(router, f"{consumer}/publish", PublishBody, self.publish)
        self._add(router, f"{consumer}/pullData", PullBody, self.pull)
        self._add(router, f"{consumer}/publishAndUpdateResultFailMsg", FailBody, self.publish_failures)
        self._add(router, f"{consumer}/commitOffset", CommitBody, self.commit)
        self._add(router, f"{consumer}/getMessageCount", CountBody, self.count)
        self._add(router, f"{meta}/getTopic", CountBody, self.topics)
        self._add(router, f"{meta}/getGroupTopic", GroupTopicsBody, self.group_topics)
        self._add(router, f"{meta}/getTopicQueueIds", TopicQueuesBody, self.topic_queues)
        self._add(router, f"{tool}/sendMail", MailBody, self.send_mail)
        for path in ("addCat", "addOpLog", "rb"):
            self._add(router, f"{tool}/{path}", ReportBody, _taken)

        @router.post(f"{meta}/getMetaGroup")
        async def meta_group(request: Request) -> Response:
            return _json(request, done(brokerIpG1=[_address(request)], brokerMetaMode=0, groupFlag=0, metricUrl=""))

        @router.post(f"{meta}/getMeta")
        async def meta_one(request: Request) -> Response:
            return _json(request, done(brokerIp=[_address(request)], brokerMetaMode=0))

        @router.post(f"{tool}/addLog")
        async def add_log() -> Response:
            return Response()

        @router.get("/hs")  # for load balancers of pmq
        async def health() -> Response:
            return PlainTextResponse("OK")

        @router.get(f"{tool}/getIp")
        async def ip(request: Request) -> Response:
            return PlainTextResponse(_server_ip(request))

        return router

    def _add(
        self, router: APIRouter, path: str, kind: type[T], serve: Callable[[T, PmqBroker], Awaitable[Answer]]
    ) -> None:
        decoder = msgspec.json.Decoder(kind, strict=False)

        @router.post(path)
        async def operation(request: Request) -> Response:
            began_ns = time.perf_counter_ns()
            content_type = request.headers.get("content-type", "")
            if content_type.partition(";")[0].strip().lower() != "application/json":
                return _json(request, failed(f"Content type '{content_type[:60]}' not supported"))
            text = await request.body()
            if has_many_values(text):
                return _json(request, failed(f"found more than {VALUES_MAX} values, expected fewer"))
            try:
                body = decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                return _json(request, failed(f"Could not read document: {error}"))
            client = host_of(request)
            try:
                own = request.scope.get("server") or ("", 0)
                answer = await serve(body, PmqBroker(self._caller, client, str(own[0])))
            except Problem as problem:
                answer = refused(problem.detail)
            except (MQError, TimeoutError) as error:
                answer = failed(problem_of_error(error).detail)
            except Full as error:
                answer = refused(str(error))
            return _json(request, {"time": time.perf_counter_ns() - began_ns} | answer)

        self.operations[path] = operation


def _wrong_of(messages: Sequence[Message]) -> str | None:
    """Return why messages cannot be stored; None: only the broker can tell."""
    try:
        for one in messages:
            encode_properties(one.wire_properties())
    except PropertiesError as error:
        return str(error)
    has_bodies = all(one.body for one in messages)
    return None if has_bodies else "found a message without a body, expected at least one byte: pass a body"


async def _taken(body: ReportBody, broker: PmqBroker) -> Answer:
    """Accept what a client reports; nothing is done with it."""
    return done()


def done(**fields: Any) -> Answer:
    return {**fields, "suc": True}


def refused(text: str, **fields: Any) -> Answer:
    """Return the answer to a request that is understood and not served: without a code."""
    return {"msg": text, **fields, "suc": False}


def failed(text: str) -> Answer:
    """Return the answer to a request that cannot be read or that failed: code "0"."""
    return {"code": "0", "msg": text, "time": 0, "suc": False}


def _json(request: Request, answer: Answer) -> Response:
    """Return an answer; the common fields come first."""
    heads: Answer = {name: answer.pop(name) for name in ("code", "msg") if name in answer}
    heads["time"] = answer.pop("time", 0)
    body = {**heads, "serverIp": _server_ip(request), **answer}
    return Response(msgspec.json.encode(body), media_type="application/json;charset=UTF-8")


def _server_ip(request: Request) -> str:
    server = request.scope.get("server")
    return server[0] if server else OWN_HOST.ip


def _address(request: Request) -> str:
    """Return the address of the door as the client named it."""
    return f"{request.url.scheme}://{request.url.netloc}"


def _may_write(config: TopicConfig, queue_id: int) -> bool:
    return bool(config.perm & Perm.WRITE) and queue_id < config.write_queue_nums
