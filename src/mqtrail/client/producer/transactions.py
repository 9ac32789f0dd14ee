"""TransactionProducer: sends messages that become visible only if a local transaction commits.

    async with TransactionProducer("orders-group", namesrv, check=look_up) as producer:
        async with producer.transaction(Message("orders", b"...")) as transaction:
            await database.commit(order, transaction.transaction_id)

A half message, which consumers cannot see, is stored first. The result of the local transaction is sent one way
(END_TRANSACTION, 37) and may be lost. Then the broker sends a check (39) to any producer of the group, whose check
handler returns the result.
Source: DefaultMQProducerImpl.sendMessageInTransaction, endTransaction, checkTransactionState, RocketMQ 5.x client.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

from mqtrail.clock import now_ms
from mqtrail.net import NAMESRV_DEFAULT, Log
from mqtrail.wire import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_PGROUP,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    REGION_DEFAULT,
    CheckTransactionStateHeader,
    EndTransaction,
    EndTransactionHeader,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageSysFlag,
    MQError,
    RemotingCommand,
    RequestCode,
    SendStatus,
    parse_offset_msg_id,
)

from ..core import (
    ClientError,
    ClientInstance,
    ProducerConfig,
    SendHook,
    SendResult,
    TransactionChecker,
    keep_going,
    with_namespace,
    without_namespace,
)
from .producer import Producer

log = Log()


class TransactionState(IntEnum):
    """The result of a local transaction; the values are those of commitOrRollback. UNKNOWN: the broker checks later."""

    UNKNOWN = MessageSysFlag.TRANSACTION_NOT
    COMMIT = MessageSysFlag.TRANSACTION_COMMIT
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK


_TRACED = {
    TransactionState.UNKNOWN: LocalTransactionState.UNKNOW,
    TransactionState.COMMIT: LocalTransactionState.COMMIT_MESSAGE,
    TransactionState.ROLLBACK: LocalTransactionState.ROLLBACK_MESSAGE,
}

LocalHandler = Callable[["Transaction"], Awaitable[TransactionState | None] | TransactionState | None]
CheckHandler = Callable[[MessageExt], Awaitable[TransactionState | None] | TransactionState | None]


class TransactionResult(NamedTuple):
    """The result of the half message's send, the state, and the exception that made it UNKNOWN, if any."""

    send: SendResult
    state: TransactionState
    error: Exception | None = None


class Transaction:
    """A stored half message whose transaction is open. `commit`, `rollback` or `unknown` ends it, once."""

    __slots__ = ("_producer", "message", "sent", "state")

    def __init__(self, producer: "TransactionProducer", message: Message, sent: SendResult) -> None:
        self._producer = producer
        self.message = message
        self.sent = sent
        self.state: TransactionState | None = None

    @property
    def transaction_id(self) -> str:
        """The id to store with the local transaction: the check handler gets a message with this `msg_id`."""
        return self.sent.msg_id

    def require_open(self) -> None:
        """Raise ClientError if the half message was rolled back because it was stored less safely than requested."""
        if self.state is not None:
            raise ClientError(
                f"the half message {self.transaction_id} was rolled back: it was stored with status "
                f"{self.sent.status.name}, expected SEND_OK"
            )

    async def commit(self) -> None:
        """Make the message visible."""
        await self.end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Drop the message."""
        await self.end(TransactionState.ROLLBACK)

    async def unknown(self, error: BaseException | None = None) -> None:
        """Leave the decision to the broker's check."""
        await self.end(TransactionState.UNKNOWN, error)

    async def end(self, state: TransactionState, error: BaseException | None = None) -> None:
        """Send the state to the broker. A failure is logged: the broker checks later. ClientError: ended already."""
        if self.state is not None:
            raise ClientError(f"transaction {self.transaction_id} has already ended: {self.state.name}")
        self.state = state
        await self._producer.end_transaction(self, state, error)


class _Check(NamedTuple):
    address: str
    header: CheckTransactionStateHeader
    message: MessageExt


class TransactionProducer(Producer):
    """A Producer of half messages. Brokers send checks to any producer of the group, so keep one running.

    check: receives the half message of a transaction whose result the broker does not know, and returns its state; an
    exception or None means UNKNOWN. A coroutine function, or a plain function, which runs in a thread.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        *,
        check: CheckHandler | None = None,
        trace: bool = False,
        config: ProducerConfig | None = None,
        client: ClientInstance | None = None,
        hooks: Sequence[SendHook] = (),
    ) -> None:
        super().__init__(group, namesrv, trace=trace, config=config, client=client, hooks=hooks)
        self._check = check
        self._checks: asyncio.Queue[_Check] = asyncio.Queue(self.config.check_queue_max)
        self._workers: list[asyncio.Task[None]] = []
        self._pool: ThreadPoolExecutor | None = None

    def checker(self, handler: CheckHandler) -> CheckHandler:
        """Register the check handler. A decorator, to be used before `start`."""
        self._check = handler
        return handler

    async def start(self) -> None:
        """Start, and answer checks. Raises ClientError if there is no check handler."""
        if self._check is None:
            raise ClientError("found no check handler, expected one: pass check=, or use @producer.checker")
        if self._running:
            return
        await super().start()
        self._pool = ThreadPoolExecutor(self.config.check_concurrency, "mqtrail-check")
        self._workers = [self._client.spawn(self._serve_checks()) for _ in range(self.config.check_concurrency)]

    async def close(self) -> None:
        """Close as Producer.close does. Queued checks are dropped: the broker sends them to another producer."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        await super().close()

    # -- sending ---------------------------------------------------------------------------------------------------

    async def begin(self, message: Message, *, timeout_ms: int | None = None) -> Transaction:
        """Store a half message and return its open transaction. Raises as `send`.

        The delay level is ignored: a transactional message cannot be delayed. If the half message is stored less safely
        than requested (a status other than SEND_OK), the transaction is already rolled back.
        """
        properties = {name: value for name, value in message.properties.items() if name != PROPERTY_DELAY}
        properties |= {PROPERTY_TRAN_MSG: "true", PROPERTY_PGROUP: self._wire_group}
        half = replace(message, delay_level=0, properties=properties)
        transaction = Transaction(self, message, await self.send(half, timeout_ms=timeout_ms))
        if transaction.sent.status is not SendStatus.SEND_OK:
            await transaction.rollback()
        return transaction

    async def send_in_transaction(
        self, message: Message, local: LocalHandler, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Store a half message, run the local transaction, send its state to the broker.

        local receives the Transaction and returns the state; None or an exception means UNKNOWN. A plain function runs
        in a thread. timeout_ms: of the half message's send. Raises as `send`; then local was not called.
        """
        transaction = await self.begin(message, timeout_ms=timeout_ms)
        if transaction.state is not None:
            return TransactionResult(transaction.sent, transaction.state)
        state, error = await _outcome(local, transaction, None)
        await transaction.end(state, error)
        return TransactionResult(transaction.sent, state, error)

    @asynccontextmanager
    async def transaction(self, message: Message, *, timeout_ms: int | None = None) -> AsyncIterator[Transaction]:
        """Commit when the block ends, unless the block has ended the transaction.

        If the block raises, the state is UNKNOWN, because the local transaction may have committed before: the check
        decides. Raises ClientError if the half message was rolled back because it was stored less safely than
        requested.
        """
        transaction = await self.begin(message, timeout_ms=timeout_ms)
        transaction.require_open()
        try:
            yield transaction
        except Exception as error:
            if transaction.state is None:
                await transaction.unknown(error)
            raise
        if transaction.state is None:
            await transaction.commit()

    async def end_transaction(
        self, transaction: Transaction, state: TransactionState, error: BaseException | None = None
    ) -> None:
        """Send the state to the broker that stored the half message. A failure is logged: the broker checks later."""
        sent, message = transaction.sent, transaction.message
        topic = with_namespace(self._namespace, message.topic)
        try:
            address = self._client.master(sent.queue.broker_name, self._client.known_route(topic))
            _, commit_log_offset = parse_offset_msg_id(sent.offset_msg_id)
        except MQError as failure:
            log.sparse.warning("producer.end_transaction_failed", msg_id=sent.msg_id, error=str(failure))
            return
        header = EndTransactionHeader(
            producer_group=self._wire_group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=commit_log_offset,
            commit_or_rollback=int(state),
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id or None,
            topic=topic,
            broker_name=sent.queue.broker_name,
        )
        remark = f"executeLocalTransactionBranch exception: {error!r}" if error is not None else None
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        self._trace_end(message.topic, message.tags, keys, REGION_DEFAULT, header, address, state)
        await self._end_transaction(address, header, remark, self.config.send_timeout_ms)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _checker(self) -> TransactionChecker:
        return self

    def serve_check(self, address: str, command: RemotingCommand, message: MessageExt) -> None:
        """Queue a broker's check. A check beyond check_queue_max is dropped, because the broker repeats it."""
        try:
            header = CheckTransactionStateHeader.from_ext(command.ext)
            message = replace(message, topic=without_namespace(self._namespace, message.topic))
            self._checks.put_nowait(_Check(address, header, message))
        except MQError as error:
            log.sparse.warning("producer.check_unreadable", address=address, error=str(error))
        except asyncio.QueueFull:
            log.sparse.warning("producer.check_dropped", msg_id=message.msg_id, queued=self._checks.maxsize)

    async def _serve_checks(self) -> None:
        await keep_going("transaction check", self._serve_check_next, group=self.group)

    async def _serve_check_next(self) -> None:
        assert self._check is not None
        check = await self._checks.get()
        state, error = await _outcome(self._check, check.message, self._pool)
        message, asked = check.message, check.header
        header = EndTransactionHeader(
            producer_group=self._wire_group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=int(state),
            msg_id=message.msg_id,
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=asked.topic,
            broker_name=asked.broker_name,
        )
        properties = message.properties
        tags, keys = properties.get(PROPERTY_TAGS, ""), properties.get(PROPERTY_KEYS, "")
        region = properties.get(PROPERTY_MSG_REGION) or REGION_DEFAULT
        self._trace_end(message.topic, tags, keys, region, header, check.address, state)
        remark = f"checkLocalTransactionState Exception: {error!r}" if error is not None else None
        await self._end_transaction(check.address, header, remark, self.config.check_timeout_ms)

    async def _end_transaction(
        self, address: str, header: EndTransactionHeader, remark: str | None, timeout_ms: int
    ) -> None:
        command = RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext(), b"", remark)
        try:
            await self._client.pool.oneway(address, command, timeout_ms)
        except (MQError, OSError) as error:
            log.sparse.warning(
                "producer.end_transaction_failed", msg_id=header.msg_id, address=address, error=str(error)
            )

    def _trace_end(
        self,
        topic: str,
        tags: str,
        keys: str,
        region: str,
        header: EndTransactionHeader,
        address: str,
        state: TransactionState,
    ) -> None:
        if self._tracer is not None:
            self._tracer.record_seldom(
                EndTransaction(
                    time_stamp=now_ms(),
                    region_id=region,
                    group_name=self.group,
                    topic=topic,
                    msg_id=header.msg_id,
                    tags=tags or None,
                    keys=keys or None,
                    store_host=address,
                    transaction_id=header.transaction_id,
                    transaction_state=_TRACED[state],
                    from_transaction_check=header.from_transaction_check,
                )
            )


async def _outcome(
    handler: Callable[[Any], Any], argument: object, pool: ThreadPoolExecutor | None
) -> tuple[TransactionState, Exception | None]:
    """Run a handler; return its state, and the exception or invalid answer that made it UNKNOWN."""
    try:
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            answer = await handler(argument)
        else:
            answer = await asyncio.get_running_loop().run_in_executor(pool, handler, argument)
            answer = await answer if inspect.isawaitable(answer) else answer
    except Exception as error:
        log.sparse.exception("producer.transaction_handler_failed", handler=getattr(handler, "__name__", repr(handler)))
        return TransactionState.UNKNOWN, error
    if answer is None:
        return TransactionState.UNKNOWN, None
    if not isinstance(answer, TransactionState):
        text = f"found {answer!r} from a transaction handler, expected a TransactionState"
        log.sparse.error("producer.transaction_handler_failed", error=text)
        return TransactionState.UNKNOWN, ClientError(text)
    return answer, None
