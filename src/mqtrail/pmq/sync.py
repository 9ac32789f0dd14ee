"""Publisher and Subscriber for code without asyncio, on the background loop of mqtrail.client.

with SyncSubscriber("http://127.0.0.1:8080", "stock", "orders") as subscriber:
    for message in subscriber:
        with message.process():
            reserve(message.body)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from mqtrail.client.sync import Facade, background, entered, waiting

from .door import PmqConfig
from .publisher import Publisher
from .subscriber import Broadcast, H, Handler, ReceivedMessage, Subscriber


class SyncPublisher(Facade[Publisher]):
    """Publisher for code without asyncio. Thread safe. For what each method does and raises, see Publisher."""

    def __init__(self, url: str, *, config: PmqConfig | None = None) -> None:
        super().__init__(lambda: Publisher(url, config=config))

    publish = waiting(Publisher.publish)


class SyncReceivedMessage:
    """A ReceivedMessage, in `message`, for code without asyncio."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message

    @property
    def body(self) -> bytes:
        """The body of the message."""
        return self.message.body

    @contextmanager
    def process(self, *, reraise: bool = False) -> Iterator[ReceivedMessage]:
        """Settle it when the block ends; see ReceivedMessage.process."""
        with entered(self.message.process(reraise=reraise)):
            yield self.message

    def ack(self) -> None:
        """Settle it as a success."""
        background().run(self.message.ack())

    def retry(self, delay_s: float | None = None, detail: str = "") -> None:
        """Settle it as a failure: it is delivered again; see ReceivedMessage.retry."""
        background().run(self.message.retry(delay_s, detail))

    def extend(self, invisible_s: float) -> None:
        """Take more time; see ReceivedMessage.extend."""
        background().run(self.message.extend(invisible_s))


class SyncSubscriber(Facade[Subscriber]):
    """Subscriber for code without asyncio; for the arguments see Subscriber. Handlers of `run` run in threads."""

    def __init__(
        self,
        url: str,
        group: str | Broadcast,
        topics: str | Mapping[str, str] | None = None,
        *,
        concurrency: int = 10,
        invisible_s: float = 60.0,
        from_first: bool = True,
        config: PmqConfig | None = None,
    ) -> None:
        self._handlers: list[tuple[str, str, Handler]] = []

        def make() -> Subscriber:
            subscriber = Subscriber(
                url,
                group,
                topics,
                concurrency=concurrency,
                invisible_s=invisible_s,
                from_first=from_first,
                config=config,
            )
            for topic, tag, function in self._handlers:
                subscriber.handler(topic, tag)(function)
            return subscriber

        super().__init__(make)

    def handler(self, topic: str, tag: str = "*") -> Callable[[H], H]:
        """Decorate the function that processes a topic's messages, before the first other call."""

        def register(function: H) -> H:
            self._handlers.append((topic, tag, function))
            return function

        return register

    run = waiting(Subscriber.run)

    def receive(self, timeout_s: float | None = None) -> SyncReceivedMessage | None:
        """Return the next message; None after timeout_s without one, or once the subscriber is closed."""
        message = background().run(self._get().receive(timeout_s))
        return None if message is None else SyncReceivedMessage(message)

    def __iter__(self) -> Iterator[SyncReceivedMessage]:
        while (message := self.receive()) is not None:
            yield message
