"""The check loop: asks producers about half messages without an end, at most transaction_check_max times.

Every transaction_check_ms a round continues through each half queue. It first reads all op records, which list finished
half messages. Then it handles the half messages in order:

    finished                              next
    checked too often, or too old         moved to TRANS_CHECK_MAX_TIME_TOPIC, next
    stored during this round              the round ends
    within its immunity time              appended again at the end, next
    younger than transaction_timeout_ms   the round ends
    else                                  appended again, TRANSACTION_CHECK_TIMES + 1; its producer is asked

So a round ends at the first half message that is too young, and messages before it are not read again. Its progress is
committed as the offsets of CID_RMQ_SYS_TRANS when everything appended until then is durable: copies, op records and
committed messages.

A round works in slices; `next_due_ms` returns when the next one is due.
Source: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener, apache/rocketmq broker/.
"""

from collections import OrderedDict, deque
from typing import Final

from mqtrail.store import Appended
from mqtrail.wire import (
    FLAG_ONEWAY,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    RAW_CHECK_IMMUNITY_TIME,
    RAW_PGROUP,
    RAW_UNIQ_KEY,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
    Buffer,
    CheckTransactionStateHeader,
    MQError,
    Perm,
    RecordHead,
    RemotingCommand,
    RequestCode,
    Send,
    find_property,
    number_of,
    offset_msg_id,
)

from ..properties import real_queue
from ..state import BrokerState
from .records import SECONDS_DIGITS_MAX, copied_half, half_offsets_of, moved_record, question_body

READ_COUNT: Final = 32  # op records per read
READ_SIZE: Final = 1 << 20
OPS_MAX: Final = 512  # op records read by one slice
ENDS_READ_MAX: Final = 10_000  # half messages listed by the op records of one slice
HALF_MESSAGES_MAX: Final = 1_000  # half messages handled by one slice
RETRY_MS: Final = 1_000  # delay after the store refused a copy
ENDED_MAX: Final = 100_000  # remembered half messages that ended, or have copies
COMMITS_MAX: Final = 16  # rounds whose offsets wait for a flush
_CLOCK_SKEW_MS: Final = -1  # a message with a store time in the future is checked immediately


class EndedHalfMessages:
    """Half messages that ended since the start, and their copies: the newest ENDED_MAX of each.

    This prevents second commits; op records are authoritative.
    """

    def __init__(self) -> None:
        # OrderedDict: finding the first key of a plain dict walks past all deleted ones.
        self._ended: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._copies: OrderedDict[tuple[int, int], int] = OrderedDict()
        self.forgotten = -1
        """The highest queue offset of a forgotten end."""

    def has(self, queue_id: int, queue_offset: int) -> bool:
        return (queue_id, queue_offset) in self._ended

    def add(self, queue_id: int, queue_offset: int) -> list[int]:
        """Store an end; return the queue offsets that it finishes: of the half message and its copies."""
        offsets = [queue_offset]
        while (copy := self._copies.get((queue_id, offsets[-1]))) is not None:
            offsets.append(copy)
        for offset in offsets:
            self._ended[queue_id, offset] = None
        while len(self._ended) > ENDED_MAX:
            (_, forgotten), _ = self._ended.popitem(last=False)
            self.forgotten = max(self.forgotten, forgotten)
        return offsets

    def note_copy(self, queue_id: int, queue_offset: int, copy: int) -> None:
        self._copies[queue_id, queue_offset] = copy
        while len(self._copies) > ENDED_MAX:
            self._copies.popitem(last=False)


class _Round:
    """One round through one half queue. half, op: the next offset of each queue to read."""

    def __init__(self, queue_id: int, half: int, op: int, half_end: int) -> None:
        """half_end: end of the half queue at the start of the round."""
        self.queue_id = queue_id
        self.half_end = half_end
        self.half_first = self.half = half
        self.op_first = self.op = op
        self.op_of: dict[int, int] = {}  # finished half message -> its op record
        self.left: dict[int, int] = {}  # op record -> number of its half messages not yet reached
        self.has_ended = False
        self.has_met_all = False

    def note_op(self, op_offset: int, half_offsets: list[int]) -> None:
        for half_offset in half_offsets:
            if half_offset not in self.op_of:
                self.op_of[half_offset] = op_offset
                self.left[op_offset] = self.left.get(op_offset, 0) + 1

    def take_done(self, half_offset: int) -> bool:
        """Return whether a half message is finished, and count it for its op record."""
        op_offset = self.op_of.pop(half_offset, None)
        if op_offset is None:
            return False
        self.left[op_offset] -= 1
        if not self.left[op_offset]:
            del self.left[op_offset]
        return True

    def op_end(self) -> int:
        """Return the first op record that is still needed: it lists half messages not yet reached."""
        return self.op if self.has_met_all else min(self.left, default=self.op)


class TransactionCheck:
    """The check loop of one broker."""

    def __init__(self, state: BrokerState, ended: EndedHalfMessages) -> None:
        self._access = state.access
        self._config = state.config
        self._store = state.store
        self._own = state.own
        self._topics = state.topics
        self._clients = state.clients
        self._offsets = state.offsets
        self._writer = state.writer
        self._ended = ended
        self._half: dict[int, int] = {}  # queue id -> start of the next round
        self._op: dict[int, int] = {}
        self._commits: deque[tuple[int, int, int, int]] = deque()  # CommitLog's end, queue id, half offset, op offset
        self._rounds: list[_Round] = []
        self._next_ms = state.boot_ms + state.config.transaction_check_ms
        self._retry_ms = 0
        self._turn = 0

    # The clock.

    @property
    def round_ms(self) -> int:
        """Time of the next round, if a half message is open then."""
        return self._next_ms

    def next_due_ms(self) -> int | None:
        """Return when `tick` is due; None: nothing is open."""
        if self._rounds:
            return self._retry_ms
        return self._next_ms if any(map(self._is_open, self._store.queue_ids(HALF_TOPIC))) else None

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        self._next_ms -= by_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether `tick` has work. All ends must be in op records by then."""
        if self._rounds:
            return not now_ms < self._retry_ms <= now_ms + RETRY_MS
        return now_ms >= self._next_ms and self.next_due_ms() is not None

    def _is_open(self, queue_id: int) -> bool:
        half, op = self._positions(queue_id)
        return half < self._store.max_offset(HALF_TOPIC, queue_id) or op < self._store.max_offset(
            OP_HALF_TOPIC, queue_id
        )

    def _positions(self, queue_id: int) -> tuple[int, int]:
        """Return the start of a queue's next round in its half queue and its op queue."""
        if queue_id not in self._half:
            for known, topic in ((self._half, HALF_TOPIC), (self._op, OP_HALF_TOPIC)):
                first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
                committed = self._offsets.get(TRANSACTION_GROUP, topic, queue_id)
                known[queue_id] = min(max(first if committed is None else committed, first), end)
        return self._half[queue_id], self._op[queue_id]

    def walked(self, queue_id: int) -> int:
        """Return the queue offset before which every half message is finished, copied or given up."""
        return next((walk.half for walk in self._rounds if walk.queue_id == queue_id), self._positions(queue_id)[0])

    def tick(self, now_ms: int) -> list[Send]:
        """Run one slice; return checks for producers. If the store refuses, try again in a second."""
        self._retry_ms = 0
        if not self._rounds:
            self._next_ms = now_ms + self._config.transaction_check_ms
            for queue_id in self._store.queue_ids(HALF_TOPIC):
                half_end = self._store.max_offset(HALF_TOPIC, queue_id)
                self._rounds.append(_Round(queue_id, *self._positions(queue_id), half_end))
        sends: list[Send] = []
        current = self._rounds[0]
        try:
            if not current.has_ended and self._read_ops(current):
                self._walk(current, sends, now_ms)
        except MQError:
            self._retry_ms = now_ms + RETRY_MS
        if current.has_ended:
            self._rounds.pop(0)
            self._half[current.queue_id], self._op[current.queue_id] = current.half, current.op_end()
            self._commits.append((self._store.end_offset, current.queue_id, current.half, current.op_end()))
            if len(self._commits) > COMMITS_MAX:  # the newer ones include it
                self._commits.popleft()
        return sends

    def save(self, *, final: bool = False) -> None:
        """Commit the offsets of rounds whose records are durable. final: flush them."""
        if final and self._commits:
            try:
                self._store.flush()
            except (MQError, OSError):
                return  # the next start repeats the last rounds
        while self._commits and self._commits[0][0] <= self._store.flushed_offset:
            _, queue_id, half, op = self._commits.popleft()
            self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, queue_id, half)
            self._offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, queue_id, op)

    # A round.

    def _read_ops(self, current: _Round) -> bool:
        """Read some op records; return whether all were read."""
        end = self._store.max_offset(OP_HALF_TOPIC, current.queue_id)
        left, ends_left = OPS_MAX, ENDS_READ_MAX
        while current.op < end and left > 0 and ends_left > 0:
            found = self._own.read(OP_HALF_TOPIC, current.queue_id, current.op, READ_COUNT, READ_SIZE)
            for record, head in found.records:
                body = bytes(record[head.body_start : head.body_end])
                text = bytes(record[head.properties_start : head.properties_end])
                done = half_offsets_of(body, text)
                ends_left -= len(done)
                current.note_op(head.queue_offset, [offset for offset in done if offset >= current.half_first])
                for offset in done:
                    if offset < current.half_first:  # its copy may follow
                        self._ended.add(current.queue_id, offset)
            left -= max(1, len(found.records))
            if found.next_queue_offset <= current.op:
                break
            current.op = found.next_queue_offset
        return current.op >= end or (left > 0 and ends_left > 0)

    def _walk(self, current: _Round, sends: list[Send], now_ms: int) -> None:
        end = self._store.max_offset(HALF_TOPIC, current.queue_id)
        for _ in range(HALF_MESSAGES_MAX):
            if current.half >= end:
                current.has_ended = current.has_met_all = True
                return
            if current.take_done(current.half):
                current.half += 1
                continue
            found = self._own.read(HALF_TOPIC, current.queue_id, current.half, 1, 1)
            if not found.records:
                if found.next_queue_offset <= current.half:
                    current.has_ended = True
                    return
                current.half = found.next_queue_offset  # expired, or damaged
                continue
            record, head = found.records[0]
            if not self._pass(current, bytes(record), head, sends, now_ms):
                current.has_ended = True
                return
            current.half = head.queue_offset + 1

    def _pass(self, current: _Round, record: Buffer, head: RecordHead, sends: list[Send], now_ms: int) -> bool:
        """Handle a half message without an end; False: the round ends before it."""
        text = bytes(record[head.properties_start : head.properties_end])
        times = number_of(find_property(text, PROPERTY_TRANSACTION_CHECK_TIMES.encode()))
        age_ms = now_ms - head.born_timestamp_ms
        if (
            (times or 0) >= self._config.transaction_check_max
            or age_ms > self._store.retention_ms > 0
            or real_queue(text) is None
        ):
            self._give_up(record, head, now_ms)
            return True
        if head.queue_offset >= current.half_end:
            return False
        immunity = find_property(text, RAW_CHECK_IMMUNITY_TIME)
        if immunity is None:
            if 0 <= age_ms <= self._config.transaction_timeout_ms:
                return False
        else:
            seconds = number_of(immunity, SECONDS_DIGITS_MAX)
            limit_ms = self._config.transaction_timeout_ms if seconds is None else seconds * 1_000
            original = number_of(find_property(text, PROPERTY_TRAN_PREPARED_QUEUE_OFFSET.encode()))
            if original is not None and (current.take_done(original) or self._ended.has(current.queue_id, original)):
                return True
            if _CLOCK_SKEW_MS < age_ms <= limit_ms:
                first = head.queue_offset if original is None else original
                self._append_again(record, head, {PROPERTY_TRAN_PREPARED_QUEUE_OFFSET: str(first)}, now_ms)
                return True
        changes = {PROPERTY_TRANSACTION_CHECK_TIMES: str((times or 0) + 1)}
        place, question = self._append_again(record, head, changes, now_ms)
        sends += self._ask(text, place, question)
        return True

    def _give_up(self, record: Buffer, head: RecordHead, now_ms: int) -> None:
        self._topics.create_own(TRANS_CHECK_MAX_TIME_TOPIC, 1, Perm.READ | Perm.WRITE, now_ms)
        self._writer.write([moved_record(record, head, TRANS_CHECK_MAX_TIME_TOPIC)], now_ms)

    def _append_again(
        self, record: Buffer, head: RecordHead, changes: dict[str, str], now_ms: int
    ) -> tuple[Appended, bytes]:
        """Append a copy at the end; return its place and the record for a check."""
        copy = copied_half(record, head, changes)
        (place,) = self._writer.write([copy], now_ms)
        self._ended.note_copy(head.queue_id, head.queue_offset, place.queue_offset)
        return place, question_body(record, head, copy, place.physical_offset, place.queue_offset)

    def _ask(self, text: bytes, place: Appended, body: bytes) -> list[Send]:
        """Return the check (39) for one of the group's producers, in turn; empty if none is connected.

        A check contains the half message, and any client may claim any producer group. So only clients with permission
        to publish to its topic are asked.
        """
        group = (find_property(text, RAW_PGROUP) or b"").decode("utf-8", "replace")
        destination = real_queue(text)
        topic = "" if destination is None else destination[0]
        may_publish = self._access.may_publish
        producers = [one for one in self._clients.producers(group) if may_publish(one.peer, one.account, topic)]
        if not producers:
            return []
        self._turn += 1
        unique_key = find_property(text, RAW_UNIQ_KEY)
        message_id = None if unique_key is None else unique_key.decode("utf-8", "replace")
        header = CheckTransactionStateHeader(
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.physical_offset,
            msg_id=message_id,
            transaction_id=message_id,
            offset_msg_id=offset_msg_id(self._config.address, place.physical_offset),
            topic=HALF_TOPIC,
            broker_name=self._config.broker_name,
        )
        command = RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE,
            header.to_ext(),
            body,
            opaque=self._turn & 0x7FFFFFFF,
            flag=FLAG_ONEWAY,
        )
        return [Send(producers[self._turn % len(producers)].peer.id, command)]
