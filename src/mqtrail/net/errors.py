"""Errors between a request and its reply. `sent`: whether a retry can duplicate the request.

A reply with a code other than success is not an error here: it is returned, and the caller turns the code into a
`mqtrail.wire.Refusal`. Malformed bytes raise `mqtrail.wire.RemotingError`.
"""

from mqtrail.wire import MQError


class NetError(MQError):
    """A request got no reply. `sent`: its bytes were passed to the socket, so the peer may have served it."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class ConnectError(NetError):
    """No connection to the address could be made; nothing was sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text, sent=False)


class RequestTimeout(NetError):
    """No reply within the timeout. If `sent`, the peer may have served the request."""


class ConnectionClosed(NetError):
    """The peer or this side closed the connection before the reply came."""
