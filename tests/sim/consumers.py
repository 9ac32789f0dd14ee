"""Consumers of a group that share its queues: assignment, pulls, offsets; here each message is processed independently.

A consumer queries the members of its group, takes its share of the queues, pulls, processes, sends failed messages
back, and commits up to the first unfinished record.
"""

from functools import partial

from mqtrail.wire import (
    ConsumerData,
    ConsumerGroupHeader,
    ConsumerIdList,
    HeartbeatData,
    MessageExt,
    MessageModel,
    PullHeader,
    PullSysFlag,
    QueryConsumerOffsetHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendBackHeader,
    SubscriptionData,
    UpdateConsumerOffsetHeader,
    decode_records,
    parse_delay_levels,
    retry_topic,
)

from .clients import PAUSE_MS, Client, Queue, note_read, number_of, place_of
from .engine import Engine
from .history import Handled, History, OffsetSeen, Place
from .network import Network
from .servers import DELAY_LEVELS

PULL_TIMEOUT_MS = 6_000.0
HOLD_MS = 3_000
REBALANCE_MS, COMMIT_MS = 2_000.0, 1_000.0
RECONSUME_MAX = 2
DELAYS_MS = parse_delay_levels(DELAY_LEVELS)


class Work:
    """One queue of a consumer: its next pull, unfinished records, and the offset to commit."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.live = True
        self.next_offset = -1  # not known yet
        self.open: dict[int, MessageExt] = {}  # by offset: pulled and unfinished

    def committable(self) -> int:
        return min(self.open, default=self.next_offset)


class Member(Client):
    """One member of a group of any kind. The attributes in capitals define the kind."""

    MODEL = MessageModel.CLUSTERING
    TAKES_RETRIES = True

    def __init__(
        self, engine: Engine, network: Network, history: History, name: str, namesrv: str, group: str, topic: str
    ) -> None:
        super().__init__(engine, network, history, name, namesrv)
        self.group = group
        self.topics = [topic, retry_topic(group)] if self.TAKES_RETRIES else [topic]
        self.reader = group  # the reader in the history: the group, or the member itself
        self._sub_version = int(engine.now_ms) + 1

    def heartbeat(self) -> HeartbeatData:
        subscriptions = tuple(
            SubscriptionData.build(topic, "*", sub_version=self._sub_version) for topic in self.topics
        )
        data = ConsumerData(self.group, message_model=self.MODEL, subscription_data_set=subscriptions)
        return HeartbeatData(self.name, (), (data,))

    def note(self, place: Place, number: int | None, as_: str, due_ms: float = 0.0) -> None:
        """Record the result of a message."""
        if number is not None:
            one = Handled(self.engine.now_ms, self.group, place, number, as_, due_ms, self.name)
            self.history.handled.append(one)


class Consumer(Member):
    """A member that pulls its queues. Subclass hooks plant bugs."""

    PULL_FLAGS = PullSysFlag.SUSPEND | PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION

    def __init__(
        self, engine: Engine, network: Network, history: History, name: str, namesrv: str, group: str, topic: str
    ) -> None:
        super().__init__(engine, network, history, name, namesrv, group, topic)
        self._works: dict[Queue, Work] = {}
        self._every(REBALANCE_MS, self._rebalance)
        self._every(COMMIT_MS, self._commit_all)

    # Assignment of queues.

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
            self.let_go(work)
        for queue in known:
            if queue in mine and queue not in self._works:
                self._works[queue] = work = self.work_on(queue)
                self.taken(work)

    def work_on(self, queue: Queue) -> Work:
        return Work(queue)

    def taken(self, work: Work) -> None:
        """Start with a queue."""
        self._ask_offset(work)

    def let_go(self, work: Work) -> None:
        """Stop with a queue."""
        self._commit(work)

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
        header = PullHeader(
            self.group,
            topic,
            queue_id,
            work.next_offset,
            self.engine.chance.choice((1, 4, 32)),
            int(self.PULL_FLAGS),
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
                work.open[message.queue_offset] = message
                place = place_of(work.queue[1], message)
                note_read(self.history, self.engine.now_ms, self.reader, place, message)
            self.pulled(work, int(next_offset))
            for message in messages:
                self._process(work, message)
        if work.next_offset != int(next_offset):
            work.next_offset = int(next_offset)
            self._pull(work)
        else:
            self.later(1, lambda: self._pull(work))

    def pulled(self, work: Work, next_offset: int) -> None:
        """Hook for the planted bug that commits too early."""

    def _process(self, work: Work, message: MessageExt) -> None:
        self.later(self.engine.between(1, 400), lambda: self._processed(work, message))

    def _processed(self, work: Work, message: MessageExt) -> None:
        if self.engine.happens(0.12):
            self._send_back(work, message)
        else:
            self._done(work, message, "done")

    def _done(self, work: Work, message: MessageExt, as_: str) -> None:
        work.open.pop(message.queue_offset, None)
        self.note(place_of(work.queue[1], message), number_of(message.body), as_)

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
        self.note(place_of(work.queue[1], message), number_of(message.body), "asked back", due_ms)

        def answered(reply: RemotingCommand | None) -> None:
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                self._done(work, message, "sent back")
            else:
                self.later(PAUSE_MS, lambda: self._send_back(work, message))

        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
        self.request(self.addresses[work.queue[1]], command, answered)
