"""SyncProducer and SyncTransactionProducer: Producer and TransactionProducer for code without asyncio."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mqtrail.net import NAMESRV_DEFAULT
from mqtrail.wire import Message

from ..core import ProducerConfig, SendResult
from ..producer import (
    CheckHandler,
    DegradedCounts,
    Producer,
    Transaction,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from .facade import Facade, background, waiting


class SyncProducer(Facade[Producer]):
    """Producer for code without asyncio. Thread safe. For what each method does and raises, see Producer."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        *,
        trace: bool = False,
        config: ProducerConfig | None = None,
    ) -> None:
        super().__init__(lambda: Producer(group, namesrv, trace=trace, config=config))

    send = waiting(Producer.send)
    send_oneway = waiting(Producer.send_oneway)
    send_encoded = waiting(Producer.send_encoded)
    send_all = waiting(Producer.send_all)
    queues = waiting(Producer.queues)
    request = waiting(Producer.request)
    reply = waiting(Producer.reply)
    recall = waiting(Producer.recall)

    @property
    def degraded(self) -> DegradedCounts:
        """What a local file keeps; see Producer.degraded."""
        return self._get().degraded


class SyncTransaction:
    """A Transaction for code without asyncio."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction

    @property
    def transaction_id(self) -> str:
        """The id to store with the local transaction."""
        return self.transaction.transaction_id

    @property
    def sent(self) -> SendResult:
        """The result of the half message's send."""
        return self.transaction.sent

    @property
    def state(self) -> TransactionState | None:
        """The state it ended with; None while it is open."""
        return self.transaction.state

    def commit(self) -> None:
        """Make the message visible."""
        background().run(self.transaction.commit())

    def rollback(self) -> None:
        """Drop the message."""
        background().run(self.transaction.rollback())

    def unknown(self, error: BaseException | None = None) -> None:
        """Leave the decision to the broker's check."""
        background().run(self.transaction.unknown(error))


class SyncTransactionProducer(Facade[TransactionProducer]):
    """TransactionProducer for code without asyncio. Thread safe. The check handler runs in a separate thread."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        *,
        check: CheckHandler,
        trace: bool = False,
        config: ProducerConfig | None = None,
    ) -> None:
        super().__init__(lambda: TransactionProducer(group, namesrv, check=check, trace=trace, config=config))

    send = waiting(TransactionProducer.send)
    send_oneway = waiting(TransactionProducer.send_oneway)

    def begin(self, message: Message, *, timeout_ms: int | None = None) -> SyncTransaction:
        """Store a half message, and return its open transaction; see TransactionProducer.begin."""
        return SyncTransaction(background().run(self._get().begin(message, timeout_ms=timeout_ms)))

    def send_in_transaction(
        self,
        message: Message,
        local: Callable[[SyncTransaction], TransactionState | None],
        *,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Store a half message, run local in this thread, send its state to the broker.

        None or an exception of local means UNKNOWN; see TransactionProducer.send_in_transaction.
        """
        transaction = self.begin(message, timeout_ms=timeout_ms)
        if transaction.state is not None:
            return TransactionResult(transaction.sent, transaction.state)
        state, failure = TransactionState.UNKNOWN, None
        try:
            state = TransactionState(local(transaction) or TransactionState.UNKNOWN)
        except Exception as error:
            failure = error
        background().run(transaction.transaction.end(state, failure))
        return TransactionResult(transaction.sent, state, failure)

    @contextmanager
    def transaction(self, message: Message, *, timeout_ms: int | None = None) -> Iterator[SyncTransaction]:
        """Commit when the block ends, unless it has ended the transaction; see TransactionProducer.transaction."""
        transaction = self.begin(message, timeout_ms=timeout_ms)
        transaction.transaction.require_open()
        try:
            yield transaction
        except Exception as error:
            if transaction.state is None:
                transaction.unknown(error)
            raise
        if transaction.state is None:
            transaction.commit()
