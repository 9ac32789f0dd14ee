"""Producers: send one message at a time to a chosen queue, and retry elsewhere after a failure.

A producer gives up after some attempts: then the message may be stored or not.
"""

from mqtrail.wire import (
    BatchItem,
    CheckTransactionStateHeader,
    EndTransactionHeader,
    HeartbeatData,
    MessageSysFlag,
    ProducerData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    decode_records,
    encode_batch,
    encode_properties,
    parse_delay_levels,
    parse_offset_msg_id,
)

from .clients import PAUSE_MS, Client
from .engine import Engine
from .history import History, Place, Sent
from .network import Network
from .servers import DELAY_LEVELS

ATTEMPTS = 3
KINDS = {"plain": 12, "delayed": 3, "timer": 2, "transaction": 3, "batch": 2}  # sends per message
TIMER_MS = (600, 7_000)
DELAYS_MS = parse_delay_levels(DELAY_LEVELS)


class Producer(Client):
    """Sends messages one after the other until it is stopped."""

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
        """Run the local transaction, and send its result to the broker, or wait for the broker's check."""
        if not one.decided:  # the broker may have checked an earlier attempt
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
        """CHECK_TRANSACTION_STATE: repeat the decision; roll back a message that this producer gave up."""
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
