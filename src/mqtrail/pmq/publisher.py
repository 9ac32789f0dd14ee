"""Publishing: each request has an Idempotency-Key, so it can be repeated until it is known to be stored."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, overload
from urllib.parse import quote

from mqtrail.wire import Message

from .door import DoorClient, PmqConfig, PmqError

CHUNK: Final = 32  # messages of a request with an Idempotency-Key
CHUNK_SIZE: Final = 1 << 20  # bytes of their bodies: the door has bounds for a request and for a batch


@dataclass(frozen=True, slots=True)
class Published:
    """Where a message is stored."""

    msg_id: str
    queue_id: int
    queue_offset: int


class Publisher:
    """Publishes messages through a door.

        async with Publisher("http://127.0.0.1:8080") as publisher:
            await publisher.publish(Message("orders", b"42 socks", keys="order-42"))

    Any number of publishes may be in progress. If the door asks to slow down, later ones wait that long.
    """

    def __init__(self, url: str, *, config: PmqConfig | None = None) -> None:
        """PmqError: the URL is not that of a door."""
        self._door = DoorClient(url, config or PmqConfig())
        self._pause_until_s = 0.0

    async def start(self) -> None:
        """Do what the start of an `async with` block does."""
        await self._door.start()

    async def close(self) -> None:
        """Close the connections. Publishes that are under way fail."""
        await self._door.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @overload
    async def publish(self, message: Message, *, idempotency_key: str = "") -> Published: ...

    @overload
    async def publish(self, message: Sequence[Message], *, idempotency_key: str = "") -> list[Published]: ...

    async def publish(
        self, message: Message | Sequence[Message], *, idempotency_key: str = ""
    ) -> Published | list[Published]:
        """Return when the messages are stored durably, each once. Messages of a list have one topic.

        A request that fails is repeated within `timeout_s`. idempotency_key: your own key, so that also another process
        may repeat the call within a day. RequestRefused: nothing is stored of a single message, or of a list of at most
        32 messages and 1 MiB. RequestFailed: see its maybe_done.
        """
        if isinstance(message, Message):
            return (await self._publish([message], idempotency_key or uuid.uuid4().hex))[0]
        found: list[Published] = []
        key = idempotency_key or uuid.uuid4().hex
        while (start := len(found)) < len(message):
            part = message[start : start + _count_of(message, start)]
            found += await self._publish(part, f"{key}-{start}" if start else key)
        return found

    async def _publish(self, messages: Sequence[Message], key: str) -> list[Published]:
        topic = messages[0].topic
        if any(one.topic != topic for one in messages):
            raise PmqError("found messages of several topics, expected one: publish a list for each topic")
        loop = asyncio.get_running_loop()
        if (wait_s := self._pause_until_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        answer = await self._door.ask(
            f"/topics/{quote(topic, safe='')}/messages",
            [_item(one) for one in messages],
            headers={"Idempotency-Key": key},
        )
        if pause_ms := answer["slow_down_ms"]:
            self._pause_until_s = max(self._pause_until_s, loop.time() + pause_ms / 1000)
        return [Published(one["id"], one["queue"], one["offset"]) for one in answer["messages"]]


def _count_of(messages: Sequence[Message], start: int) -> int:
    """Return how many messages from start on go into one request."""
    size = 0
    for place, message in enumerate(messages[start : start + CHUNK]):
        size += len(message.body)
        if place and size > CHUNK_SIZE:
            return place
    return CHUNK


def _item(message: Message) -> Mapping[str, Any]:
    """Return the JSON of a message. PmqError: the door cannot do what it asks for."""
    if message.delay_level or message.delay_ms or message.deliver_at_ms or message.flag:
        raise PmqError("found a message with a delay or a flag, expected neither: send it by mqtrail.client")
    item: dict[str, Any] = {"tag": message.tags, "headers": dict(message.properties)}
    item["key"] = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    try:
        item["body"] = message.body.decode()
    except UnicodeDecodeError:
        item["body_base64"] = base64.b64encode(message.body).decode()
    return item
