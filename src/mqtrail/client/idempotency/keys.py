"""Keys: what makes two deliveries the same one."""

import hashlib
from collections.abc import Callable

from ..core import ClientError
from ..delivery import Delivery

KeyFunction = Callable[[Delivery], str]
"""Returns the key of a message, such as the order's number in its body. It must not be empty."""


def message_id(delivery: Delivery) -> str:
    """Return the message's own id: its producer assigned it, and resends, retries and dead letters keep it.

    Two sends of the application have two ids, also if their bodies are equal.
    """
    return delivery.msg_id


def key_of(function: KeyFunction, delivery: Delivery) -> str:
    """Return the key of a message. Raises ClientError if there is none."""
    key = function(delivery)
    if not isinstance(key, str) or not key:
        raise ClientError(
            f"found the key {key!r} for message {delivery.msg_id} of topic {delivery.topic!r}, expected a text that is "
            "not empty: change the key function"
        )
    return key


def digest(group: str, key: str) -> str:
    """Return 64 hexadecimal digits for a group's key.

    Every store files keys under it: keys have any length, and databases compare texts by rules of their own (case,
    trailing blanks).
    """
    return hashlib.sha256(f"{len(group)}:{group}{key}".encode("utf-8", "surrogatepass")).hexdigest()
