"""Limits of a peer's JSON text (see json_body), and the object names that only fastjson writes."""

from collections.abc import Mapping
from typing import Any, Final

DEPTH_MAX: Final = 64  # nested values; no known body is deeper, and the stack is limited
NODES_MAX: Final = 1_000_000
"""Values and names of one text that a peer sent: a registration of 50 000 topics has half as many."""
DIALECT_NODES_MAX: Final = 50_000
"""Values and names of a text that only the lenient reader takes, about 2 µs each. Requests in the dialect are small;
a reply with a table by queues may have more, as its body class declares."""
DIALECT_SIZE_PER_NODE: Final = 200
"""Bytes of such a text for each value that it may have: 4 MB of raw control characters take 60 ms to read, and six
times their size in an answer."""
NODES_PER_BYTE: Final = 4
"""Values that references may add per byte of a text, beside NODES_FREE. The shortest reference has 17 bytes; those that
RocketMQ writes have 40 or more, and each points to a SubscriptionData or TopicConfig of about ten values."""
NODES_FREE: Final = 1_000
NODES_PER_STEP: Final = 4  # a step of a reference's path counts as so many values, since it takes as long to follow
TEXT_PER_NODE: Final = 64  # a text that references add counts as one more value for so many characters
REFERENCE_SIZE_MAX: Final = 1_000  # characters of a reference's path; a longer one points to nothing


def nodes_of_references(size: int, nodes_max: int = NODES_MAX) -> int:
    """Return how many values and names a text of size bytes may have, with its references expanded."""
    return min(nodes_max, NODES_FREE + NODES_PER_BYTE * size)


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A member name that is an object: its (member, value) pairs, sorted. Hashable, written by dumps_fastjson."""

    __slots__ = ()

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> "ObjectKey":
        """Return the key of an object whose values are plain (text, numbers, booleans, null)."""
        return cls(sorted(members.items()))

    def members(self) -> dict[str, Any]:
        """Return the object again."""
        return dict(self)
