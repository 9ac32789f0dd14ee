"""Errors raised by the client itself. Refusals by a broker are `mqtrail.wire.Refusal` and its subclasses.

A failed send reports whether the message may be stored. After a timeout or a broken connection this is unknown, and
the caller must not assume that the message is not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mqtrail.wire import MQError, SendOutcome


class ClientError(MQError):
    """A failure on the client's side of the wire."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed (or never started) and cannot serve the call."""


class InvalidMessage(ClientError):
    """Any broker would refuse or corrupt the message; it was not sent."""


class NoNameServer(ClientError):
    """No name server answered; the text lists each address with its failure."""


class RouteNotFound(ClientError):
    """No name server knows a broker for the topic."""


class NoControllers(ClientError):
    """A group of brokers is not in controller mode."""


class BrokerUnknown(ClientError):
    """A queue names a broker that is not in the topic's route, or no longer."""


class OffsetUnavailable(ClientError):
    """The requested offset is outside the range that the queue holds."""


class ReadFailed(ClientError):
    """A read failed after all its retries; the text names the broker and the last failure."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """One failed attempt to send. outcome: ERROR (answered by code), TIMEOUT, CONNECT or NOT_SENT."""

    broker_name: str
    address: str
    outcome: SendOutcome
    code: int | None
    text: str
    cost_ms: int

    @property
    def maybe_stored(self) -> bool:
        """Whether the broker may have stored the message although it did not answer."""
        return self.outcome is SendOutcome.TIMEOUT

    def __str__(self) -> str:
        return f"{self.broker_name or '?'} ({self.address or '?'}): {self.outcome} after {self.cost_ms} ms: {self.text}"


class SendFailed(ClientError):
    """Every attempt of one send failed. `maybe_stored`: at least one may have reached the broker."""

    def __init__(self, topic: str, msg_id: str, attempts: Sequence[AttemptFailure], reason: str = "") -> None:
        self.topic = topic
        self.msg_id = msg_id
        self.attempts = tuple(attempts)
        self.maybe_stored = any(attempt.maybe_stored for attempt in self.attempts)
        fate = "it may be stored: look it up by its id" if self.maybe_stored else "it is not stored"
        lines = "; ".join(str(attempt) for attempt in self.attempts) or "no attempt was made"
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"message {msg_id} to topic {topic!r} was not acknowledged by {len(self.attempts)} attempts{why}; "
            f"{fate}. {lines}"
        )


class TooManyInFlight(SendFailed):
    """The send got no permit within its timeout: too many sends, or too many bytes, are in flight."""


class NoReply(ClientError):
    """A request was sent, and no reply arrived in time. A consumer may have processed it. RocketMQ: 10006."""


class NotARequest(ClientError):
    """The message cannot be replied to: it lacks the properties of a request. RocketMQ: 10007."""


class RetryLater(Exception):
    """Raise or return this in a handler to have the message delivered again.

    delay_level: 0 lets the broker choose (3 + attempts made so far), 1..18 is a level of `messageDelayLevel`, -1 sends
    the message to the group's dead-letter topic immediately. suspend_ms: for an ordered consumer, how long to suspend
    the queue before the retry (10 to 30 000 ms); None: `suspend_ms` of its settings.
    """

    def __init__(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        super().__init__(detail or f"retry later, delay level {delay_level}")
        self.delay_level = delay_level
        self.detail = detail
        self.suspend_ms = suspend_ms
