"""An asyncio service: consumes orders from one topic and sends a bill for each to another, until it is stopped.

    python examples/asyncio_service.py

The bill is sent before the order is acknowledged. If the service is killed in between, it bills the order again, but
never loses one. So bills have the order's id as their key, and their readers drop duplicates.
"""

import asyncio
import contextlib
import json
import signal

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    InvalidMessage,
    Message,
    Producer,
    RetryLater,
    SendFailed,
)


class Billing:
    """Bills orders. `run` serves until `stop`."""

    def __init__(self, namesrv: str, *, config: ConsumerConfig | None = None) -> None:
        self._namesrv = namesrv
        self._config = config or ConsumerConfig(
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,  # a new group starts with the oldest order
            concurrency=50,  # concurrent handlers
            attempts_max=5,  # then the order becomes a dead letter, for a person to check
        )
        self._stopping = asyncio.Event()
        self.billed_count = 0
        self.refused_count = 0

    def stop(self) -> None:
        """Make `run` finish running handlers and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve. Orders that arrived while the service was down come first."""
        async with (
            Producer("billing", self._namesrv, trace=True) as producer,
            Consumer("billing", self._namesrv, {"orders": "placed"}, trace=True, config=self._config) as consumer,
        ):

            async def bill(delivery: Delivery) -> None:
                await self._bill(producer, delivery)

            serving = asyncio.create_task(consumer.run(bill))
            await self._stopping.wait()
            await consumer.close()  # stops pulling, waits for running handlers, commits
            await serving

    async def _bill(self, producer: Producer, delivery: Delivery) -> None:
        try:
            order = json.loads(delivery.body)
            amount = sum(item["price"] * item["count"] for item in order["items"])
        except (ValueError, KeyError, TypeError) as error:
            self.refused_count += 1
            raise RetryLater(-1, f"no order: {error}") from error  # a dead letter at once: a retry cannot succeed
        bill = json.dumps({"order": order["id"], "amount": amount}).encode()
        try:
            await producer.send(Message("bills", bill, keys=str(order["id"])), order_key=str(order["id"]))
        except InvalidMessage:
            raise
        except SendFailed as error:
            raise RetryLater(detail=str(error)) from error  # retry after the broker's delay
        self.billed_count += 1


async def main(namesrv: str = "127.0.0.1:9876") -> None:
    """The program: SIGINT and SIGTERM stop it cleanly."""
    billing = Billing(namesrv)
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, billing.stop)
    await billing.run()
    print(f"billed {billing.billed_count} orders, refused {billing.refused_count}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
