"""A plain script without an event loop: send the lines of a file to a topic, or consume them.

python examples/plain_script.py put letters notes.txt
python examples/plain_script.py take letters
"""

import sys

from mqtrail.client import ConsumeFromWhere, ConsumerConfig, Message, SendFailed, SyncConsumer, SyncProducer


def put(namesrv: str, topic: str, lines: list[str]) -> int:
    """Send each line as a message, in as few requests as possible, and print those not stored.

    Return how many were stored.
    """
    messages = [Message(topic, line.encode(), keys=f"line-{number}") for number, line in enumerate(lines, 1)]
    stored = 0
    with SyncProducer("example-script", namesrv) as producer:
        for outcome in producer.send_all(messages):
            if outcome.stored:
                stored += len(outcome.messages)
            else:
                # After a timeout the message may still have been stored.
                unsure = isinstance(outcome.error, SendFailed) and outcome.error.maybe_stored
                print(f"{len(outcome.messages)} lines {'may be' if unsure else 'are'} lost: {outcome.error}")
    return stored


def take(namesrv: str, topic: str, wait_s: float = 5.0) -> list[str]:
    """Consume until no message arrives for wait_s. Consumed messages are not delivered again."""
    config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    lines = []
    with SyncConsumer("example-script-reader", namesrv, {topic: "*"}, config=config) as consumer:
        while (delivery := consumer.receive(timeout_ms=int(wait_s * 1000))) is not None:
            with delivery.process():  # acknowledged at the end of the block; an exception causes a retry
                lines.append(delivery.body.decode())
    return lines


def main(arguments: list[str], namesrv: str = "127.0.0.1:9876") -> None:
    """The program."""
    match arguments:
        case ["put", topic, path]:
            with open(path, encoding="utf-8") as file:
                print(f"{put(namesrv, topic, file.read().splitlines())} lines stored")
        case ["take", topic]:
            print("\n".join(take(namesrv, topic)))
        case _:
            sys.exit("usage: plain_script.py put TOPIC FILE | take TOPIC")


if __name__ == "__main__":
    main(sys.argv[1:])
