"""A producer without a broker, and a table of an outbox."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqtrail.client import MessageQueue, Outbox, ProducerConfig, SendFailed, SendResult, SendStatus
from mqtrail.wire import PROPERTY_UNIQ_KEY, Message


class Sink:
    """Accepts messages as a producer does, in the order of the sends, or fails on demand."""

    def __init__(self) -> None:
        self.config = ProducerConfig()
        self.client_id = "127.0.0.1@1#1"
        self.sent: list[tuple[str, bytes, str | None]] = []  # id, body, order key
        self.fails: Callable[[Message], bool] = lambda message: False
        self.after: Callable[[Message], None] = lambda message: None
        self.in_flight: dict[str, int] = {}

    async def send(self, message: Message, *, order_key: str | None = None) -> SendResult:
        msg_id = message.properties[PROPERTY_UNIQ_KEY]
        if order_key is not None:
            self.in_flight[order_key] = self.in_flight.get(order_key, 0) + 1
            assert self.in_flight[order_key] == 1, "two messages of one order key at the same time"
        try:
            await asyncio.sleep(0)
            if self.fails(message):
                raise SendFailed(message.topic, msg_id, [])
            self.sent.append((msg_id, message.body, order_key))
            self.after(message)
            return SendResult(SendStatus.SEND_OK, msg_id, "", MessageQueue(message.topic, "broker-a", 0), 0)
        finally:
            if order_key is not None:
                self.in_flight[order_key] -= 1

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.sent]


class Shop:
    """A database with orders and an outbox."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outbox = Outbox()
        self.outbox.create(self.connect)
        self.run("CREATE TABLE IF NOT EXISTS orders (number INT)")

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60)
        connection.execute("PRAGMA synchronous = OFF")  # processes are killed, the machine is not
        return connection

    def run(self, statement: str, *values: Any) -> list[Any]:
        connection = self.connect()
        try:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def place(self, number: int, order_key: str | None = None, *, commit: bool = True, **fields: Any) -> str:
        """The business transaction: an order and its message."""
        connection = self.connect()
        connection.execute("INSERT INTO orders VALUES (?)", (number,))
        message = Message("orders", str(number).encode(), **fields)
        msg_id = self.outbox.add(connection, message, order_key=order_key)
        if commit:
            connection.commit()
        connection.close()
        return msg_id
