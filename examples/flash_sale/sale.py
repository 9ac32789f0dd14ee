"""What all parts of the sale share: names, places, settings."""

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mqtrail.client import ConsumeFromWhere, ConsumerConfig, Delivery, ProducerConfig


class Plant(StrEnum):
    """A defect that a part is started with. The check must find it."""

    OVERSELL = "oversell"  # the shop sends an order before it takes the stock
    LOST_ORDERS = "lost-orders"  # the shop keeps orders in memory until it sends them
    DOUBLE_PAYMENTS = "double-payments"  # the payment worker pays at each delivery
    DOUBLE_POINTS = "double-points"  # the points worker credits at each delivery


class SaleError(Exception):
    """The sale cannot go on: found, expected, remedy."""


@dataclass(frozen=True, kw_only=True)
class Sale:
    """One sale. folder: of its databases. Several sales can share a cluster and a Redis: they have different names."""

    folder: Path
    name: str = "sale"
    namesrv: str = "127.0.0.1:9876"
    redis: str = "redis://127.0.0.1:6379"
    stock: int = 200
    buyers: int = 300
    plants: frozenset[Plant] = frozenset()

    @property
    def orders_topic(self) -> str:
        """An order: its unit of the stock is taken."""
        return f"{self.name}-orders"

    @property
    def paid_topic(self) -> str:
        """An order that is paid. A transactional message: it is visible if and only if the payment is committed."""
        return f"{self.name}-paid"

    @property
    def credited_topic(self) -> str:
        """An order whose points are credited. Written to an outbox in the transaction of the points."""
        return f"{self.name}-credited"

    @property
    def topics(self) -> tuple[str, str, str]:
        """All topics."""
        return self.orders_topic, self.paid_topic, self.credited_topic

    @property
    def groups(self) -> dict[str, str]:
        """The consumer groups, each with its topic."""
        paid = self.paid_topic
        return {f"{self.name}-payment": self.orders_topic, f"{self.name}-points": paid, f"{self.name}-sms": paid}

    @property
    def sms(self) -> list[str]:
        """The orders for which the provider of SMS sent one."""
        return self.sms_file.read_text().splitlines() if self.sms_file.exists() else []

    @property
    def sms_file(self) -> Path:
        """What the provider of SMS sent, a line each."""
        return self.folder / "sms-sent.txt"

    def open_payments(self) -> sqlite3.Connection:
        """Connect to the database of the payment worker."""
        return sqlite3.connect(self.folder / "payments.db", timeout=30)

    def open_points(self) -> sqlite3.Connection:
        """Connect to the database of the points worker."""
        return sqlite3.connect(self.folder / "points.db", timeout=30)

    @contextlib.contextmanager
    def payments(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the payment worker."""
        with contextlib.closing(self.open_payments()) as connection, connection:
            yield connection

    @contextlib.contextmanager
    def points(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the points worker."""
        with contextlib.closing(self.open_points()) as connection, connection:
            yield connection


# Offsets are committed rarely, so that each kill -9 of a worker brings many messages again.
CONSUMER = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, offset_persist_ms=60_000)
PRODUCER = ProducerConfig(send_timeout_ms=1_500)


def order_of(m: Delivery) -> str:
    """Return the order that a message is about. It is the key of all handlers: one effect for each order."""
    return m.keys[0]
