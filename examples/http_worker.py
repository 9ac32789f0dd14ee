"""A worker over HTTP: publish orders to `mqtrail pmq up`, and handle each, until it is stopped.

python examples/http_worker.py put 3
python examples/http_worker.py work
"""

import sys

from mqtrail.pmq import Message, ReceivedMessage, SyncPublisher, SyncSubscriber


def put(url: str, count: int) -> None:
    """Publish orders. Each is stored once, also if a request is repeated after a broken connection."""
    with SyncPublisher(url) as publisher:
        places = publisher.publish([Message("orders", b"socks", keys=f"order-{n}") for n in range(1, count + 1)])
    print(f"{len(places)} orders stored")


def work(url: str, count: int | None = None) -> None:
    """Handle orders one by one; count: how many, or all."""
    with SyncSubscriber(url, "stock", "orders") as subscriber:
        for message in subscriber:
            with message.process() as order:  # acknowledged at the end of the block; an exception causes a retry
                reserve(order)
            count = None if count is None else count - 1
            if count == 0:
                return


def reserve(order: ReceivedMessage) -> None:
    """The application's own work. The same order may come twice, so it is done by key."""
    print(f"reserved {order.body.decode()} for {order.keys}, attempt {order.attempt}")


def main(arguments: list[str], url: str = "http://127.0.0.1:8080") -> None:
    """The program."""
    match arguments:
        case ["put", count]:
            put(url, int(count))
        case ["work"]:
            work(url)
        case _:
            sys.exit("usage: http_worker.py put COUNT | work")


if __name__ == "__main__":
    main(sys.argv[1:])
