"""Deliveries without a broker."""

from collections.abc import Sequence

from mqtrail.client.delivery import Delivery, Outcome, ProcessQueue
from mqtrail.wire import Host, MessageExt, MessageQueue

HOST = Host("127.0.0.1", 1)


class Settled:
    """Notes outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        return None

    def startable(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return deliveries

    def abandon(self, deliveries: Sequence[Delivery]) -> None:
        return None

    async def settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        self.outcomes += outcomes


def delivered(msg_id: str, body: bytes = b"body", keys: str = "") -> Delivery:
    """Return a delivery of a message."""
    properties = {"UNIQ_KEY": msg_id, "KEYS": keys}
    message = MessageExt("orders", body, 0, properties, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, 0, 0)
    return Delivery(message, ProcessQueue(MessageQueue("orders", "broker-a", 0)), Settled())
