"""Producers and consumers as small state machines: what an official client does, without its threads.

A producer sends one message at a time: to a queue of its choice, again and elsewhere when that fails, and gives up
after some attempts (then the message may be stored or not). A consumer asks who is in its group, takes its share of
the queues, pulls, processes, sends back what failed, and commits up to the first record that is not done with.
"""

from collections.abc import Callable
from functools import partial

from mqtrail.wire import (
    BatchItem,
    CheckTransactionStateHeader,
    ConsumerData,
    ConsumerGroupHeader,
    ConsumerIdList,
    EndTransactionHeader,
    HeartbeatData,
    MessageExt,
    MessageSysFlag,
    ProducerData,
    PullHeader,
    PullSysFlag,
    QueryConsumerOffsetHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    RouteHeader,
    SendBackHeader,
    SendMessageHeader,
    SubscriptionData,
    TopicRouteData,
    UpdateConsumerOffsetHeader,
    decode_records,
    encode_batch,
    encode_command,
    encode_properties,
    parse_delay_levels,
    parse_offset_msg_id,
    retry_topic,
)

from .engine import Engine
from .history import Handled, History, OffsetSeen, Place, Read, Sent
from .network import Link, Network
from .servers import DELAY_LEVELS, first_command

TIMEOUT_MS = 3_000.0
PULL_TIMEOUT_MS = 6_000.0
HOLD_MS = 3_000
PAUSE_MS = 300.0
HEARTBEAT_MS, ROUTE_MS, REBALANCE_MS, COMMIT_MS = 3_000.0, 2_000.0, 2_000.0, 1_000.0
ATTEMPTS = 3
RECONSUME_MAX = 2
KINDS = {"plain": 12, "delayed": 3, "timer": 2, "transaction": 3, "batch": 2}  # how often each is sent
TIMER_MS = (600, 7_000)
ONEWAY_FLAG = 2
DELAYS_MS = parse_delay_levels(DELAY_LEVELS)
OnReply = Callable[[RemotingCommand | None], None]
Queue = tuple[str, str, int]  # topic, broker, queue id


class Client:
    """Connections by address, requests with timeouts, routes of the topics it knows."""

    def __init__(self, engine: Engine, network: Network, history: History, name: str, namesrv: str) -> None:
        self.engine, self.network, self.history, self.name, self.namesrv = engine, network, history, name, namesrv
        self.alive = True
        self.addresses: dict[str, str] = {}  # broker -> address
        self.queues: dict[str, list[Queue]] = {}  # topic -> writable queues
        self.topics: list[str] = []
        self._links: dict[str, Link] = {}
        self._asked: dict[int, tuple[str, OnReply]] = {}
        self._opaque = 0
        self._every(ROUTE_MS, self._ask_routes)
        self._every(HEARTBEAT_MS, self._heartbeat)

    def _every(self, interval_ms: float, act: Callable[[], None]) -> None:
        def run() -> None:
            if self.alive:
                act()
                self.engine.after(interval_ms, run)

        self.engine.after(self.engine.between(0, PAUSE_MS), run)

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Do something in a while, if this client lives then."""
        self.engine.after(delay_ms, lambda: act() if self.alive else None)

    def kill(self) -> None:
        """End: what it knew is gone."""
        self.engine.tell(f"{self.name}: killed")
        self.alive = False
        self._asked.clear()
        for link in self._links.values():
            link.close()

    # Requests.

    def request(
        self, address: str, command: RemotingCommand, on_reply: OnReply, timeout_ms: float = TIMEOUT_MS
    ) -> None:
        """Send a request; on_reply gets the answer, or None once there can be none."""
        self._opaque += 1
        opaque = command.opaque = self._opaque
        self._asked[opaque] = (address, on_reply)
        link = self._link(address)
        if link is None:
            self.engine.after(1, lambda: self._answered(opaque, None))
            return
        link.to_server(encode_command(command))
        self.engine.after(timeout_ms, lambda: self._answered(opaque, None))

    def oneway(self, address: str, command: RemotingCommand) -> None:
        self._opaque += 1
        command.opaque, command.flag = self._opaque, command.flag | ONEWAY_FLAG
        link = self._link(address)
        if link is not None:
            link.to_server(encode_command(command))

    def _link(self, address: str) -> Link | None:
        link = self._links.get(address)
        if link is None or not link.is_open:
            link = self.network.connect(
                address, lambda data: self._received(address, data), lambda: self._lost(address)
            )
            if link is None:
                self._links.pop(address, None)
            else:
                self._links[address] = link
        return link

    def _lost(self, address: str) -> None:
        link = self._links.get(address)
        if link is None or link.is_open:
            return  # another took its place
        for opaque in [opaque for opaque, (asked, _) in self._asked.items() if asked == address]:
            self._answered(opaque, None)

    def _received(self, address: str, data: bytes) -> None:
        command = first_command(data)
        if command.is_response:
            self._answered(command.opaque, command)
        elif self.alive:
            self.asked(address, command)

    def _answered(self, opaque: int, reply: RemotingCommand | None) -> None:
        entry = self._asked.pop(opaque, None)
        if entry is not None and self.alive:
            entry[1](reply)

    def asked(self, address: str, command: RemotingCommand) -> None:
        """A request of a broker's."""

    # Routes and heartbeats.

    def _ask_routes(self) -> None:
        for topic in self.topics:
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic).to_ext())
            self.request(self.namesrv, command, partial(self._learn, topic))

    def _learn(self, topic: str, reply: RemotingCommand | None) -> None:
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        route = TopicRouteData.decode(reply.body)
        for broker in route.broker_datas:
            if broker.master is not None:
                self.addresses[broker.broker_name] = broker.master
        self.queues[topic] = [
            (topic, data.broker_name, queue_id)
            for data in route.queue_datas
            for queue_id in range(data.write_queue_nums)
        ]

    def _heartbeat(self) -> None:
        body = self.heartbeat().encode()
        for address in list(self.addresses.values()):
            self.request(address, RemotingCommand(RequestCode.HEART_BEAT, {}, body), lambda reply: None)

    def heartbeat(self) -> HeartbeatData:
        raise NotImplementedError


class Producer(Client):
    """Sends messages one after the other until it is told to stop."""

    PACE_MS = (1.0, 60.0)  # between an acknowledgement and the next send

    def __init__(self, engine: Engine, network: Network, history: History, name: str, namesrv: str, topic: str) -> None:
        super().__init__(engine, network, history, name, namesrv)
        self.topics = [topic]
        self.topic = topic
        self.stopped = False
        self._decisions: dict[str, int] = {}  # transaction id -> number
        self.later(PAUSE_MS, self._next)

    def heartbeat(self) -> HeartbeatData:
        return HeartbeatData(self.name, (ProducerData(self.name),), ())

    def _next(self) -> None:
        if self.stopped:
            return
        if not self.queues.get(self.topic):
            self.later(PAUSE_MS, self._next)
            return
        chance = self.engine.chance
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        count = chance.randrange(2, 5) if kind == "batch" else 1
        sent = []
        for _ in range(count):
            number = len(self.history.sent)
            one = Sent(number, self.name, self.topic, self.engine.now_ms)
            self.history.sent[number] = one
            sent.append(one)
        if kind == "delayed":
            sent[0].delay_ms = chance.choice(DELAYS_MS)
        elif kind == "timer":
            sent[0].delay_ms, sent[0].is_timer = chance.randrange(*TIMER_MS), True
        elif kind == "transaction":
            sent[0].in_transaction = True
        else:
            sent[0].waits = kind == "batch" or not self.engine.happens(0.1)
        self._attempt(sent, ATTEMPTS, chance.choice((1, 20, 300, 3_000)))

    def _attempt(self, sent: list[Sent], attempts: int, size: int) -> None:
        chance = self.engine.chance
        topic, broker, queue_id = chance.choice(self.queues[self.topic])
        message = sent[0]
        for one in sent:
            one.attempts += 1
        properties = {"WAIT": "true" if message.waits else "false", "UNIQ_KEY": f"ID{message.number}"}
        sys_flag = 0
        if message.is_timer:
            properties["TIMER_DELAY_MS"] = str(message.delay_ms)
        elif message.delay_ms:
            properties["DELAY"] = str(DELAYS_MS.index(message.delay_ms) + 1)
        if message.in_transaction:
            properties |= {"TRAN_MSG": "true", "PGROUP": self.name}
            sys_flag = MessageSysFlag.TRANSACTION_PREPARED
        header = SendMessageHeader(
            self.name,
            topic,
            queue_id=queue_id,
            sys_flag=int(sys_flag),
            born_timestamp=self.engine.start_ms + int(self.engine.now_ms),
            properties=encode_properties(properties) if len(sent) == 1 else "",
            batch=len(sent) > 1,
        )
        bodies = [b"%d:" % one.number + bytes(size) for one in sent]
        if len(sent) == 1:
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), bodies[0])
        else:
            command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), batch_body(sent, bodies))
        began_ms = self.engine.now_ms
        self.request(
            self.addresses[broker],
            command,
            lambda reply: self._sent(sent, broker, attempts, size, began_ms, reply),
        )

    def _sent(
        self, sent: list[Sent], broker: str, attempts: int, size: int, began_ms: float, reply: RemotingCommand | None
    ) -> None:
        if reply is None or reply.code != ResponseCode.SUCCESS:
            if attempts > 1 and not self.stopped:
                self.later(self.engine.between(1, PAUSE_MS), lambda: self._attempt(sent, attempts - 1, size))
            else:
                self.later(PAUSE_MS, self._next)
            return
        ids = reply.ext["msgId"].split(",")
        for place, (one, offset_id) in enumerate(zip(sent, ids, strict=True)):
            one.acked_ms, one.acked_by = self.engine.now_ms, broker
            if not one.delay_ms and not one.in_transaction:
                queue_id, offset = int(reply.ext["queueId"]), int(reply.ext["queueOffset"]) + place
                one.place = Place(broker, one.topic, queue_id, offset)
            elif one.in_transaction:
                physical = parse_offset_msg_id(offset_id)[1]
                self._decide(one, broker, reply, physical, offset_id)
        self.later(self.engine.between(*self.PACE_MS), self._next)

    # Transactions.

    def _decide(self, one: Sent, broker: str, reply: RemotingCommand, physical: int, offset_id: str) -> None:
        """Run the local transaction, and tell the broker how it ended, or leave it to the broker to ask."""
        if not one.decided:  # the broker may have asked about an earlier attempt
            one.decided = self.engine.chance.choice(("commit", "commit", "rollback"))
            one.decided_ms = self.engine.now_ms
        if self.engine.happens(0.25):
            return
        header = EndTransactionHeader(
            self.name,
            int(reply.ext["queueOffset"]),
            physical,
            _flag_of(one.decided),
            offset_id,
            transaction_id=reply.ext.get("transactionId"),
            topic=one.topic,
        )
        self.oneway(self.addresses[broker], RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext()))

    def asked(self, address: str, command: RemotingCommand) -> None:
        """CHECK_TRANSACTION_STATE: say again what was decided; roll back what this producer gave up sending."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        asked = CheckTransactionStateHeader.from_ext(command.ext)
        (message,) = decode_records(command.body)
        one = self.history.sent[int(message.body.split(b":")[0])]
        if not one.decided:
            one.decided, one.decided_ms = "rollback", self.engine.now_ms
        header = EndTransactionHeader(
            self.name,
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            _flag_of(one.decided),
            asked.msg_id or "",
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=one.topic,
        )
        self.oneway(address, RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext()))


def _flag_of(decided: str) -> int:
    commits = decided == "commit"
    return int(MessageSysFlag.TRANSACTION_COMMIT if commits else MessageSysFlag.TRANSACTION_ROLLBACK)


def batch_body(sent: list[Sent], bodies: list[bytes]) -> bytes:
    """Return the items of a batch."""
    return encode_batch(
        [
            BatchItem(body, properties=f"UNIQ_KEY\x01ID{one.number}\x02".encode())
            for one, body in zip(sent, bodies, strict=True)
        ]
    )


class Work:
    """One queue that a consumer has: where it pulls next, what is not done with, what may be committed."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.live = True
        self.next_offset = -1  # not known yet
        self.open: dict[int, bool] = {}  # offsets that were pulled and are not done with

    def committable(self) -> int:
        return min(self.open, default=self.next_offset)


class Consumer(Client):
    """One member of a group. GROUP subclass hooks plant bugs."""

    def __init__(
        self, engine: Engine, network: Network, history: History, name: str, namesrv: str, group: str, topic: str
    ) -> None:
        super().__init__(engine, network, history, name, namesrv)
        self.group = group
        self.topics = [topic, retry_topic(group)]
        self._works: dict[Queue, Work] = {}
        self._sub_version = int(engine.now_ms) + 1
        self._every(REBALANCE_MS, self._rebalance)
        self._every(COMMIT_MS, self._commit_all)

    def heartbeat(self) -> HeartbeatData:
        subscriptions = tuple(
            SubscriptionData.build(topic, "*", sub_version=self._sub_version) for topic in self.topics
        )
        return HeartbeatData(self.name, (), (ConsumerData(self.group, subscription_data_set=subscriptions),))

    # Who has which queue.

    def _rebalance(self) -> None:
        for broker, address in list(self.addresses.items()):
            command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(self.group).to_ext())
            self.request(address, command, partial(self._share, broker))

    def _share(self, broker: str, reply: RemotingCommand | None) -> None:
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        members = sorted(ConsumerIdList.decode(reply.body).consumer_id_list)
        if self.name not in members:
            return
        place = members.index(self.name)
        known = [queue for topic in self.topics for queue in self.queues.get(topic, ()) if queue[1] == broker]
        mine = set(known[place :: len(members)])
        for queue in [queue for queue in self._works if queue[1] == broker and queue not in mine]:
            work = self._works.pop(queue)
            work.live = False
            self._commit(work)
        for queue in known:
            if queue in mine and queue not in self._works:
                self._works[queue] = work = Work(queue)
                self._ask_offset(work)

    # Offsets.

    def _ask_offset(self, work: Work) -> None:
        topic, broker, queue_id = work.queue
        command = RemotingCommand(
            RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(self.group, topic, queue_id).to_ext()
        )
        self.request(self.addresses[broker], command, partial(self._begin, work))

    def _begin(self, work: Work, reply: RemotingCommand | None) -> None:
        if not work.live:
            return
        if reply is None or reply.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            self.later(PAUSE_MS, lambda: self._ask_offset(work))
            return
        topic, broker, queue_id = work.queue
        offset = int(reply.ext["offset"]) if reply.code == ResponseCode.SUCCESS else 0
        self.history.offsets.append(OffsetSeen(self.engine.now_ms, self.group, broker, topic, queue_id, offset))
        work.next_offset = offset
        self._pull(work)

    def _commit_all(self) -> None:
        for work in self._works.values():
            self._commit(work)

    def _commit(self, work: Work) -> None:
        topic, broker, queue_id = work.queue
        if work.next_offset >= 0:
            header = UpdateConsumerOffsetHeader(self.group, topic, queue_id, work.committable())
            self.oneway(self.addresses[broker], RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext()))

    # Pulling.

    def _pull(self, work: Work) -> None:
        if not work.live:
            return
        topic, broker, queue_id = work.queue
        flags = PullSysFlag.SUSPEND | PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION
        header = PullHeader(
            self.group,
            topic,
            queue_id,
            work.next_offset,
            self.engine.chance.choice((1, 4, 32)),
            int(flags),
            work.committable(),
            HOLD_MS,
            "*",
            self._sub_version,
            "TAG",
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        self.request(self.addresses[broker], command, partial(self._pulled, work), PULL_TIMEOUT_MS)

    def _pulled(self, work: Work, reply: RemotingCommand | None) -> None:
        if not work.live:
            return
        next_offset = reply.ext.get("nextBeginOffset") if reply is not None else None
        if reply is None or next_offset is None:
            self.later(PAUSE_MS, lambda: self._pull(work))
            return
        if reply.code == ResponseCode.SUCCESS:
            messages = decode_records(reply.body)
            for message in messages:
                work.open[message.queue_offset] = True
                note_read(self.history, self.engine.now_ms, self.group, work.queue[1], message)
            self.pulled(work, int(next_offset))
            for message in messages:
                self._process(work, message)
        if work.next_offset != int(next_offset):
            work.next_offset = int(next_offset)
            self._pull(work)
        else:
            self.later(1, lambda: self._pull(work))

    def pulled(self, work: Work, next_offset: int) -> None:
        """For the planted bug that commits too early."""

    def _process(self, work: Work, message: MessageExt) -> None:
        self.later(self.engine.between(1, 400), lambda: self._processed(work, message))

    def _processed(self, work: Work, message: MessageExt) -> None:
        if self.engine.happens(0.12):
            self._send_back(work, message)
        else:
            self._done(work, message, "done")

    def _done(self, work: Work, message: MessageExt, as_: str) -> None:
        work.open.pop(message.queue_offset, None)
        self._note(work, message, as_)

    def _note(self, work: Work, message: MessageExt, as_: str, due_ms: float = 0.0) -> None:
        number = number_of(message.body)
        if number is not None:
            place = Place(work.queue[1], message.topic, message.queue_id, message.queue_offset)
            self.history.handled.append(Handled(self.engine.now_ms, self.group, place, number, as_, due_ms))

    def _send_back(self, work: Work, message: MessageExt) -> None:
        header = SendBackHeader(
            message.physical_offset,
            self.group,
            0,
            origin_msg_id=message.properties.get("UNIQ_KEY", ""),
            origin_topic=message.topic,
            max_reconsume_times=RECONSUME_MAX,
        )
        level = min(3 + message.reconsume_times, len(DELAYS_MS))
        due_ms = self.engine.now_ms + DELAYS_MS[level - 1]
        self._note(work, message, "asked back", due_ms)

        def answered(reply: RemotingCommand | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._done(work, message, "sent back")
            else:
                self.later(PAUSE_MS, lambda: self._send_back(work, message))

        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
        self.request(self.addresses[work.queue[1]], command, answered)


def number_of(body: bytes) -> int | None:
    """Return the number that a body names, None when it is none of ours."""
    head, _, rest = body.partition(b":")
    return int(head) if head.isdigit() and rest == bytes(len(rest)) else None


def note_read(history: History, at_ms: float, reader: str, broker: str, message: MessageExt) -> None:
    """Keep what somebody was given."""
    history.reads.append(
        Read(
            at_ms,
            reader,
            Place(broker, message.topic, message.queue_id, message.queue_offset),
            message.body,
            number_of(message.body),
            message.physical_offset,
            message.reconsume_times,
        )
    )
