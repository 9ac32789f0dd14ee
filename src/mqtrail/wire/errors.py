"""The errors between peers.

The owner of a connection distinguishes two kinds:

    Refusal         the request is well formed but refused: answer with its code and continue
    RemotingError   the bytes are malformed: close the connection

A broker raises a Refusal, the reply carries its code and remark, and the client turns them back into the same class
(refusal_for). Messages state what was found, what was expected and, if known, the remedy. `retryable`: the same request
may succeed on another broker or a moment later.

Source of codes: ResponseCode, apache/rocketmq remoting/.
"""

from typing import ClassVar

from .codes import ResponseCode

__all__ = [
    "BodyError",
    "BroadcastConsumption",
    "CompressionError",
    "ConsumeMsgTimeout",
    "ConsumerNotOnline",
    "FilterDataNotExist",
    "FilterDataNotLatest",
    "FlowControl",
    "FlushDiskTimeout",
    "FlushSlaveTimeout",
    "HeaderError",
    "IdError",
    "IllegalOperation",
    "InvalidParameter",
    "MQError",
    "MessageIllegal",
    "NoMessage",
    "NoPermission",
    "PollingFull",
    "PollingTimeout",
    "PropertiesError",
    "QueryNotFound",
    "RecordError",
    "Refusal",
    "RemotingError",
    "RequestCodeNotSupported",
    "ServiceNotAvailable",
    "SubscriptionGroupNotExist",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "SystemError_",
    "TopicNotExist",
    "UnknownRefusal",
    "refusal_for",
]


class MQError(Exception):
    """Base of all errors that mqtrail raises on purpose."""


class RemotingError(MQError):
    """The bytes from the peer are malformed, or the connection failed: close the connection."""


class RecordError(MQError, ValueError):
    """The bytes of a stored or pulled message are incomplete or not a record."""


class PropertiesError(MQError, ValueError):
    """A property cannot be written: its name or value has a separator, or the properties have too many bytes."""


class IdError(MQError, ValueError):
    """A text is not a message id of the expected shape."""


class BodyError(MQError, ValueError):
    """A request's or reply's body is not the JSON or the batch that was expected."""


class CompressionError(MQError, ValueError):
    """A body cannot be decompressed, or its compression type is unknown."""


class Refusal(MQError):
    """A well-formed request that is refused: answer with code and remark, and continue.

    The argument is the remark. `response_code` is the number on the wire; it equals `code` in every named class and
    is the peer's own number in UnknownRefusal.
    """

    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR
    retryable: ClassVar[bool] = False

    def __init__(self, remark: str = "") -> None:
        super().__init__(remark)
        self.remark = remark
        self.response_code = int(self.code)

    def __str__(self) -> str:
        name = self.code.name if self.response_code == self.code else "code"
        return f"{name} ({self.response_code}): {self.remark}" if self.remark else f"{name} ({self.response_code})"


class SystemError_(Refusal):
    """The peer failed while serving; Java's catch-all (code 1)."""

    code = ResponseCode.SYSTEM_ERROR
    retryable = True


class HeaderError(SystemError_):
    """A field of the request's header is missing or not of its type. Java answers code 1 as well."""

    retryable = False


class SystemBusy(Refusal):
    """The peer is overloaded, or its page cache is slow: try again later."""

    code = ResponseCode.SYSTEM_BUSY
    retryable = True


class RequestCodeNotSupported(Refusal):
    """The peer does not serve this request code."""

    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TransactionFailed(Refusal):
    code = ResponseCode.TRANSACTION_FAILED


class FlushDiskTimeout(Refusal):
    """The message was stored, but its flush did not end in time."""

    code = ResponseCode.FLUSH_DISK_TIMEOUT


class SlaveNotAvailable(Refusal):
    """The message was stored, but there was no slave to copy it to; or the broker is itself a slave."""

    code = ResponseCode.SLAVE_NOT_AVAILABLE


class FlushSlaveTimeout(Refusal):
    """The message was stored, but the slave did not acknowledge it in time."""

    code = ResponseCode.FLUSH_SLAVE_TIMEOUT


class MessageIllegal(Refusal):
    """The message's size, properties, or delay are not allowed."""

    code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(Refusal):
    """The broker accepts no messages now: its disk is full, it is stopping, or it is a slave."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE
    retryable = True


class VersionNotSupported(Refusal):
    code = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermission(Refusal):
    code = ResponseCode.NO_PERMISSION


class TopicNotExist(Refusal):
    """The topic is unknown here; a client retries another broker or refreshes its route."""

    code = ResponseCode.TOPIC_NOT_EXIST
    retryable = True


class TopicExistAlready(Refusal):
    code = ResponseCode.TOPIC_EXIST_ALREADY


class QueryNotFound(Refusal):
    """Nothing was found: no committed offset, no message with the key, or no value."""

    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(Refusal):
    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(Refusal):
    """The broker has not received a heartbeat with this subscription yet."""

    code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retryable = True


class SubscriptionNotLatest(Refusal):
    """The broker knows an older version of this subscription."""

    code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retryable = True


class SubscriptionGroupNotExist(Refusal):
    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterDataNotExist(Refusal):
    code = ResponseCode.FILTER_DATA_NOT_EXIST


class FilterDataNotLatest(Refusal):
    code = ResponseCode.FILTER_DATA_NOT_LATEST


class InvalidParameter(Refusal):
    """A name, a number or a queue is outside the allowed range (4.9 answers code 1)."""

    code = ResponseCode.INVALID_PARAMETER


class TransactionStateGroupWrong(Refusal):
    code = ResponseCode.TRANSACTION_STATE_GROUP_WRONG


class ConsumerNotOnline(Refusal):
    code = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeMsgTimeout(Refusal):
    """A request that the broker forwarded to a client got no answer in time."""

    code = ResponseCode.CONSUME_MSG_TIMEOUT
    retryable = True


class NoMessage(Refusal):
    code = ResponseCode.NO_MESSAGE


class PollingFull(Refusal):
    code = ResponseCode.POLLING_FULL
    retryable = True


class PollingTimeout(Refusal):
    code = ResponseCode.POLLING_TIMEOUT
    retryable = True


class BrokerNotExist(Refusal):
    code = ResponseCode.BROKER_NOT_EXIST


class BroadcastConsumption(Refusal):
    """The group consumes by broadcasting, so the broker keeps no offsets for it."""

    code = ResponseCode.BROADCAST_CONSUMPTION


class FlowControl(Refusal):
    code = ResponseCode.FLOW_CONTROL
    retryable = True


class IllegalOperation(Refusal):
    code = ResponseCode.ILLEGAL_OPERATION


class GoAway(Refusal):
    """The peer is shutting down: open another connection and try again."""

    code = ResponseCode.GO_AWAY
    retryable = True


class UserNotExist(Refusal):
    code = ResponseCode.USER_NOT_EXIST


class PolicyNotExist(Refusal):
    code = ResponseCode.POLICY_NOT_EXIST


class UnknownRefusal(Refusal):
    """The peer refused with a code that has no class here; `response_code` holds it."""

    def __init__(self, remark: str, response_code: int) -> None:
        super().__init__(remark)
        self.response_code = response_code

    def __reduce__(self) -> tuple[type["UnknownRefusal"], tuple[str, int]]:
        return UnknownRefusal, (self.remark, self.response_code)


# HeaderError shares its code with SystemError_; code 1 of a peer means the latter.
_REFUSALS: dict[int, type[Refusal]] = {
    kind.code: kind for kind in Refusal.__subclasses__() if kind is not UnknownRefusal
}


def refusal_for(code: int, remark: str | None) -> Refusal:
    """Return (do not raise) the error for a reply's code. A code without a class: UnknownRefusal."""
    kind = _REFUSALS.get(code)
    return UnknownRefusal(remark or "", code) if kind is None else kind(remark or "")
