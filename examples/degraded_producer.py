"""Send orders to a cluster that may be away: what cannot be sent waits in a local file, in order.

python examples/degraded_producer.py order-1 order-2
python examples/degraded_producer.py          # sends what earlier runs left
"""

import sys
import time
from pathlib import Path

from mqtrail.client import Message, ProducerConfig, SendStatus, SyncProducer

CONFIG = ProducerConfig(
    degrade=True,
    degrade_dir=Path("degraded"),
    degrade_age_max_ms=60 * 60 * 1000,  # an order that is an hour old needs a person
    send_timeout_ms=1_000,
)


def place(producer: SyncProducer, orders: list[str]) -> list[str]:
    """Send each order; return those that wait in the file. Their key keeps them in order."""
    waiting = []
    for order in orders:
        sent = producer.send(Message("orders", order.encode(), keys=order), order_key="shop-1")
        if sent.status is SendStatus.DEGRADED:
            waiting.append(order)
    return waiting


def main(orders: list[str], namesrv: str = "127.0.0.1:9876", wait_s: float = 5.0) -> None:
    """The program: send, and give the file a moment to empty itself."""
    with SyncProducer("shop", namesrv, trace=True, config=CONFIG) as producer:
        waiting = place(producer, orders)
        print(f"{len(orders) - len(waiting)} orders sent, {len(waiting)} kept for later")
        end = time.monotonic() + wait_s
        while producer.degraded.waiting and time.monotonic() < end:
            time.sleep(0.05)
        counts = producer.degraded
        print(f"{counts.replayed} sent from the file, {counts.waiting} wait in it, {counts.kept} need a person")


if __name__ == "__main__":
    main(sys.argv[1:])
