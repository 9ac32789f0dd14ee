"""The file of a degraded producer: sends that wait until the cluster is back. See `degraded`."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mqtrail.net import Log
from mqtrail.wire import Message, MessageQueue

from ..core import SpoolFile

log = Log()

KEPT_SUFFIX = ".kept"  # of the file with messages that are not sent any more


class HeldMessage(msgspec.Struct, frozen=True, array_like=True):
    """One message as it will be sent, with its id among the properties."""

    topic: str
    body: bytes
    flag: int
    properties: dict[str, str]

    def message(self) -> Message:
        """Return it as a message to send."""
        return Message(self.topic, self.body, flag=self.flag, properties=self.properties)


class HeldSend(msgspec.Struct, frozen=True, array_like=True):
    """One call of `send`: its messages (several: a batch), and where they go.

    lane: sends of one lane stay in order; empty for none. queue: broker name and queue id. send_id, attempt: of the
    attempts that were traced. held_ms: epoch.
    """

    messages: tuple[HeldMessage, ...]
    is_batch: bool
    lane: str
    queue: tuple[str, int] | None
    order_key: str | int | None
    send_id: str
    attempt: int
    held_ms: int

    @property
    def topic(self) -> str:
        """The topic of all its messages."""
        return self.messages[0].topic

    def place(self) -> MessageQueue | None:
        """Return the queue that the application chose."""
        return None if self.queue is None else MessageQueue(self.topic, *self.queue)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HeldSend).decode


class DegradedFile(SpoolFile[HeldSend]):
    """One file of sends. Entries that were sent are marked: a crash repeats only the one that was being sent."""

    magic = b"MQTDEG1\n"
    entry_size_max = 64 * 1024 * 1024
    marks = True

    def pack(self, message: HeldSend) -> bytes:
        """Return a send's payload."""
        return _encode(message)

    @classmethod
    def unpack(cls, payload: bytes) -> HeldSend | None:
        """Return the send of a payload; None if it is damaged."""
        try:
            held = _decode(payload)
        except msgspec.MsgspecError:
            return None
        return held if held.messages else None

    @classmethod
    def report_unusable(cls, path: Path, error: OSError) -> None:
        """Log that a file cannot be taken over."""
        log.sparse.error(
            "producer.spool_unusable", path=str(path), error=str(error), remedy="check the file; it is left unchanged"
        )

    def report_damaged(self, lost_size: int) -> None:
        """Log how many bytes are lost."""
        log.sparse.error(
            "producer.spool_damaged", path=str(self.path), lost_size=lost_size, kept_count=self.message_count
        )


def held_messages(path: Path) -> Iterator[Message]:
    """Yield the messages in a file of a degraded producer that are not sent, with their ids (property UNIQ_KEY).

    For the files with the suffix .kept, and for a look at the others. Raises OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for held, _, _ in DegradedFile.entries(file):
            for one in held.messages:
                yield one.message()
    finally:
        os.close(file)
