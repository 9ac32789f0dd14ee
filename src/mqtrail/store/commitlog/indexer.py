"""Building the index, off the path: what an append stored is handed over, and indexed in strokes between requests.

What was handed over needs no reading back. When too much waits (or after a start) it is let go, and the log is read
from where the index ends.
Source of what is indexed: IndexService.buildIndex, apache/rocketmq store/.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mqtrail.store.base import Appended, PendingRecord
from mqtrail.store.commitlog.damage import damaged, next_whole
from mqtrail.store.commitlog.index import Index, IndexLost
from mqtrail.store.commitlog.log import CommitLog
from mqtrail.wire import MessageSysFlag, RecordError, find_property

WAITING_SIZE_MAX = 16 * 1024 * 1024  # bytes of records that are kept for the index
UNIQUE_MARK = b"UNIQ_KEY\x01"
UNIQUE_START = len(UNIQUE_MARK)
TRANSACTION_ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)


class Indexer:
    """Brings an index up to its log's end."""

    def __init__(self, log: CommitLog, index: Index, *, skip_damaged: bool = False) -> None:
        """skip_damaged: what is no record in the log is stepped over. Else StoreError where it is met."""
        self._skip_damaged = skip_damaged
        self._log = log
        self._index = index
        self.position = max(index.end_offset, log.first_offset)  # the last one is looked at again
        self._waiting: deque[tuple[Sequence[PendingRecord], list[Appended], int]] = deque()

    @property
    def behind_size(self) -> int:
        """Bytes of the log that the index has not seen."""
        return self._log.end_offset - self.position

    def hand_over(self, begin: int, records: Sequence[PendingRecord], tickets: list[Appended], store_ms: int) -> None:
        """Take what an append stored; the log ended at begin before it."""
        if self._waiting or self.position == begin:
            if self.behind_size <= WAITING_SIZE_MAX:
                self._waiting.append((records, tickets, store_ms))
            else:
                self._waiting.clear()

    def dispatch(self, count_max: int) -> int:
        """Index at most count_max records, or the last append's however many it has; return how many were done.

        StoreFull: there is no room for the entries; they wait. StoreError: the log is damaged where it is read again.
        """
        self._index.write_entries()  # what an earlier stroke found no room for
        done = 0
        try:
            if self._waiting:
                done = self._put_waiting(count_max)
            else:
                done = self._read(count_max)
            self._index.write_entries()
        except BaseException as error:
            self._waiting.clear()  # one of them is put in part: the log is read from what was put whole
            if not isinstance(error, IndexLost):
                raise
            self.position = max(self._index.end_offset, self._log.first_offset)
        return done

    def _put_waiting(self, count_max: int) -> int:
        """Index what was handed over, all appends of one millisecond at once."""
        hash_of, waiting = self._index.hash_of, self._waiting
        hashes: list[tuple[int, int]] = []
        done, end, of_ms = 0, self.position, waiting[0][2]
        while waiting and done < count_max:
            records, tickets, store_ms = waiting.popleft()
            if store_ms != of_ms:
                self._index.put(hashes, of_ms)
                self.position = end
                hashes, of_ms = [], store_ms
            for record, ticket in zip(records, tickets, strict=True):
                if record[8] & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK:  # sys_flag, of a plain tuple as well
                    topic, physical_offset = record[0], ticket[0]
                    for key in keys_of(record[3]):
                        hashes.append((hash_of(topic, key), physical_offset))
            done += len(tickets)
            end = tickets[-1][3]
        self._index.put(hashes, of_ms)
        self.position = end
        return done

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
                    hashes = [(index.hash_of(head.topic, key), head.physical_offset) for key in keys]
                    index.put(hashes, head.store_timestamp_ms)
                done += 1
            self.position = after
        return done

    def expire(self) -> None:
        """Forget what the log no longer has."""
        self._index.expire(self._log.first_offset)
        if self.position < self._log.first_offset:
            self.position = self._log.first_offset
            self._waiting.clear()


def keys_of(properties: bytes) -> list[bytes]:
    """Return what a record is indexed under: UNIQ_KEY, then each word of KEYS."""
    if properties.startswith(UNIQUE_MARK) and properties.find(UNIQUE_MARK, 1) < 0:
        # As clients and our broker write it: first, and once.
        end = properties.find(b"\x02", UNIQUE_START)
        unique: bytes | None = properties[UNIQUE_START:end] if end > UNIQUE_START else None
    else:
        unique = find_property(properties, b"UNIQ_KEY")
    keys = [] if unique is None else [unique]
    if b"KEYS" in properties:
        words = find_property(properties, b"KEYS")
        if words is not None:
            keys += [word for word in words.split(b" ") if word]
    return keys


assert PendingRecord._fields.index("properties") == 3
assert PendingRecord._fields.index("sys_flag") == 8
