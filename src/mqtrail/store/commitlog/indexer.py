"""Building the index: appends pass their records, which are indexed together, those of one millisecond at a time.

These records need not be read again, and their keys are still in the processor's cache. After a start or a failure the
log is read from the index's end.
Source of what is indexed: IndexService.buildIndex, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from mqtrail.wire import RAW_KEYS, RAW_UNIQ_KEY, MessageSysFlag, RecordError, find_property

from ..base import Appended, PendingRecord
from ..errors import StoreError, StoreFull
from .damage import damaged, next_whole
from .index import Index, IndexLost
from .key_hashes import COUNTER_HIGH_PARTS, COUNTER_LOW_PARTS, HASH_BITS, SIGN_BIT, TIME_PARTS, KeyHashes
from .log import CommitLog

WAITING_MAX = 256  # records that wait to be indexed, before those of one more append
UNIQUE_MARK = RAW_UNIQ_KEY + b"\x01"
UNIQUE_START = len(UNIQUE_MARK)
PROPERTY_END = b"\x02"
KEY_NAME_PART = b"KEY"  # of UNIQ_KEY and of KEYS
TRANSACTION_ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)


class Indexer:
    """Keeps an index up to date with its log."""

    def __init__(self, log: CommitLog, index: Index, *, skip_damaged: bool = False) -> None:
        """skip_damaged: damaged parts of the log are skipped. Otherwise they raise StoreError."""
        self._skip_damaged = skip_damaged
        self._log = log
        self._index = index
        self._key_hashes = KeyHashes()
        self.position = max(index.end_offset, log.first_offset)  # the last one is read again
        self._records: list[PendingRecord] = []  # the waiting records, and their store time
        self._store_ms = 0
        self._tickets: list[Appended] = []

    @property
    def behind_size(self) -> int:
        """Bytes of the log that the index has not seen."""
        return self._log.end_offset - self.position

    def hand_over(self, begin: int, records: Sequence[PendingRecord], tickets: list[Appended], store_ms: int) -> None:
        """Add the records of an append; begin: the log's end before it. This never fails: `dispatch` retries."""
        waiting = self._tickets
        if waiting:
            if store_ms == self._store_ms and len(waiting) < WAITING_MAX:
                self._records += records
                waiting += tickets
                return
            try:
                self._put_waiting()
            except (OSError, StoreError, StoreFull, IndexLost):
                return
        if self.position == begin:
            self._records, self._tickets, self._store_ms = [*records], [*tickets], store_ms

    def leave_to_log(self) -> None:
        """Let the records of the next append be read from the log, in slices. This never fails: `dispatch` retries."""
        if self._tickets:
            with suppress(OSError, StoreError, StoreFull, IndexLost):
                self._put_waiting()

    def dispatch(self, count_max: int) -> int:
        """Index at most count_max records, or the waiting ones; return how many were indexed.

        StoreFull: there is no space for the entries; they wait. StoreError: the log is damaged.
        """
        self._index.write_entries()  # those that an earlier call had no space for
        done = len(self._tickets)
        try:
            if done:
                self._put_waiting()
            else:
                done = self._read(count_max)
        except IndexLost:
            pass
        self._index.write_entries()
        return done

    def _put_waiting(self) -> None:
        """Index the waiting records. If that fails, the log is read from the last complete one."""
        records, tickets, self._records, self._tickets = self._records, self._tickets, [], []
        index, key_hashes = self._index, self._key_hashes
        hashes: list[int] = []
        physical_offsets: list[int] = []
        topic, heads = "", key_hashes.heads("")
        for record, ticket in zip(records, tickets, strict=True):
            properties = record[3]
            if record[8] & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:  # sys_flag, of a plain tuple as well
                continue
            if record[0] != topic:
                topic = record[0]
                heads = key_hashes.heads(topic)
            if properties.startswith(UNIQUE_MARK) and properties.find(KEY_NAME_PART, UNIQUE_START) < 0:
                # As clients and our broker write it: first, once, and without KEYS. sum_of_parts does the same.
                end = properties.find(PROPERTY_END, UNIQUE_START)
                key = properties[UNIQUE_START:end] if end >= 0 else properties[UNIQUE_START:]
                try:
                    value = (
                        heads[key[:-8]]
                        + TIME_PARTS[key[-8:-4]]
                        + COUNTER_HIGH_PARTS[key[-4:-2]]
                        + COUNTER_LOW_PARTS[key[-2:]]
                    ) & HASH_BITS
                except KeyError:
                    pass
                else:
                    if value >= SIGN_BIT:
                        value = HASH_BITS + 1 - value if value > SIGN_BIT else 0
                    hashes.append(value)
                    physical_offsets.append(ticket[0])
                    continue
            for key in keys_of(properties):
                hashes.append(key_hashes.of(topic, key))
                physical_offsets.append(ticket[0])
        try:
            index.put(hashes, physical_offsets, self._store_ms)
        except IndexLost:
            self.position = max(index.end_offset, self._log.first_offset)
            raise
        self.position = tickets[-1][3]

    def _read(self, count_max: int) -> int:
        done = 0
        log, index = self._log, self._index
        while done < count_max and self.position < log.end_offset:
            try:
                head, view, after = log.scan(self.position, crc=False)
            except RecordError as error:
                if not self._skip_damaged:
                    raise damaged(log, self.position, error) from error
                self.position = next_whole(log, self.position, log.end_offset)
                continue
            if head is not None:
                if head.sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK:
                    keys = keys_of(bytes(view[head.properties_start : head.properties_end]))
                    hashes = [self._key_hashes.of(head.topic, key) for key in keys]
                    try:
                        index.put(hashes, [head.physical_offset] * len(hashes), head.store_timestamp_ms)
                    except IndexLost:
                        self.position = max(index.end_offset, log.first_offset)
                        raise
                done += 1
            self.position = after
        return done

    def restart(self) -> None:
        """Index again from the index's end, since one of its files was removed."""
        self.position = max(self._index.end_offset, self._log.first_offset)
        self._records, self._tickets = [], []

    def expire(self) -> None:
        """Remove entries of expired records."""
        self._index.expire(self._log.first_offset)
        if self.position < self._log.first_offset:
            self.position = self._log.first_offset
            self._records, self._tickets = [], []


def keys_of(properties: bytes) -> list[bytes]:
    """Return the keys to index a record by: UNIQ_KEY, then each word of KEYS."""
    unique = find_property(properties, RAW_UNIQ_KEY)
    keys = [unique] if unique else []
    if RAW_KEYS in properties:
        words = find_property(properties, RAW_KEYS)
        if words is not None:
            keys += [word for word in words.split(b" ") if word]
    return keys


assert PendingRecord._fields.index("properties") == 3
assert PendingRecord._fields.index("sys_flag") == 8
