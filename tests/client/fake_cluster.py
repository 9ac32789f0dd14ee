"""A name server and brokers for the client's tests, with failures that a test scripts.

`script` of a broker or name server is called before the usual code: it returns a reply, or SILENT for no reply, HANG_UP
to close the connection, or None for the usual code.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mqtrail.net import Server, ServerConnection, next_command
from mqtrail.wire import (
    RETRY_PREFIX,
    BrokerData,
    ClusterInfo,
    ConsumerIdList,
    HeartbeatData,
    Host,
    LockBatchBody,
    LockedQueues,
    MessageExt,
    MessageQueue,
    QueueData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicList,
    TopicRouteData,
    decode_batch,
    decode_properties,
    dlq_topic,
    encode_command,
    encode_properties,
    encode_record,
    offset_msg_id,
    open_record,
)

SILENT = RemotingCommand(-1)
HANG_UP = RemotingCommand(-2)

Script = Callable[[RemotingCommand], RemotingCommand | None]


def refuse(code: int, remark: str = "scripted") -> Script:
    """Answer everything with an error code."""
    return lambda command: RemotingCommand.reply_to(command, code, remark)


def on_code(code: int, then: Script | RemotingCommand) -> Script:
    """Script one request code and leave the others alone."""

    def script(command: RemotingCommand) -> RemotingCommand | None:
        if command.code != code:
            return None
        return then if isinstance(then, RemotingCommand) else then(command)

    return script


class FakeServer:
    """An Application: reads commands, calls the script, then `serve`."""

    def __init__(self, port: int = 0) -> None:
        self.script: Script = lambda command: None
        self.seen: list[RemotingCommand] = []
        self.connections: list[ServerConnection] = []
        self.bind(port)

    def bind(self, port: int) -> None:
        """Listen at a port from the server's next start on; 0: any free one."""
        self.server = Server(self)
        self.server.bind("127.0.0.1", port)

    @property
    def address(self) -> str:
        return self.server.address

    def codes(self) -> list[int]:
        return [command.code for command in self.seen]

    def of(self, code: int) -> list[RemotingCommand]:
        return [command for command in self.seen if command.code == code]

    def connected(self, connection: ServerConnection) -> None:
        self.connections.append(connection)

    def disconnected(self, connection: ServerConnection) -> None:
        self.connections.remove(connection)

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        while start < end:
            command, start = next_command(buffer, start, end)
            if command is None:
                break
            if command.is_response:
                self.seen.append(command)
                continue
            self.seen.append(command)
            reply = self.script(command) or self.serve(connection, command)
            if reply is HANG_UP:
                connection.close()
            elif reply is not None and reply is not SILENT and not command.is_oneway:
                connection.write(encode_command(reply))
        return start

    def serve(self, connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        return RemotingCommand.reply_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "fake")


class FakeNameServer(FakeServer):
    """Routes for `topics`: topic -> queue count on each broker; or TBW102 alone."""

    def __init__(self, brokers: "list[FakeBroker]", port: int = 0) -> None:
        super().__init__(port)
        self.brokers = brokers
        self.topics: dict[str, int] = {}

    def serve(self, connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            count = self.topics.get(command.ext["topic"])
            if count is None:
                return RemotingCommand.reply_to(command, ResponseCode.TOPIC_NOT_EXIST, "no route")
            return RemotingCommand.reply_to(command, 0, body=self.route(count).encode(strict=True))
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {broker.name: BrokerData(broker.name, {0: broker.address}, "C") for broker in self.brokers}
            return RemotingCommand.reply_to(command, 0, body=ClusterInfo(table, {"C": tuple(table)}).encode())
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return RemotingCommand.reply_to(command, 0, body=TopicList(tuple(self.topics)).encode())
        return super().serve(connection, command)

    def route(self, count: int) -> TopicRouteData:
        return TopicRouteData(
            tuple(QueueData(broker.name, count, count, 6) for broker in self.brokers),
            tuple(BrokerData(broker.name, {0: broker.address}, "C") for broker in self.brokers),
        )


@dataclass(slots=True)
class HeldPull:
    connection: ServerConnection
    command: RemotingCommand


@dataclass(slots=True)
class FakeQueue:
    records: list[bytes] = field(default_factory=list)
    first: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class FakeBroker(FakeServer):
    """A broker in memory: send, batch, pull with waiting, offsets, groups, send-back without a delay, locks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, set[str]] = {}
        self.locks: dict[tuple[str, int], str] = {}
        self.held: list[HeldPull] = []
        self.position = 0
        self.trace_on = "true"

    def serve(self, connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        ext = command.ext
        match command.code:
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self.send(command)
            case RequestCode.PULL_MESSAGE | RequestCode.LITE_PULL_MESSAGE:
                return self.pull(connection, command)
            case RequestCode.HEART_BEAT:
                beat = HeartbeatData.decode(command.body)
                for consumer in beat.consumer_data_set:
                    self.groups.setdefault(consumer.group_name, set()).add(beat.client_id)
                return RemotingCommand.reply_to(command, 0)
            case RequestCode.UNREGISTER_CLIENT:
                self.groups.get(ext.get("consumerGroup", ""), set()).discard(ext["clientID"])
                return RemotingCommand.reply_to(command, 0)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = sorted(self.groups.get(ext["consumerGroup"], ()))
                return RemotingCommand.reply_to(command, 0, body=ConsumerIdList(tuple(members)).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = self.offsets.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
                if offset is None:
                    return RemotingCommand.reply_to(command, ResponseCode.QUERY_NOT_FOUND, "not found")
                return RemotingCommand.reply_to(command, 0, ext={"offset": str(offset)})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                self.offsets[key] = int(ext["commitOffset"])
                return RemotingCommand.reply_to(command, 0)
            case RequestCode.GET_MAX_OFFSET:
                return RemotingCommand.reply_to(command, 0, ext={"offset": str(self.queue(ext).end)})
            case RequestCode.GET_MIN_OFFSET:
                return RemotingCommand.reply_to(command, 0, ext={"offset": str(self.queue(ext).first)})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                # Every record is stored at 2 000.
                kept = self.queue(ext)
                place = kept.first if int(ext["timestamp"]) <= 2_000 else kept.end
                return RemotingCommand.reply_to(command, 0, ext={"offset": str(place)})
            case RequestCode.CHECK_CLIENT_CONFIG:
                return RemotingCommand.reply_to(command, 0)
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                return self.send_back(command)
            case RequestCode.LOCK_BATCH_MQ:
                wanted = LockBatchBody.decode(command.body)
                locked = [queue for queue in wanted.mq_set if self._lock(queue, wanted.client_id)]
                return RemotingCommand.reply_to(command, 0, body=LockedQueues(tuple(locked)).encode())
            case RequestCode.UNLOCK_BATCH_MQ:
                for queue in LockBatchBody.decode(command.body).mq_set:
                    self.locks.pop((queue.topic, queue.queue_id), None)
                return RemotingCommand.reply_to(command, 0)
        return super().serve(connection, command)

    def queue(self, ext: dict[str, str]) -> FakeQueue:
        return self.queues.setdefault((ext["topic"], int(ext["queueId"])), FakeQueue())

    def _lock(self, queue: MessageQueue, client_id: str) -> bool:
        return self.locks.setdefault((queue.topic, queue.queue_id), client_id) == client_id

    def send(self, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext
        topic, queue_id = ext["b"], int(ext["e"])
        if topic.startswith(RETRY_PREFIX) and int(ext["j"]) > int(ext.get("l", 16)):
            topic, queue_id = dlq_topic(topic.removeprefix(RETRY_PREFIX)), 0
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            items = [(item.body, item.properties.decode()) for item in decode_batch(command.body)]
        else:
            items = [(command.body, ext["i"])]
        ids, first = [], self.queues.setdefault((topic, queue_id), FakeQueue()).end
        for body, properties in items:
            ids.append(self.store(topic, queue_id, body, properties, int(ext["f"]), int(ext["j"])))
        reply = {"msgId": ",".join(ids), "queueId": str(queue_id), "queueOffset": str(first)}
        reply |= {"MSG_REGION": "TestRegion", "TRACE_ON": self.trace_on}
        return RemotingCommand.reply_to(command, 0, ext=reply)

    def store(
        self, topic: str, queue_id: int, body: bytes, properties: str, sys_flag: int = 0, reconsume_times: int = 0
    ) -> str:
        """Append one record and wake the pulls that wait for it; return its offset id."""
        queue = self.queues.setdefault((topic, queue_id), FakeQueue())
        host = Host.parse(self.address)
        properties += encode_properties({"MSG_REGION": "TestRegion", "TRACE_ON": self.trace_on})
        record = encode_record(
            topic,
            body,
            properties.encode(),
            queue_id=queue_id,
            queue_offset=queue.end,
            physical_offset=self.position,
            born_timestamp_ms=1_000,
            born_host=Host("127.0.0.1", 1).packed(),
            store_timestamp_ms=2_000,
            store_host=host.packed(),
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
        )
        queue.records.append(record)
        found = offset_msg_id(host, self.position)
        self.position += len(record)
        held, self.held = self.held, []
        for pull in held:
            reply = self.pull(pull.connection, pull.command)
            if reply is not None:
                pull.connection.write(encode_command(reply))
        return found

    def pull(self, connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        ext = command.ext
        queue = self.queue(ext)
        offset = int(ext["queueOffset"])
        code, following, body = int(ResponseCode.PULL_NOT_FOUND), offset, b""
        if not queue.first <= offset <= queue.end:
            code = int(ResponseCode.PULL_OFFSET_MOVED)
            following = queue.first if offset < queue.first else queue.end
        elif offset < queue.end:
            count = min(int(ext["maxMsgNums"]), 32)
            records = queue.records[offset - queue.first : offset - queue.first + count]
            code, following, body = 0, offset + len(records), b"".join(records)
        elif int(ext["sysFlag"]) & 2:
            self.held.append(HeldPull(connection, command))
            return None
        reply = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": str(queue.first),
            "maxOffset": str(queue.end),
        }
        return RemotingCommand.reply_to(command, code, "scripted", reply, body)

    def send_back(self, command: RemotingCommand) -> RemotingCommand:
        """Write the copy at once, so that a test does not wait ten seconds."""
        ext = command.ext
        for queue in list(self.queues.values()):
            for record in queue.records:
                message = open_record(record)
                if message.physical_offset == int(ext["offset"]):
                    properties = {"RETRY_TOPIC": message.topic} | message.properties
                    times = message.reconsume_times
                    kind = "%DLQ%" if int(ext["delayLevel"]) < 0 or times >= 16 else "%RETRY%"
                    text = encode_properties(properties)
                    sys_flag = 0 if message.undecodable is None else message.sys_flag
                    self.store(kind + ext["group"], 0, message.body, text, sys_flag, times + 1)
                    return RemotingCommand.reply_to(command, 0)
        return RemotingCommand.reply_to(command, ResponseCode.SYSTEM_ERROR, "no such record")

    def stored(self, topic: str) -> list[bytes]:
        """Return the bodies of a topic on this broker, queue by queue."""
        return [message.body for message in self.messages(topic)]

    def messages(self, topic: str) -> list[MessageExt]:
        return [
            open_record(record)
            for (name, _), queue in sorted(self.queues.items())
            if name == topic
            for record in queue.records
        ]

    def sent_properties(self) -> list[dict[str, str]]:
        return [decode_properties(command.ext["i"]) for command in self.of(RequestCode.SEND_MESSAGE_V2)]


@dataclass
class FakeCluster:
    name_server: FakeNameServer
    brokers: list[FakeBroker]

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    def bodies(self, topic: str) -> list[bytes]:
        return [body for broker in self.brokers for body in broker.stored(topic)]

    def broker(self, name: str) -> FakeBroker:
        return next(broker for broker in self.brokers if broker.name == name)


@asynccontextmanager
async def fake_cluster(topics: dict[str, int] | None = None, broker_count: int = 1) -> AsyncIterator[FakeCluster]:
    """Run a cluster of brokers broker-a, broker-b, …; each topic has the given number of queues on each of them."""
    brokers = [FakeBroker(f"broker-{letter}") for letter in "abcdef"[:broker_count]]
    name_server = FakeNameServer(brokers)
    name_server.topics = {"TBW102": 8} | (topics or {})
    servers: list[FakeServer] = [name_server, *brokers]
    for one in servers:
        await one.server.start()
    try:
        yield FakeCluster(name_server, brokers)
    finally:
        for one in servers:
            await one.server.stop()
