"""Stable ids of the rows that the sink sends, so that a task that runs again recognises what is stored.

    spark-<task>-<row>-<number>     the id (UNIQ_KEY) of a row
    spark-<task>-first-<place>      the id of the first message of a task to a place: the marker. The row's own id is in
                                    its property SPARK_ROW_ID

task: hash of the write (streaming query and micro-batch, or the name of a batch write) and the Spark partition.
row: hash of the row's content, or of the value of idColumn. number: the row's number in its task, so that equal rows
have different ids; it is left out with idColumn. The rows of a partition may come in another order when a task runs
again, so only <task> and <row> are compared.

The form differs from that of RocketMQ's own clients, whose ids contain a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

ROW_ID_PROPERTY: Final = "SPARK_ROW_ID"
_PREFIX: Final = "spark-"


class TaskIds:
    """The ids of one task's rows, the same in each of its attempts."""

    def __init__(self, write: str, partition: int, *, by_column: bool = False) -> None:
        self.write = write
        self.partition = partition
        self._by_column = by_column
        self.task = blake2b(repr((write, partition)).encode(), digest_size=16).hexdigest()
        self.prefix = f"{_PREFIX}{self.task[:16]}-"

    def marker(self, topic: str, stored_in: str) -> str:
        """Return the id of the task's first message to a topic; stored_in: the topic in which the broker stores it."""
        place = blake2b(repr((topic, stored_in)).encode(), digest_size=6).hexdigest()
        return f"{self.prefix}first-{place}"

    def row(self, number: int, content: Any, body: bytes = b"") -> str:
        """Return the id of a row. content: its values (or that of idColumn), of types whose repr is exact."""
        hashed = blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=12)
        hashed.update(body)
        return f"{self.prefix}{hashed.hexdigest()}" + ("" if self._by_column else f"-{number:x}")

    def row_hash(self, row_id: str) -> str:
        """Return the part of a row's id that is compared."""
        return row_id[len(self.prefix) :].partition("-")[0]


class StoredRows:
    """The rows of a task that earlier attempts stored. Equal rows count as often as they were stored."""

    def __init__(self, ids: TaskIds, row_ids: Iterable[str] = ()) -> None:
        self._ids = ids
        self._left = Counter(ids.row_hash(row_id) for row_id in set(row_ids))

    def take(self, row_id: str) -> bool:
        """Whether this row is stored; each stored one is given once."""
        row = self._ids.row_hash(row_id)
        count = self._left.get(row, 0)
        if count:
            self._left[row] = count - 1
        return count > 0
