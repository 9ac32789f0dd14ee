"""A broker on a memory store, and short functions to send it requests."""

from collections.abc import Generator
from typing import Any, TypeVar

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.store import CommitLogStore, ConfigFileStore, MemoryDisk, MemoryStore
from mqtrail.wire import (
    ConsumerData,
    HeartbeatData,
    Host,
    MessageExt,
    Peer,
    PeerId,
    ProducerData,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    Send,
    SendMessageHeader,
    SubscriptionData,
    UniqueIdFactory,
    decode_records,
    encode_properties,
)

Result = TypeVar("Result")
NOW_MS = 1_700_000_000_000
PEER = Peer(PeerId(1), Host("10.0.0.1", 40001))
OTHER = Peer(PeerId(2), Host("10.0.0.2", 40002))


def at_once(work: Generator[None, None, Result]) -> Result:
    """Run all slices of a generator; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def _answers(send: Send, peer: Peer, request: RemotingCommand) -> bool:
    return send.peer == peer.id and send.command.is_response and send.command.opaque == request.opaque


class Bench:
    """One broker, its store, its files and its clock, which the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = NOW_MS
        self.config = BrokerConfig(**settings)
        self.disk = MemoryDisk()
        self.files = ConfigFileStore(self.disk)
        self.store: CommitLogStore = MemoryStore()
        self._unique_id = UniqueIdFactory("127.0.0.1", 1, 1, lambda: NOW_MS).next
        self.broker = self._new_broker()
        self.flushes = True  # whether time makes durable what is in the store
        self._opaque = 0

    def _new_broker(self) -> Broker:
        return Broker(self.config, self.store, self.files, unique_id=self._unique_id, now_ms=self.now_ms)

    def restart(self) -> None:
        """Stop the broker and start another one on the same store and files."""
        self.broker.stop(self.now_ms)
        self.broker = self._new_broker()

    def request(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **fields: Any
    ) -> RemotingCommand:
        self._opaque += 1
        return RemotingCommand(code, ext or {}, body, opaque=self._opaque, **fields)

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", peer: Peer = PEER, **fields: Any
    ) -> RemotingCommand:
        """Send one request and return its only reply, without Sends to other peers; tick until it is complete."""
        request = self.request(code, ext, body, **fields)
        sends = self.broker.handle(peer, request, self.now_ms)
        while len(self.broker.jobs) and not any(_answers(send, peer, request) for send in sends):
            sends += self.broker.tick(self.now_ms)
        replies = [send.command for send in sends if _answers(send, peer, request)]
        assert len(replies) == 1, replies
        return replies[0]

    def tell(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", peer: Peer = PEER) -> list[Send]:
        """Send one request and return all Sends of the broker."""
        return self.broker.handle(peer, self.request(code, ext, body), self.now_ms)

    def send(
        self, topic: str = "orders", body: bytes = b"hi", *, queue_id: int = 0, **properties: str
    ) -> RemotingCommand:
        header = SendMessageHeader(
            "pg", topic, queue_id=queue_id, born_timestamp=self.now_ms, properties=encode_properties(properties)
        )
        return self.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)

    def pull_ext(
        self,
        topic: str = "orders",
        queue_offset: int = 0,
        *,
        group: str = "g",
        queue_id: int = 0,
        tags: str = "*",
        hold_ms: int = 0,
        count: int = 32,
    ) -> dict[str, str]:
        flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_ms else 0)
        return PullHeader(group, topic, queue_id, queue_offset, count, flags, 0, hold_ms, tags).to_ext()

    def pull(self, topic: str = "orders", queue_offset: int = 0, **fields: Any) -> RemotingCommand:
        return self.ask(RequestCode.PULL_MESSAGE, self.pull_ext(topic, queue_offset, **fields))

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        """Return all messages of a queue, straight from the store."""
        found = self.store.read(topic, queue_id, self.store.min_offset(topic, queue_id), 1000, 1 << 24)
        return decode_records(b"".join(found.records))

    def heartbeat(
        self, client_id: str = "c1", group: str = "g", *, peer: Peer = PEER, topics: dict[str, str] | None = None
    ) -> RemotingCommand:
        subscriptions = tuple(
            SubscriptionData.build(topic, tags, sub_version=self.now_ms) for topic, tags in (topics or {}).items()
        )
        consumer = ConsumerData(group, subscription_data_set=subscriptions)
        data = HeartbeatData(client_id, (ProducerData("pg"),), (consumer,))
        return self.ask(RequestCode.HEART_BEAT, body=data.encode(), peer=peer)

    def advance(self, ms: int) -> list[Send]:
        """Advance the clock, ticking whenever the broker asks for it."""
        sends: list[Send] = []
        end_ms = self.now_ms + ms
        while (next_ms := self.broker.next_tick_ms()) <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            sends += self.broker.tick(self.now_ms)
            if self.flushes:
                self.store.flush()
        self.now_ms = end_ms
        return sends
