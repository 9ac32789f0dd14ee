"""Numbers of a reply's header: a missing or invalid one is an error of the server."""

from mqtrail.wire import LONG_MAX, RemotingCommand

from .errors import ClientError

_TEXT_MAX = 20  # characters of an int64


def long_of(text: str | None) -> int | None:
    """Return the text as an int64; None if it is not one."""
    try:
        if text is not None and len(text) <= _TEXT_MAX and -LONG_MAX - 1 <= (number := int(text)) <= LONG_MAX:
            return number
    except ValueError:
        pass
    return None


def reply_number(reply: RemotingCommand, name: str) -> int:
    """Return an int64 field of a reply's header. Raises ClientError if it is missing or invalid."""
    text = reply.ext.get(name)
    number = long_of(text)
    if number is not None:
        return number
    found = "nothing" if text is None else repr(text[:_TEXT_MAX])
    raise ClientError(f"found {found} as {name} in a reply, expected an int64: check that a RocketMQ broker sent it")
