"""The payment worker: takes orders, and charges each buyer once. The message about it is part of the payment.

half message -> payment and inbox in one transaction -> commit of the message
      |                        |
      +-- kill -9 here         +-- or here: the broker asks `look_up`
"""

import asyncio

from mqtrail.client import Consumer, Delivery, Inbox, Message, MessageExt, TransactionProducer, TransactionState

from .sale import CONSUMER, PRODUCER, Plant, Sale, order_of


class Payment:
    """Charges, and knows what was charged."""

    def __init__(self, sale: Sale) -> None:
        self._sale = sale
        self._inbox = Inbox(f"{sale.name}-payment", sale.open_payments)

    def prepare(self) -> None:
        """Create the tables. A transaction is a payment, or, without an order, it is refused for ever."""
        self._inbox.create()
        with self._sale.payments() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS payments (transaction_id TEXT PRIMARY KEY, order_id TEXT, amount INTEGER)"
            )

    def charge(self, order: str, transaction_id: str) -> bool:
        """Charge the buyer; return False if that was done before. IntegrityError: the transaction was refused."""
        with self._sale.payments() as connection:
            is_new = self._inbox.first(connection, order)
            if is_new or Plant.DOUBLE_PAYMENTS in self._sale.plants:
                connection.execute("INSERT INTO payments VALUES (?, ?, 100)", (transaction_id, order))
                return True
        return False

    def look_up(self, message: MessageExt) -> TransactionState:
        """Tell the broker how a transaction ended. What is not charged now never will be: its place is taken."""
        with self._sale.payments() as connection:
            connection.execute("INSERT OR IGNORE INTO payments VALUES (?, NULL, 0)", (message.msg_id,))
            row = connection.execute("SELECT order_id FROM payments WHERE transaction_id = ?", (message.msg_id,))
            return TransactionState.COMMIT if row.fetchone()[0] else TransactionState.ROLLBACK


async def serve(sale: Sale) -> None:
    """Charge what is ordered, until cancelled."""
    payment = Payment(sale)
    payment.prepare()
    group = f"{sale.name}-payment"
    async with (
        TransactionProducer(group, sale.namesrv, check=payment.look_up, trace=True, config=PRODUCER) as producer,
        Consumer(group, sale.namesrv, {sale.orders_topic: "*"}, trace=True, config=CONSUMER) as consumer,
    ):

        async def pay(m: Delivery) -> None:
            order = order_of(m)
            async with producer.transaction(Message(sale.paid_topic, m.body, keys=order)) as transaction:
                if not await asyncio.to_thread(payment.charge, order, transaction.transaction_id):
                    await transaction.rollback()  # a repeat: the buyer has paid

        await consumer.run(pay)
