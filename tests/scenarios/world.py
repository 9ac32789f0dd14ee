"""What a scenario's lines do: a broker on virtual time, driven by commands, speaking in lines.

    send peer=3 queue=orders/0 body=hi        a command: a verb and its arguments
    ----
    reply to 3: SUCCESS queue=orders/0@0      what the broker wants written, one line a Send

A Send that waits for a flush says so, and appears again when `flush` releases it.
"""

import shlex
from collections.abc import Callable
from typing import Any

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore, MessageStore
from mqtrail.wire import (
    HALF_TOPIC,
    AckHeader,
    BatchItem,
    ChangeInvisibleHeader,
    ConsumerData,
    EndTransactionHeader,
    HeartbeatData,
    Host,
    LockBatchBody,
    LockedQueues,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSysFlag,
    Peer,
    PeerId,
    PopHandle,
    PopHeader,
    PopResponseHeader,
    ProducerData,
    PullHeader,
    PullSysFlag,
    RecallHandle,
    RecallMessageHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SendBackHeader,
    SendMessageHeader,
    SubscriptionData,
    UniqueIdFactory,
    decode_records,
    decode_start_offsets,
    decode_trace,
    encode_batch,
    encode_properties,
    topic_of_marker,
)

START_MS = 1_700_000_000_000
Args = dict[str, str]


class World:
    """One broker; requests, to match its replies; replies that wait for a flush."""

    def __init__(self, make_store: Callable[[], MessageStore] = MemoryStore) -> None:
        self._make_store = make_store
        self._now_ms = START_MS
        self._disk = MemoryDisk()
        self._store = make_store()
        self._config = BrokerConfig()
        self._broker = self._new_broker()
        self._asked: dict[tuple[int, int], int] = {}
        self._opaque = 0
        self._waiting: list[Send] = []
        self._handles: dict[str, tuple[str, PopHandle]] = {}
        self._handle = ""  # of the last timer message
        self._asked_by_broker: dict[int, int] = {}  # peer -> opaque of the last request to it
        self._store.flush()

    def _new_broker(self) -> Broker:
        ids = UniqueIdFactory("127.0.0.1", 1, 1, lambda: START_MS)
        return Broker(self._config, self._store, ConfigFileStore(self._disk), unique_id=ids.next, now_ms=self._now_ms)

    def do(self, line: str) -> list[str]:
        """Run one command; return its output lines."""
        verb, *words = shlex.split(line)
        args = dict(word.split("=", 1) for word in words)
        action: Callable[[Args], list[str]] = getattr(self, f"_do_{verb}")
        return action(args)

    # Commands.

    def _do_broker(self, args: Args) -> list[str]:
        """Start over with settings, on an empty store."""
        settings: dict[str, Any] = {}
        for name, text in args.items():
            settings[name] = text == "true" if text in ("true", "false") else int(text) if text.isdigit() else text
        self._config = BrokerConfig(**settings)
        self._disk, self._store, self._waiting = MemoryDisk(), self._make_store(), []
        self._broker = self._new_broker()
        return []

    def _do_restart(self, args: Args) -> list[str]:
        self._broker.stop(self._now_ms)
        self._broker = self._new_broker()
        return []

    def _do_send(self, args: Args) -> list[str]:
        topic, queue_id = _queue(args["queue"])
        header = SendMessageHeader(
            args.get("group", "pg"),
            topic,
            queue_id=queue_id,
            born_timestamp=self._now_ms,
            properties=encode_properties(_properties(args)),
            reconsume_times=int(args.get("reconsume_times", "0")),
        )
        return self._ask(args, RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), args.get("body", "").encode())

    def _do_batch(self, args: Args) -> list[str]:
        topic, queue_id = _queue(args["queue"])
        header = SendMessageHeader("pg", topic, queue_id=queue_id, born_timestamp=self._now_ms, batch=True)
        items = [BatchItem(body.encode()) for body in args["bodies"].split(",")]
        return self._ask(args, RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), encode_batch(items))

    def _do_pull(self, args: Args) -> list[str]:
        topic, queue_id = _queue(args["queue"])
        hold_ms = int(args.get("hold_ms", "0"))
        flags = PullSysFlag.SUSPEND if hold_ms else 0
        if "tags" in args or "heartbeat" not in args:
            flags |= PullSysFlag.SUBSCRIPTION
        if "commit" in args:
            flags |= PullSysFlag.COMMIT_OFFSET
        header = PullHeader(
            args["group"],
            topic,
            queue_id,
            int(args.get("from", "0")),
            int(args.get("count", "32")),
            flags,
            int(args.get("commit", "0")),
            hold_ms,
            args.get("tags", "*"),
        )
        return self._ask(args, RequestCode.PULL_MESSAGE, header.to_ext())

    def _do_end(self, args: Args) -> list[str]:
        """End the transaction of a half message, given by its queue offset: commit, rollback or unknown."""
        found = self._store.read(HALF_TOPIC, 0, int(args["half"]), 1, 1)
        place = decode_records(found.records[0])[0].physical_offset
        outcome = {
            "commit": MessageSysFlag.TRANSACTION_COMMIT,
            "rollback": MessageSysFlag.TRANSACTION_ROLLBACK,
            "unknown": 0,
        }[args["as"]]
        header = EndTransactionHeader(args.get("group", "pg"), int(args["half"]), place, outcome, "ID")
        header.from_transaction_check = args.get("check") == "true"
        return self._ask(args, RequestCode.END_TRANSACTION, header.to_ext())

    def _do_recall(self, args: Args) -> list[str]:
        """Recall the last timer message that was sent."""
        header = RecallMessageHeader(args["topic"], args.get("handle", self._handle), "pg")
        return self._ask(args, RequestCode.RECALL_MESSAGE, header.to_ext())

    def _do_reply(self, args: Args) -> list[str]:
        """Send a reply to a request message."""
        properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "C1"}
        if "to" in args:
            properties["REPLY_TO_CLIENT"] = args["to"]
        header = SendMessageHeader("pg", "DefaultCluster_REPLY_TOPIC", queue_id=0, born_timestamp=self._now_ms)
        header.properties = encode_properties(properties)
        return self._ask(args, RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext_v2(), args["body"].encode())

    def _do_answer(self, args: Args) -> list[str]:
        """A client replies to the broker's last request to it."""
        peer = Peer(PeerId(int(args["peer"])), Host("10.0.0.1", 40_000 + int(args["peer"])))
        code = ResponseCode[args["code"]]
        reply = RemotingCommand(code, {}, b"", opaque=self._asked_by_broker[peer.id], flag=1)
        return self._lines(self._broker.handle(peer, reply, self._now_ms))

    def _do_offsets(self, args: Args) -> list[str]:
        """Show the committed offsets of a group."""
        offsets = self._broker.offsets
        topics = sorted(topic for group, topic in offsets if group == args["group"])
        return [f"{topic} {offsets.queues(args['group'], topic)}" for topic in topics]

    def _do_heartbeat(self, args: Args) -> list[str]:
        subscriptions = []
        for part in filter(None, args.get("topics", "").split(",")):
            topic, _, tags = part.partition(":")
            subscriptions.append(SubscriptionData.build(topic, tags or "*", sub_version=self._now_ms))
        consumers: tuple[ConsumerData, ...] = ()
        if "consumer" in args:
            model = MessageModel(args.get("model", "CLUSTERING"))
            consumers = (
                ConsumerData(args["consumer"], message_model=model, subscription_data_set=tuple(subscriptions)),
            )
        producers = (ProducerData(args["producer"]),) if "producer" in args else ()
        return self._ask(
            args, RequestCode.HEART_BEAT, body=HeartbeatData(args["client"], producers, consumers).encode()
        )

    def _do_send_back(self, args: Args) -> list[str]:
        topic, rest = args["message"].split("/")
        queue_id, queue_offset = rest.split("@")
        found = self._store.read(topic, int(queue_id), int(queue_offset), 1, 1)
        physical_offset = decode_records(found.records[0])[0].physical_offset if found.records else 1 << 40
        header = SendBackHeader(physical_offset, args["group"], int(args.get("level", "0")))
        if "max" in args:
            header.max_reconsume_times = int(args["max"])
        return self._ask(args, RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())

    def _do_lock(self, args: Args) -> list[str]:
        return self._ask(args, RequestCode.LOCK_BATCH_MQ, body=self._lock_body(args))

    def _do_unlock(self, args: Args) -> list[str]:
        return self._ask(args, RequestCode.UNLOCK_BATCH_MQ, body=self._lock_body(args))

    def _lock_body(self, args: Args) -> bytes:
        queues = [MessageQueue(topic, "broker-a", number) for topic, number in map(_queue, args["queues"].split(","))]
        return LockBatchBody(args["group"], args["client"], tuple(queues)).encode()

    def _do_pop(self, args: Args) -> list[str]:
        """Pop from one queue or all of a topic. Each message's handle is kept under its body for ack and hide."""
        topic, queue_id = _queue(args["queue"]) if "/" in args["queue"] else (args["queue"], -1)
        header = PopHeader(
            args["group"],
            topic,
            queue_id,
            int(args.get("count", "32")),
            int(args.get("invisible_ms", "60000")),
            int(args.get("hold_ms", "0")),
            self._now_ms,
            0,
            "TAG",
            args.get("tags", "*"),
            order=args.get("order") == "true",
            attempt_id=args.get("attempt"),
        )
        return self._ask(args, RequestCode.POP_MESSAGE, header.to_ext())

    def _do_ack(self, args: Args) -> list[str]:
        topic, handle = self._handles[args["message"]]
        offset = handle.queue_offset or 0
        header = AckHeader(args["group"], topic, handle.queue_id, handle.encode(), offset)
        return self._ask(args, RequestCode.ACK_MESSAGE, header.to_ext())

    def _do_hide(self, args: Args) -> list[str]:
        topic, handle = self._handles[args["message"]]
        offset, ms = handle.queue_offset or 0, int(args["ms"])
        header = ChangeInvisibleHeader(args["group"], topic, handle.queue_id, handle.encode(), offset, ms)
        return self._ask(args, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())

    def _do_request(self, args: Args) -> list[str]:
        """Send any request: code by name, other arguments are ext fields."""
        known = ("peer", "code", "body", "version", "oneway")
        ext = {name: text for name, text in args.items() if name not in known}
        code = RequestCode[args["code"]] if not args["code"].isdigit() else int(args["code"])
        return self._ask(args, code, ext, args.get("body", "").encode())

    def _do_disconnect(self, args: Args) -> list[str]:
        return self._lines(self._broker.disconnected(PeerId(int(args["peer"]))))

    def _do_advance(self, args: Args) -> list[str]:
        """Let time pass; tick exactly when the broker requests it."""
        end_ms = self._now_ms + int(args["ms"])
        lines = []
        while (next_ms := self._broker.next_tick_ms()) <= end_ms:
            self._now_ms = max(self._now_ms, next_ms)
            for line in self._lines(self._broker.tick(self._now_ms)):
                lines.append(f"at {self._now_ms - START_MS} ms: {line}")
        self._now_ms = end_ms
        return lines

    def _do_flush(self, args: Args) -> list[str]:
        flushed = self._store.flush()
        released = [send for send in self._waiting if send.after_offset <= flushed]
        self._waiting = [send for send in self._waiting if send.after_offset > flushed]
        return [f"flushed to {flushed}", *(self._line(send) for send in released)]

    def _do_queue(self, args: Args) -> list[str]:
        """Show the messages of a queue."""
        topic, queue_id = _queue(args["queue"])
        found = self._store.read(topic, queue_id, self._store.min_offset(topic, queue_id), 100, 1 << 20)
        return [_message(message, properties=True) for message in decode_records(b"".join(found.records))]

    def _do_trace(self, args: Args) -> list[str]:
        """Show the broker's own records in the trace topic."""
        found = self._store.read(self._config.trace_topic, 0, 0, 100, 1 << 20)
        lines = []
        for message in decode_records(b"".join(found.records)):
            records, rejects = decode_trace(message.body)
            assert not rejects
            lines += [f"keys={'+'.join(message.keys) or 'none'} {record!r}" for record in records]
        return lines

    def _do_topics(self, args: Args) -> list[str]:
        """Show the topics except the broker's own."""
        return [
            f"{topic.topic} read={topic.read_queue_nums} write={topic.write_queue_nums} perm={topic.perm}"
            for name, topic in sorted(self._broker.topics.all().items())
            if not self._broker.topics.is_system(name)
        ]

    # Replies.

    def _ask(self, args: Args, code: int, ext: Args | None = None, body: bytes = b"") -> list[str]:
        peer = Peer(PeerId(int(args["peer"])), Host("10.0.0.1", 40_000 + int(args["peer"])))
        self._opaque += 1
        flag = 2 if args.get("oneway") == "true" else 0
        version = int(args.get("version", "479"))
        self._asked[peer.id, self._opaque] = code
        command = RemotingCommand(code, ext or {}, body, opaque=self._opaque, flag=flag, version=version)
        return self._lines(self._broker.handle(peer, command, self._now_ms))

    def _lines(self, sends: list[Send]) -> list[str]:
        lines = []
        for send in sends:
            if self._config.sync_flush and send.after_offset > self._store.flushed_offset:
                self._waiting.append(send)
                lines.append(f"once flushed to {send.after_offset}: {self._line(send)}")
            else:
                lines.append(self._line(send))
        return lines

    def _line(self, send: Send) -> str:
        command = send.command
        if not command.is_response:
            kind = "oneway" if command.is_oneway else "request"
            if not command.is_oneway:
                self._asked_by_broker[send.peer] = command.opaque
            return f"{kind} to {send.peer}: {RequestCode(command.code).name} {_ext(command.ext)}".rstrip()
        code = self._asked[send.peer, command.opaque]
        parts = [f"reply to {send.peer}: {ResponseCode(command.code).name}"]
        if command.remark:
            parts.append(f"({command.remark})")
        if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            if command.code == ResponseCode.SUCCESS:
                parts.append(f"queue={command.ext['queueId']}@{command.ext['queueOffset']}")
            if "recallHandle" in command.ext:
                self._handle = command.ext["recallHandle"]
                parts.append(f"recall at {RecallHandle.decode(self._handle).deliver_ms - START_MS} ms")
        elif code == RequestCode.PULL_MESSAGE:
            if command.ext:
                names = ("nextBeginOffset", "minOffset", "maxOffset")
                parts.append("next={} range=[{}, {})".format(*(command.ext[name] for name in names)))
            parts += [_message(message) for message in decode_records(command.body)]
        elif code == RequestCode.POP_MESSAGE:
            parts += self._popped(command)
        elif code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            pass  # its times depend on the clock
        elif code == RequestCode.LOCK_BATCH_MQ:
            locked = LockedQueues.decode(command.body).locked
            parts.append(",".join(f"{queue.topic}/{queue.queue_id}" for queue in locked) or "none")
        else:
            parts.append(_ext(command.ext))
            parts.append(command.body.decode())
        return " ".join(filter(None, parts))

    def _popped(self, command: RemotingCommand) -> list[str]:
        """Keep the handles of popped messages; return the output."""
        if command.code != ResponseCode.SUCCESS:
            return []
        header = PopResponseHeader.from_ext(command.ext)
        starts = decode_start_offsets(header.start_offset_info or "")
        group = "g"
        lines = []
        for message in decode_records(command.body):
            text = message.properties.get("POP_CK")
            if text is not None:
                handle = PopHandle.decode(text)
            else:
                handle = PopHandle(
                    starts["0", message.queue_id],
                    header.pop_time,
                    header.invisible_time,
                    header.revive_qid,
                    "0",
                    "broker-a",
                    message.queue_id,
                    message.queue_offset,
                )
            topic = topic_of_marker(handle.marker, message.topic, group)
            self._handles[message.body.decode()] = (topic, handle)
            lines.append(_message(message) + (" (retried)" if text is not None else ""))
        return [*lines, f"left={header.rest_num}"] + (
            [f"counts={header.order_count_info}"] if header.order_count_info else []
        )


def _queue(text: str) -> tuple[str, int]:
    topic, _, queue_id = text.rpartition("/")
    return topic, int(queue_id)


def _properties(args: Args) -> dict[str, str]:
    names = {"tags": "TAGS", "keys": "KEYS", "delay": "DELAY", "wait": "WAIT", "id": "UNIQ_KEY"}
    properties = {wire: args[name] for name, wire in names.items() if name in args}
    for pair in filter(None, args.get("properties", "").split(",")):
        name, _, value = pair.partition(":")
        properties[name] = value
    return properties


def _ext(ext: Args) -> str:
    return " ".join(f"{name}={text}" for name, text in sorted(ext.items()))


_SHOWN = (
    "DELAY",
    "REAL_TOPIC",
    "REAL_QID",
    "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TIMER_ROLL_TIMES",
    "TIMER_DEL_UNIQKEY",
    "UNIQ_KEY",
    "WAIT",
)


def _message(message: MessageExt, *, properties: bool = False) -> str:
    text = f"{message.topic}/{message.queue_id}@{message.queue_offset} {message.body.decode()!r}"
    if message.reconsume_times:
        text += f" reconsume_times={message.reconsume_times}"
    if message.sys_flag & MessageSysFlag.TRANSACTION_MASK:
        text += f" transaction={message.sys_flag & MessageSysFlag.TRANSACTION_MASK:#x}"
    if properties:
        text += "".join(f" {name}={message.properties[name]}" for name in _SHOWN if name in message.properties)
    return text
