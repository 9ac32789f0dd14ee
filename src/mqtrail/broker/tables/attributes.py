"""Attributes of topics and groups: names with text values, changed by name.

A change is a name with a prefix: + sets it, - removes it. Only known names and values are accepted, as in 5.3.3, so
that a typing error is not stored silently.

Source: AttributeParser, AttributeUtil, TopicAttributes, apache/rocketmq common/.
"""

from collections.abc import Mapping
from typing import Final

from mqtrail.wire import InvalidParameter, SystemError_

from .limits import PULL_ATTRIBUTE, SEND_ATTRIBUTE

# Name -> accepted values; None: any.
TOPIC_ATTRIBUTES: Final[Mapping[str, tuple[str, ...] | None]] = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "reserve.time": None,
    SEND_ATTRIBUTE: None,
}
GROUP_ATTRIBUTES: Final[Mapping[str, tuple[str, ...] | None]] = {
    PULL_ATTRIBUTE: None,
    "mqtrail.pmq.mode": ("cluster", "broadcast"),  # for pmq's own client, which leaves this to the server
}
# Values that this store supports; others would change how a topic is stored.
_STORED: Final = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}


def parse_changes(text: str) -> dict[str, str]:
    """Parse the changes of request 17: "+message.type=FIFO,-reserve.time". InvalidParameter: a malformed item."""
    changes = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if len(name) < 2 or name[0] not in "+-" or (name[0] == "+") != bool(equals):
            raise InvalidParameter(f"found attribute {item!r}, expected +name=value or -name")
        changes[name] = value
    return changes


def alter(
    known: Mapping[str, str], changes: Mapping[str, str], allowed: Mapping[str, tuple[str, ...] | None]
) -> dict[str, str]:
    """Return the attributes after the changes; a name without a sign is set too.

    SystemError_ as in 5.3.3: unknown attribute or value. InvalidParameter: this store does not support such topics.
    """
    attributes = dict(known)
    for change, value in changes.items():
        sign, name = (change[0], change[1:]) if change[:1] in "+-" else ("+", change)
        if name not in allowed:
            raise SystemError_(f"unsupported key: {name}, expected one of {', '.join(sorted(allowed))}")
        if sign == "-":
            attributes.pop(name, None)
            continue
        values = allowed[name]
        if values is not None and value not in values:
            raise SystemError_(f"value is not in set: [{', '.join(values)}], found {name}={value}")
        if _STORED.get(name, value) != value:
            raise InvalidParameter(
                f"found attribute {name}={value}, expected {_STORED[name]}: this broker supports no other value"
            )
        attributes[name] = value
    return attributes
