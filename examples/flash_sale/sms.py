"""The SMS worker. An SMS has no transaction: claims in Redis keep repeats away, except after a kill between the two."""

from mqtrail.client import Consumer, Delivery, Idempotent, RedisClaims

from .sale import CONSUMER, Sale, order_of
from .stock import connect


async def serve(sale: Sale) -> None:
    """Send an SMS for what is paid, until cancelled."""
    group = f"{sale.name}-sms"
    async with (
        connect(sale) as client,
        Consumer(group, sale.namesrv, {sale.paid_topic: "*"}, trace=True, config=CONSUMER) as consumer,
    ):
        once = Idempotent(group, RedisClaims(client), key=order_of, lease_ms=10_000)

        @once
        def send_sms(m: Delivery) -> None:
            with sale.sms_file.open("a") as provider:
                provider.write(f"{order_of(m)}\n")

        await consumer.run(send_sms)
