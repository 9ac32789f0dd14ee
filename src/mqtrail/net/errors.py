"""What can go wrong on the way to a peer. `sent` is what the caller needs to know before it tries again.

A peer that answers with a code other than success is no error here: the reply is returned, and the caller turns the
code into a `mqtrail.wire.Refusal`. Bytes that make no sense are `mqtrail.wire.RemotingError`.
"""

from mqtrail.wire import MQError


class NetError(MQError):
    """A request got no reply. `sent`: its bytes were handed to the socket, so that the peer may have served it."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class ConnectError(NetError):
    """No connection to the address could be made; nothing was sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text, sent=False)


class RequestTimeout(NetError):
    """No reply within the time allowed. The peer may have served the request all the same (when `sent`)."""


class ConnectionClosed(NetError):
    """The connection ended, or was closed by us, before the reply came."""
