"""Queries by key: the index gives records that may have the key; a query reads each of them to check it.

A query works in slices, since many collisions or one hot key can put millions of entries into one chain. It reads the
newest entries first, at most ENTRIES_MAX entries and RECORDS_MAX records; its result says whether it stopped there.

Source of what a query finds: DefaultMessageStore.queryMessage, IndexService.queryOffset, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from mqtrail.wire import QueryNotFound, SystemBusy, decode_head, index_key_hash

from ..base import IndexQueryResult
from .index import Index
from .index_file import IndexDamaged
from .indexer import Indexer, keys_of
from .reading import Reader

COUNT_MAX = 64  # records of one result
ENTRIES_MAX = 200_000  # index entries read by one query
ENTRIES_A_SLICE = 1_000  # each may need a block of 4 KB
RECORDS_MAX = 4_096  # read by one query
SLICE_SIZE = 1024 * 1024  # bytes of records read in one slice
CATCH_UP_MAX = 20_000  # records that a query indexes before it searches
CATCH_UP_A_SLICE = 500


class Lookup:
    """Finds records by key in one store."""

    def __init__(self, index: Index, indexer: Indexer, reader: Reader, *, is_indexed: bool) -> None:
        """is_indexed: appended records are indexed; otherwise queries find only records indexed before the start."""
        self._is_indexed = is_indexed
        self._index = index
        self._indexer = indexer
        self._reader = reader

    def query_in_slices(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, IndexQueryResult]:
        """Return records under topic and key; see the contract.

        SystemBusy: the index is too far behind, or damaged, so the result would be incomplete.
        """
        yield from self._catch_up()
        count_max = min(count_max, COUNT_MAX)
        wanted = key.encode("utf-8", "replace")
        found: dict[int, bytes] = {}
        seen: set[int] = set()
        size = 0
        is_cut = False
        for physical_offset in self._places(index_key_hash(topic, key), begin_ms, end_ms):
            if physical_offset is None or size > SLICE_SIZE:
                size = 0
                yield
            if len(found) >= count_max:
                break
            if physical_offset is None or physical_offset in seen:
                continue
            if physical_offset < 0 or len(seen) >= RECORDS_MAX:
                is_cut = True
                break
            seen.add(physical_offset)
            try:
                record = self._reader.record_at(physical_offset)
            except QueryNotFound:
                continue  # expired since it was indexed
            size += len(record)
            head = decode_head(record)
            if head.topic == topic and wanted in keys_of(bytes(record[head.properties_start : head.properties_end])):
                found[physical_offset] = record
        records = [found[physical_offset] for physical_offset in sorted(found)]
        return IndexQueryResult(records, self._index.end_ms, max(0, self._index.end_offset), is_cut)

    def _catch_up(self) -> Iterator[None]:
        """Index the records appended before the query. SystemBusy: there are too many, as after an unclean stop."""
        done, end = 0, self._indexer.position + self._indexer.behind_size
        while self._is_indexed and self._indexer.position < end:
            count = self._indexer.dispatch(min(CATCH_UP_A_SLICE, CATCH_UP_MAX - done))
            done += count
            if self._indexer.position >= end:
                return
            if done >= CATCH_UP_MAX:
                raise SystemBusy(
                    f"found the index {self._indexer.behind_size} bytes behind the log, expected none: it is being "
                    "built, try again"
                )
            if not count:
                break
            yield

    def _places(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield the places of a hash's records, the newest first; None now and then; -1: stopped at a limit.

        SystemBusy: the index is damaged, so "not found" could be wrong.
        """
        index, left = self._index, ENTRIES_MAX
        drops = index.drop_count
        for file in reversed(index.files[:]):
            if file.is_empty or file.end_ms < begin_ms or file.begin_ms > end_ms or file not in index.files:
                continue  # the last: it expired meanwhile
            try:
                number = file.newest(key_hash)
                while number:
                    count = min(left, ENTRIES_A_SLICE)
                    physical_offsets, number, read_count = file.walk(key_hash, number, count, begin_ms, end_ms)
                    left -= read_count
                    yield from physical_offsets
                    if number and left <= 0:
                        yield -1
                        return
                    if number:
                        yield None
                    if index.drop_count != drops:
                        raise SystemBusy(
                            "found the index damaged during the query, expected no damage: try again later"
                        )
                    if file not in index.files:
                        break
            except IndexDamaged as error:
                index.drop_damaged(file, error)
                self._indexer.restart()
                raise SystemBusy(f"{error}: try again later") from error
            if file.begin_ms < begin_ms:
                return
