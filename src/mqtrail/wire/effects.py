"""The input and output of a pure server: peers, and commands to write to them.

Broker and name server do no I/O. A handler gets (peer, request, now_ms) and returns Sends: none (the request is held,
or is one-way), one, or several (an answer, and commands to other peers).

Source of the shape: raft's Ready, docs/design of this project (decisions as data, time as an argument).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NewType

from .codes import ResponseCode, version_of
from .command import RemotingCommand
from .errors import FlowControl, InvalidParameter, MQError, Refusal
from .values import Host

__all__ = [
    "Handler",
    "Peer",
    "PeerId",
    "Send",
    "answer",
    "answer_error",
    "answer_failure",
]

VERSION_5: Final = version_of(5, 0, 0)

PeerId = NewType("PeerId", int)


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection: a number that the shell assigns once in the broker's lifetime, and the remote address."""

    id: PeerId
    address: Host


@dataclass(frozen=True, slots=True)
class Send:
    """Write command to peer once the log is flushed up to after_offset (a physical offset; 0: at once) and all changes
    of tables with numbers up to after_tables are durable (0: it depends on no change).

    The core always sets after_offset; under ASYNC_FLUSH the shell ignores it.
    """

    peer: PeerId
    command: RemotingCommand
    after_offset: int = 0
    after_tables: int = 0


Handler = Callable[[Peer, RemotingCommand, int], list[Send]]


def answer(
    peer: Peer,
    request: RemotingCommand,
    ext: dict[str, str] | None = None,
    *,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    body: bytes = b"",
    after_offset: int = 0,
) -> list[Send]:
    """Return the one Send that answers request. ext={}: an empty extFields is written, as 5.3.3 does for some codes."""
    reply = RemotingCommand.reply_to(request, code, remark, ext, body)
    reply.empty_ext = ext is not None
    return [Send(peer.id, reply, after_offset)]


def answer_error(peer: Peer, request: RemotingCommand, error: MQError, ext: dict[str, str] | None = None) -> list[Send]:
    """Return the one Send that answers a request which failed."""
    remark = error.remark if isinstance(error, Refusal) else str(error)
    return answer(peer, request, ext, code=response_code(error, request.version), remark=remark)


def answer_failure(peer: Peer, request: RemotingCommand, error: Exception) -> list[Send]:
    """Return the one Send that answers a request whose handler failed unexpectedly: SYSTEM_ERROR."""
    remark = f"{type(error).__name__}: {error}; the server's log has the traceback"
    return answer(peer, request, code=ResponseCode.SYSTEM_ERROR, remark=remark)


def response_code(error: MQError, version: int) -> int:
    """Return the code for an error, as a client of that version knows it.

    Clients before 5.0 do not know codes 29 and 215: they get 1 and 2, as from a 4.9 broker. An error that is not a
    Refusal (a body or a record that cannot be read) becomes 1, as when Java replies to an exception.
    Source: 5.3.3's processors; 4.9's for older clients (docs/reference/compatibility.md).
    """
    if not isinstance(error, Refusal):
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, InvalidParameter) and version < VERSION_5:
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, FlowControl) and version < VERSION_5:
        return ResponseCode.SYSTEM_BUSY
    return error.response_code
