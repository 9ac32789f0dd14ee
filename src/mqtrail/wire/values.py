"""The values that all rooms use: messages, queues, hosts.

They are frozen. Their formats on the wire are in record, batch, headers and route.

Source: Message, MessageExt, MessageClientExt, MessageQueue, SendStatus, apache/rocketmq common/ and client/.
"""

import ipaddress
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, Self

from .codes import MessageSysFlag
from .errors import IdError
from .properties import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    number_of,
)

__all__ = [
    "BODY_SIZE_MAX",
    "OWN_HOST",
    "Host",
    "Message",
    "MessageExt",
    "MessageQueue",
    "SendStatus",
]

BODY_SIZE_MAX: Final = 32 * 1024 * 1024  # bytes of one decompressed body; a broker's maxMessageSize is 4 MiB
_PORT = struct.Struct(">i")
_LEVEL = re.compile(r"-?[0-9]{1,9}")


class SendStatus(Enum):
    """The broker's status of a stored message. All but SEND_OK: stored, but less safely than requested.

    DEGRADED is the client's own, with `degrade` of its settings: no broker has the message, a local file keeps it.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    DEGRADED = "DEGRADED"


@dataclass(frozen=True, slots=True, order=True)
class Host:
    """An IP address (v4 or v6, as text) and a port, of a message's producer or broker."""

    ip: str
    port: int

    def packed(self) -> bytes:
        """Return 8 bytes (IPv4) or 20 (IPv6): address, then port as i32. IdError: ip is not an address."""
        return _pack_host(self.ip, self.port)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Self:
        """Return the host of 8 or 20 bytes. IdError: another length."""
        return cls(*_unpack_host(bytes(data)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the host of "ip:port" or "[ip]:port"; Java's leading slash is accepted. IdError: it is not an
        address."""
        ip, colon, port = text.removeprefix("/").rpartition(":")
        ip = ip.removeprefix("[").removesuffix("]")
        number = number_of(port)
        if not colon or not ip or number is None:
            raise IdError(f"found address {text!r:.80}, expected ip:port")
        return cls(ip, number)

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


OWN_HOST: Final = Host("127.0.0.1", 0)
"""The host of what a server requests for itself, and of a client whose address is unknown."""


@lru_cache(maxsize=4096)
def _pack_host(ip: str, port: int) -> bytes:
    try:
        return ipaddress.ip_address(ip).packed + _PORT.pack(port)
    except (ValueError, struct.error) as error:
        raise IdError(f"found host {ip}:{port}, expected an IPv4 or IPv6 address and a port") from error


@lru_cache(maxsize=4096)
def _unpack_host(data: bytes) -> tuple[str, int]:
    if len(data) not in (8, 20):
        raise IdError(f"found a host of {len(data)} bytes, expected 8 (IPv4) or 20 (IPv6)")
    return str(ipaddress.ip_address(data[:-4])), _PORT.unpack(data[-4:])[0]


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker group."""

    topic: str
    broker_name: str
    queue_id: int

    @property
    def place(self) -> str:
        """BROKER/QUEUE: the queue, where its topic is known."""
        return f"{self.broker_name}/{self.queue_id}"

    @classmethod
    def at(cls, topic: str, place: str) -> Self:
        """Return the queue of a topic at a place. IdError: the text is no place."""
        broker, _, number = place.rpartition("/")
        queue_id = number_of(number)
        if not broker or queue_id is None:
            raise IdError(f"found {place!r:.80}, expected BROKER/QUEUE, for example broker-a/0")
        return cls(topic, broker, queue_id)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    keys: one or several index keys; several are joined by a blank on the wire, so a key contains none.
    delay_level: 0 at once, 1 to 18 after the broker's delay of that level. delay_ms, deliver_at_ms (epoch): any time
    within three days, at brokers of 5.x; a level has priority over both. flag: the application's own int.
    properties: further ones; a name of RocketMQ's own (RESERVED_PROPERTIES) among them overrides the other fields.
    """

    topic: str
    body: bytes
    tags: str = field(default="", kw_only=True)
    keys: str | Sequence[str] = field(default=(), kw_only=True)
    delay_level: int = field(default=0, kw_only=True)
    delay_ms: int = field(default=0, kw_only=True)
    deliver_at_ms: int = field(default=0, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def wire_properties(self) -> dict[str, str]:
        """Return a new map of all properties as sent; the caller may change it."""
        keys = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        properties = {PROPERTY_WAIT: "true"}
        if self.tags:
            properties[PROPERTY_TAGS] = self.tags
        if keys:
            properties[PROPERTY_KEYS] = keys
        if self.delay_level > 0:
            properties[PROPERTY_DELAY] = str(self.delay_level)
        if self.delay_ms > 0:
            properties[PROPERTY_TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at_ms > 0:
            properties[PROPERTY_TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        properties.update(self.properties)
        return properties


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A message as stored and pulled. Times are epoch ms, offsets as their names say, body is decompressed.

    store_size: bytes of the whole record. body_crc: of the body as stored (perhaps compressed), 31 bits.
    sys_flag: as stored; bit 0: the stored body was compressed.
    undecodable: None, or why the message could not be read. Its body is then as stored, perhaps compressed; for a
    damaged record it is the bytes of the whole record.
    """

    topic: str
    body: bytes
    flag: int
    properties: dict[str, str]
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    store_size: int
    broker_name: str = ""
    undecodable: str | None = None

    @property
    def expanded_size(self) -> int:
        """Bytes of the body if it was decompressed, else 0: memory beyond that of the received bytes."""
        return len(self.body) if self.sys_flag & MessageSysFlag.COMPRESSED and self.undecodable is None else 0

    @property
    def msg_id(self) -> str:
        """The client's id (UNIQ_KEY), which retries and dead letters keep; if there is none, the broker's id."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: store host and physical offset. Every stored copy has an id of its own."""
        return f"{self.store_host.packed().hex().upper()}{self.physical_offset:016X}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The index keys, as split at blanks by the broker."""
        return tuple(self.properties.get(PROPERTY_KEYS, "").split())

    @property
    def tags(self) -> str:
        return self.properties.get(PROPERTY_TAGS, "")

    @property
    def delay_level(self) -> int:
        """The delay level; 0: none, or a value that is not a number."""
        text = self.properties.get(PROPERTY_DELAY, "")
        return int(text) if _LEVEL.fullmatch(text) else 0

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)
