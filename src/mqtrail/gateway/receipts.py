"""Receipts: what a client returns with a message that it received.

A receipt is the broker's own handle of the popped message, and what the trace needs of it. Nothing is kept here, so any
door can take a receipt, also after a restart. A client that changes one only harms the delivery of its own group: the
broker checks every place that a handle names.
"""

from __future__ import annotations

import base64
import binascii
from typing import Self

import msgspec

from mqtrail.wire import HeaderError, PopHandle


class Receipt(msgspec.Struct, array_like=True, frozen=True):
    """One received message. times: earlier deliveries. started_ms: when it was received; region "": not traced."""

    topic: str
    handle_text: str
    msg_id: str
    keys: str
    times: int
    request_id: str
    started_ms: int
    region: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the receipt of a text. HeaderError: the text is not a receipt."""
        try:
            receipt = msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            raise HeaderError(
                f"found {text[:40]!r}, expected a receipt ({error}): pass the receipt of a received message"
            ) from None
        if receipt.handle.queue_offset is None:
            raise HeaderError("found a receipt without a queue offset: pass the receipt of a received message")
        return receipt

    @property
    def handle(self) -> PopHandle:
        """The broker's handle. HeaderError: the text is not a handle."""
        return PopHandle.decode(self.handle_text)
