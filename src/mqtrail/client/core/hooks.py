"""Hooks: how producers and consumers notify listeners. `client.trace` is such a listener.

Hooks are called on the event loop and must not block. The Outgoing of a send changes until the last call about it.
An exception in a hook is a bug and propagates.
"""

from typing import Protocol

from mqtrail.wire import MessageExt, MessageQueue

from .errors import AttemptFailure
from .outgoing import Outgoing, SendResult


class SendHook(Protocol):
    """Follows attempts to send. Each `started` is followed by one `complete`, `failed` or `oneway`."""

    def send_started(self, out: Outgoing) -> None:
        """An attempt starts; out has its queue, address, number and time."""

    def send_complete(self, out: Outgoing, result: SendResult, cost_ms: int) -> None:
        """The broker stored it. A status other than SEND_OK may be followed by another attempt."""

    def send_failed(self, out: Outgoing, failure: AttemptFailure, *, final: bool) -> None:
        """The attempt failed. final: no further attempt follows. out.queue is None if no attempt was possible."""

    def send_oneway(self, out: Outgoing, cost_ms: int) -> None:
        """The request was written to the socket; no acknowledgement follows."""


class ConsumeHook(Protocol):
    """Follows deliveries to handlers and the group's commits. Messages delivered together share a request id."""

    def consume_started(self, request_id: str, message: MessageExt, started_ms: int) -> None:
        """A handler starts with a message, alone or in a batch; its end has the same request id."""

    def consume_complete(
        self,
        request_id: str,
        message: MessageExt,
        result: str,
        started_ms: int,
        ended_ms: int,
        *,
        success: bool,
        detail: str,
        batch_count: int = 1,
    ) -> None:
        """The handler is done. result: SUCCESS, FAILED (it requested a retry), EXCEPTION, TIME_OUT (late).

        started_ms, ended_ms: epoch milliseconds. batch_count: number of messages in this call of the handler.
        """

    def offset_committed(self, queue: MessageQueue, consumer_offset: int, now_ms: int) -> None:
        """The group's offset of a queue was sent to its broker."""
