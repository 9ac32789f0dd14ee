"""Transactions: ends by producers (37), op records, and resuming half messages that were given up (323).

    send TRAN_MSG=true -> half topic     37 commit   -> real queue, then op record
                                         37 rollback -> op record
                                         no end      -> the check loop asks (check.py)

The record of a commit is in the log before the op record. After a crash in between, the half message is checked again,
so it may be committed twice, but is never lost. Ends are collected for transaction_op_delay_ms to share an op record. A
second end of the same half message, or of its copy by the check loop, is answered and ignored until the next start.

Source: EndTransactionProcessor, TransactionalMessageServiceImpl, AdminBrokerProcessor.resumeCheckHalfMessage,
apache/rocketmq broker/.
"""

from typing import Final

from mqtrail.wire import (
    HALF_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    RAW_CHECK_IMMUNITY_TIME,
    RAW_PGROUP,
    EndTransactionHeader,
    IllegalOperation,
    MessageSysFlag,
    MQError,
    Peer,
    QueryNotFound,
    Refusal,
    RemotingCommand,
    ResumeCheckHalfMessageHeader,
    Send,
    StoredKind,
    SystemBusy,
    SystemError_,
    answer,
    decode_head,
    find_property,
    number_of,
    parse_offset_msg_id,
)

from ..properties import real_queue
from ..state import BrokerState
from .check import EndedHalfMessages, TransactionCheck
from .counts import EndCounts, OpenHalfMessages
from .records import SECONDS_DIGITS_MAX, committed_record, copied_half, op_records

ENDS_MAX: Final = 100_000  # ends that wait for an op record; reached only if the store refuses all appends
RETRY_MS: Final = 1_000  # delay after the store refused an op record
_OUTCOMES: Final = (MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK)


class Transactions:
    """The transactions of one broker."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store
        self._writer = state.writer
        self._born_host = state.config.address.packed()
        self._ends: dict[int, list[int]] = {}  # queue id -> queue offsets of finished half messages
        self._ends_count = self._ends_size = 0
        self._ends_due_ms: int | None = None
        self._is_refused = False  # the store refused an op record: all ends wait
        self._ended = EndedHalfMessages()
        self._check = TransactionCheck(state, self._ended)
        self.counts = EndCounts()
        self.open_half_messages = OpenHalfMessages(state.store, self._check, self._ended)

    # Requests.

    def end(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """37: commit or roll back a half message. No answer if the producer does not know the outcome.

        SystemError_: no such half message, or of another group. IllegalOperation: too late, a check will follow.
        """
        header = EndTransactionHeader.from_ext(request.ext)
        if header.commit_or_rollback not in _OUTCOMES:
            return []
        try:
            record = self._store.read_at(header.commit_log_offset)
        except QueryNotFound as error:
            raise SystemError_(f"Find prepared transaction message failed: {error.remark}") from error
        head = decode_head(record)
        text = record[head.properties_start : head.properties_end]
        if head.topic != HALF_TOPIC:
            raise SystemError_(
                f"Find prepared transaction message failed: found a message of topic {head.topic} at "
                f"{header.commit_log_offset}, expected one of {HALF_TOPIC}"
            )
        if not header.from_transaction_check:
            self._check_age(text, head.born_timestamp_ms, now_ms)
        group = find_property(text, RAW_PGROUP)
        if group is None or group.decode("utf-8", "replace") != header.producer_group:
            raise SystemError_("The producer group wrong")
        if head.queue_offset != header.tran_state_table_offset:
            raise SystemError_("The transaction state table offset wrong")
        if self._ended.has(head.queue_id, head.queue_offset):
            return answer(peer, request, after_offset=self._store.end_offset)
        if self._ends_count >= ENDS_MAX:
            raise SystemBusy(
                f"found {ENDS_MAX} ends of transactions that wait for the store, expected fewer: try again later"
            )
        after_offset = 0
        destination = real_queue(text)
        if header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT:
            if destination is None:
                raise SystemError_(
                    "Find prepared transaction message failed: it does not name its real topic and queue"
                )
            (place,) = self._writer.write([committed_record(record, head, *destination)], now_ms, StoredKind.COMMIT)
            after_offset = place.end_offset
            self.note_commit(head.queue_id, head.queue_offset, destination[0], head.born_timestamp_ms, now_ms)
        else:
            self.note_rollback(
                head.queue_id, head.queue_offset, None if destination is None else destination[0], now_ms
            )
        return answer(peer, request, after_offset=after_offset)

    def _check_age(self, text: bytes, born_ms: int, now_ms: int) -> None:
        """Raise IllegalOperation after the immunity time of the half message: a check will ask its producer."""
        immunity = find_property(text, RAW_CHECK_IMMUNITY_TIME)
        if immunity is None:
            return
        seconds = number_of(immunity, SECONDS_DIGITS_MAX) or 0
        limit_ms = max(seconds * 1_000, self._config.transaction_timeout_ms)
        if now_ms - born_ms > limit_ms:
            raise IllegalOperation(
                f"found a half message {now_ms - born_ms} ms old, expected its end within {limit_ms} ms "
                "(CHECK_IMMUNITY_TIME_IN_SECONDS): wait for the broker's check"
            )

    def resume(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """323: put back a half message that was given up, with no checks counted. SystemError_: there is none."""
        header = ResumeCheckHalfMessageHeader.from_ext(request.ext)
        failed = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
        try:
            _, physical_offset = parse_offset_msg_id(header.msg_id or "")
            record = self._store.read_at(physical_offset)
            head = decode_head(record)
            if real_queue(record[head.properties_start : head.properties_end]) is None:
                raise SystemError_("found a message without REAL_TOPIC and REAL_QID, expected a half message")
            pending = copied_half(record, head, {PROPERTY_TRANSACTION_CHECK_TIMES: "0"})._replace(queue_id=0)
            (place,) = self._writer.write([pending], now_ms, StoredKind.HALF)
        except MQError as error:
            raise SystemError_(f"{failed} {error.remark if isinstance(error, Refusal) else error}") from error
        return answer(peer, request, after_offset=place.end_offset)

    # For the fast lane, which commits half messages that it appended.

    def takes_end(self, queue_id: int, queue_offset: int, waiting: int) -> bool:
        """Return whether an end is the first and can be accepted. waiting: number of ends to be accepted before it."""
        return self._ends_count + waiting < ENDS_MAX and not self._ended.has(queue_id, queue_offset)

    def note_commit(self, queue_id: int, queue_offset: int, topic: str, born_ms: int, now_ms: int) -> None:
        """Finish a half message and its copies: its commit is in the log."""
        self.counts.committed(topic, now_ms - born_ms)
        self._note_end(queue_id, queue_offset, now_ms)

    def note_rollback(self, queue_id: int, queue_offset: int, topic: str | None, now_ms: int) -> None:
        """Finish a half message that was rolled back. topic None: it names none."""
        if topic is not None:
            self.counts.rollbacks[topic] += 1
        self._note_end(queue_id, queue_offset, now_ms)

    def _note_end(self, queue_id: int, queue_offset: int, now_ms: int) -> None:
        for offset in self._ended.add(queue_id, queue_offset):
            self._note(queue_id, offset, now_ms)

    def times_ms(self) -> tuple[int | None, int]:
        """Return the two times that `next_due_ms` depends on. This is cheaper, to find out if it may have changed.

        First, when op records are due; second, when the next round of checks starts if there is a half message.
        """
        return self._ends_due_ms, self._check.round_ms

    # Op records.

    def _note(self, queue_id: int, queue_offset: int, now_ms: int) -> None:
        self._ends.setdefault(queue_id, []).append(queue_offset)
        self._ends_count += 1
        self._ends_size += len(str(queue_offset)) + 1
        if self._ends_due_ms is None:
            self._ends_due_ms = now_ms + self._config.transaction_op_delay_ms
        if self._ends_size > self._config.transaction_op_size_max and self._ends_due_ms > now_ms:
            self._ends_due_ms = now_ms

    def _write_ends(self, now_ms: int) -> None:
        """Write op records for all ends. If the store refuses, try again in a second."""
        for queue_id, offsets in list(self._ends.items()):
            records = op_records(queue_id, offsets, self._config.transaction_op_size_max, now_ms, self._born_host)
            try:
                self._writer.write(records, now_ms)
            except MQError:
                self._ends_due_ms, self._is_refused = now_ms + RETRY_MS, True
                return
            del self._ends[queue_id]
            self._ends_count -= len(offsets)
        self._ends_size, self._ends_due_ms, self._is_refused = 0, None, False

    # The clock.

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        if self._ends_due_ms is not None:
            self._ends_due_ms -= by_ms
        self._check.set_back(by_ms)

    def next_due_ms(self) -> int | None:
        """Return when `tick` is due; None: no transaction is open."""
        times_ms = (self._ends_due_ms, None if self._is_refused else self._check.next_due_ms())
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    def tick(self, now_ms: int) -> list[Send]:
        """Write op records that are due, and continue the check; return its requests (39)."""
        is_due = self._check.is_due(now_ms)
        if self._ends_due_ms is not None and (now_ms >= self._ends_due_ms or (is_due and not self._is_refused)):
            self._write_ends(now_ms)
        if is_due and not self._ends:  # the check needs all ends in op records
            return self._check.tick(now_ms)
        return []

    def save(self, now_ms: int, *, final: bool = False) -> None:
        """Commit the durable progress of the check. final: first write the waiting op records."""
        if final:
            self._write_ends(now_ms)
        self._check.save(final=final)
