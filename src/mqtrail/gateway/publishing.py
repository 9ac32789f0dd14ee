"""Publishing: messages of one request become one send to the broker.

With an Idempotency-Key a request may be repeated, also after a crash of the server: the key is among the KEYS of each
message, so the index of the store finds what is stored already, and only the rest is sent. Where a message is found, a
pull of its place confirms that it is durable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.wire import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    TOOLS_CONSUMER_GROUP,
    BatchItem,
    Host,
    Message,
    MessageExt,
    MQError,
    Pub,
    PullHeader,
    PullSysFlag,
    QueryMessageHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    SendResponseHeader,
    encode_batch,
    encode_properties,
    parse_offset_msg_id,
    read_records,
    refusal_for,
)

from .caller import ASK_TIMEOUT_MS, Caller, problem_of_error, succeed
from .config import PRODUCER_GROUP
from .problems import Problem
from .shapes import PublishedMessage
from .tracer import Tracer

PROPERTY_IDEMPOTENCY: Final = "MQTRAIL_IDEMPOTENCY"  # place of the message in its request, and the request's digest
TOKEN_PREFIX: Final = "idempotency:"  # of the word among KEYS that the index finds
IDEMPOTENT_MAX: Final = 32  # messages of a request with a key: one query of the index returns at least 64
KEPT_MS: Final = 24 * 3_600_000  # a key is looked for among the messages of this time
ANY_QUEUE: Final = -1  # the broker chooses
_KEY: Final = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Repeatable:
    """The Idempotency-Key of a request, and a digest of its messages."""

    key: str
    digest: str

    @classmethod
    def of(cls, key: str, messages: Sequence[Message]) -> Repeatable:
        """Problem: the key has another form, or there are too many messages."""
        if not _KEY.fullmatch(key):
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"Idempotency-Key: found {key[:40]!r}, expected 1 to 200 visible ASCII characters: use a UUID",
            )
        if len(messages) > IDEMPOTENT_MAX:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"found {len(messages)} messages with an Idempotency-Key, expected at most {IDEMPOTENT_MAX}: publish "
                "them in parts, each with its own key",
            )
        digest = hashlib.sha256()
        for message in messages:
            for part in (message.body, repr((message.tags, message.keys, sorted(message.properties.items()))).encode()):
                digest.update(len(part).to_bytes(8, "big") + part)
        return cls(key, digest.hexdigest()[:32])

    @property
    def token(self) -> str:
        return TOKEN_PREFIX + self.key

    def mark(self, message: Message, place: int) -> Message:
        """Return the message with the key."""
        keys = f"{message.keys} {self.token}" if message.keys else self.token
        return replace(
            message, keys=keys, properties={**message.properties, PROPERTY_IDEMPOTENCY: f"{place}:{self.digest}"}
        )


class MessageSender:
    """Sends messages to the broker. next_id: makes message ids. on_stored: called with topic and queue of messages."""

    def __init__(self, caller: Caller, tracer: Tracer, next_id: Callable[[], str]) -> None:
        self._caller = caller
        self._tracer = tracer
        self._next_id = next_id
        self._under_way: set[tuple[str, str]] = set()
        self.on_stored: Callable[[str, int], None] = lambda topic, queue_id: None

    async def publish(
        self, messages: Sequence[Message], repeatable: Repeatable | None, host: Host, queue_id: int = ANY_QUEUE
    ) -> list[PublishedMessage]:
        """Send messages of one topic; return when they are durable. queue_id: only without repeatable. Problem."""
        try:
            if repeatable is None:
                return await self._send(messages, host, queue_id)
            return await self._send_once(messages, repeatable, host)
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error

    async def _send_once(
        self, messages: Sequence[Message], repeatable: Repeatable, host: Host
    ) -> list[PublishedMessage]:
        """Send those messages of a request that are not stored yet."""
        name = (messages[0].topic, repeatable.key)
        if name in self._under_way:
            detail = f"found a request with the Idempotency-Key {repeatable.key!r} in progress: repeat this one later"
            raise Problem(HTTPStatus.CONFLICT, detail)
        self._under_way.add(name)
        try:
            found = await self._find(messages[0].topic, repeatable, host)
            missing = [place for place in range(len(messages)) if place not in found]
            if missing:
                sent = await self._send([repeatable.mark(messages[place], place) for place in missing], host)
                found.update(zip(missing, sent, strict=True))
            return [found[place] for place in range(len(messages))]
        finally:
            self._under_way.discard(name)

    async def _find(self, topic: str, repeatable: Repeatable, host: Host) -> dict[int, PublishedMessage]:
        """Return what is stored of a request, by place. Problem: the key belongs to other messages."""
        asked_ms = now_ms()
        header = QueryMessageHeader(topic, repeatable.token, 2 * IDEMPOTENT_MAX, asked_ms - KEPT_MS, asked_ms + KEPT_MS)
        reply = await self._caller.ask(
            RemotingCommand(RequestCode.QUERY_MESSAGE, header.to_ext()), host, ASK_TIMEOUT_MS
        )
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        found: dict[int, PublishedMessage] = {}
        for message in read_records(reply.body):
            place, _, digest = message.properties.get(PROPERTY_IDEMPOTENCY, "").partition(":")
            if not place.isdecimal():
                continue
            if digest != repeatable.digest:
                detail = (
                    f"found the Idempotency-Key {repeatable.key!r} on other messages of {topic}, expected the same "
                    "messages: use a new key for a new request"
                )
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
            await self._confirm(message, host)
            found[int(place)] = PublishedMessage(message.msg_id, message.queue_id, message.queue_offset)
        return found

    async def _confirm(self, message: MessageExt, host: Host) -> None:
        """Return when a stored message is durable: the reply to a pull waits for that. Refusal."""
        header = PullHeader(
            TOOLS_CONSUMER_GROUP,
            message.topic,
            message.queue_id,
            message.queue_offset,
            1,
            PullSysFlag.SUBSCRIPTION,
            0,
            0,
            subscription="*",
        )
        await succeed(self._caller, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()), host)

    async def _send(self, messages: Sequence[Message], host: Host, queue_id: int = ANY_QUEUE) -> list[PublishedMessage]:
        started_ms = now_ms()
        topic = messages[0].topic
        ids = [self._next_id() for _ in messages]
        texts = [
            encode_properties({PROPERTY_UNIQ_KEY: msg_id} | message.wire_properties())
            for msg_id, message in zip(ids, messages, strict=True)
        ]
        header = SendMessageHeader(PRODUCER_GROUP, topic, queue_id=queue_id, born_timestamp=started_ms)
        if len(messages) == 1:
            header.properties = texts[0]
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), messages[0].body)
        else:
            items = [BatchItem(one.body, text.encode()) for one, text in zip(messages, texts, strict=True)]
            header.batch = True
            header.properties = encode_properties({PROPERTY_WAIT: "true"})
            command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), encode_batch(items))
        reply = await succeed(self._caller, command, host)
        stored = SendResponseHeader.from_ext(reply.ext)
        self.on_stored(topic, stored.queue_id)
        if stored.trace_on:
            self._trace(messages, ids, stored, started_ms, len(command.body))
        return [
            PublishedMessage(msg_id, stored.queue_id, stored.queue_offset + place) for place, msg_id in enumerate(ids)
        ]

    def _trace(
        self, messages: Sequence[Message], ids: Sequence[str], stored: SendResponseHeader, started_ms: int, size: int
    ) -> None:
        words = dict.fromkeys(word for one in messages for word in one.wire_properties().get(PROPERTY_KEYS, "").split())
        self._tracer.record(
            Pub(
                time_stamp=started_ms,
                region_id=stored.msg_region,
                group_name=PRODUCER_GROUP,
                topic=messages[0].topic,
                msg_id=",".join(ids),
                tags=messages[0].tags,
                keys=" ".join(words),
                store_host=str(parse_offset_msg_id(stored.msg_id.split(",")[0])[0]),
                body_length=size,
                cost_time=max(0, now_ms() - started_ms),
                offset_msg_id=stored.msg_id,
            )
        )
