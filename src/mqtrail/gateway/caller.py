"""The broker as the door sees it: a function that takes a request and returns the reply."""

from http import HTTPStatus
from typing import Final, Protocol

from mqtrail.wire import (
    BodyError,
    FlowControl,
    FlushDiskTimeout,
    FlushSlaveTimeout,
    HeaderError,
    Host,
    InvalidParameter,
    MessageIllegal,
    MQError,
    NoMessage,
    NoPermission,
    PropertiesError,
    Refusal,
    RemotingCommand,
    ResponseCode,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
    refusal_for,
)

from .problems import Problem

ASK_TIMEOUT_MS: Final = 10_000

_STATUSES: Final[tuple[tuple[tuple[type[MQError], ...], HTTPStatus], ...]] = (
    ((TopicNotExist, SubscriptionGroupNotExist), HTTPStatus.NOT_FOUND),
    ((NoPermission,), HTTPStatus.FORBIDDEN),
    ((FlowControl, SystemBusy), HTTPStatus.TOO_MANY_REQUESTS),
    ((ServiceNotAvailable,), HTTPStatus.SERVICE_UNAVAILABLE),
    (
        (
            MessageIllegal,
            InvalidParameter,
            NoMessage,
            SubscriptionParseFailed,
            HeaderError,
            PropertiesError,
            BodyError,
        ),
        HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
)


class Caller(Protocol):
    """What the node gives the door. host: address of the client for which the door asks."""

    @property
    def away(self) -> str | None:
        """Why the database of the messages does not answer; None: it answers."""
        ...

    async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        """Return the reply. TimeoutError. ServiceNotAvailable, at once, while the database is away."""
        ...

    async def ask_held(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        """As `ask`, for a request that the broker may hold. If the task is cancelled, the broker forgets it."""
        ...


async def succeed(caller: Caller, command: RemotingCommand, host: Host) -> RemotingCommand:
    """Return the reply of a request that the broker accepted. Refusal, TimeoutError."""
    reply = await caller.ask(command, host, ASK_TIMEOUT_MS)
    if reply.code != ResponseCode.SUCCESS:
        raise refusal_for(reply.code, reply.remark)
    return reply


def problem_of_error(error: MQError | TimeoutError) -> Problem:
    """Return the problem that a refusal of the broker, a text that cannot be sent, or a time-out is."""
    if isinstance(error, TimeoutError):
        return Problem(
            HTTPStatus.GATEWAY_TIMEOUT,
            f"found no answer of the broker within {ASK_TIMEOUT_MS} ms, expected one: the request may have been "
            "done; repeat it, a send with the same Idempotency-Key",
        )
    if isinstance(error, FlushDiskTimeout | FlushSlaveTimeout):
        return Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "found no confirmation that the messages are durable, expected one in time: they may be stored; repeat the "
            "request with the same Idempotency-Key",
        )
    text = error.remark if isinstance(error, Refusal) else str(error)
    if isinstance(error, TopicNotExist):
        text += ": create it with PUT /v1/topics/NAME"
    for kinds, status in _STATUSES:
        if isinstance(error, kinds):
            return Problem(status, text)
    return Problem(HTTPStatus.BAD_GATEWAY, f"the broker answered: {error}")
