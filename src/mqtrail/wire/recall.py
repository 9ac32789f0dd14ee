"""Recall handles: a broker returns one for a delayed message, and accepts it to recall the message (RECALL_MESSAGE,
370).

    URL-safe base64, padded, of:  v1 ‖ topic ‖ broker name ‖ delivery time, epoch ms ‖ UNIQ_KEY   (single blanks)

Source: RecallMessageHandle, apache/rocketmq common/.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Self

from .errors import InvalidParameter
from .properties import number_of

__all__ = [
    "RecallHandle",
]

_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The parts of a handle. deliver_ms: epoch ms at which the message is due."""

    topic: str
    broker_name: str
    deliver_ms: int
    msg_id: str

    def encode(self) -> str:
        """Return the handle's text."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.msg_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the parts of a handle. InvalidParameter: it is not a handle, or of another version."""
        try:
            parts = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, UnicodeError, ValueError) as error:
            raise InvalidParameter(f"found the recall handle {text!r:.80}, expected URL-safe base64: {error}") from None
        deliver_ms = number_of(parts[3]) if len(parts) == 5 and parts[0] == _VERSION else None
        if deliver_ms is None:
            raise InvalidParameter(
                f"found the recall handle {text!r:.80}, expected version v1 with topic, broker, time and id: take it "
                "from the send's result"
            )
        return cls(parts[1], parts[2], deliver_ms, parts[4])
