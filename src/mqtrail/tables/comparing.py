"""Whether a Delta table has the rows of its source: checksums, then the rows of the parts that differ.

    table at a version ─┐
    source in a snapshot ┴→ checksums of parts → rows of parts that differ → why: late, or missing, extra, different

Parts are ranges of the first column of the key if that is a whole number, else buckets by the MD5 of the key. Both
sides compute the same checksum, each in its own engine. A row that differs is late if a change of it before the
snapshot is not read by the table yet: it is in the topic behind the table's offsets, or in the binlog behind what the
topic has.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

import duckdb

from mqtrail.binlog import (
    FILE_START,
    BinlogError,
    BinlogPlace,
    BinlogSource,
    BinlogState,
    ChangesSince,
    SourceAway,
    SourceConfig,
    SourceTable,
    TextForm,
    changes_since,
    order_text,
    place_of_text,
    read_state,
)
from mqtrail.client import InstanceConfig, SyncAdmin
from mqtrail.pipeline import bounds_of, connect, now_ms, parse_options, ranges_between, read_ranges, security_options
from mqtrail.wire import MessageQueue, MQError

from .changes import MESSAGE_COLUMNS
from .kinds import ColumnKind, plain
from .model import DELETED, GTID, KEY, MSG_ID, OP, ORDER, POSITION, TIME_MS, TableError
from .target import DeltaTarget, in_words

PART_ROWS: Final = 10_000  # rows of a part, about
PARTS_MAX: Final = 4_096
BUCKETS_MAX: Final = 65_536  # parts of a table whose rows are not in ranges
ROWS_READ: Final = 640_000  # rows of buckets that are in memory at once, about
GROUP_MAX: Final = 10_000  # rows with one value of the key's first column, for ranges of it: they are in memory at once
DIFFERENCES_MAX: Final = 100_000  # rows that differ before the comparison ends
PENDING_MAX: Final = 1_000_000  # messages that the table has not read yet, and changes that the topic has not
MESSAGES_MAX: Final = 8  # ids of messages that are looked up for one row
MESSAGE_LOOKS_MAX: Final = 20  # rows for which they are
_ABOUT: Final = (KEY, ORDER, OP, DELETED, POSITION, GTID, TIME_MS, MSG_ID)

Row = Mapping[str, Any]


class RowFault(StrEnum):
    """How a row differs."""

    MISSING = "missing"  # the source has it, the table does not
    EXTRA = "extra"  # the table has it, the source does not
    DIFFERENT = "different"
    LATE = "late"  # the table has not read a change of it yet
    UNKNOWN = "unknown"  # it differs, and it cannot be told whether it is late


class Agreement(StrEnum):
    """What a comparison says."""

    FOUND = "found"
    NONE = "none"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Both sides. state: file of `binlog run`, which says what was sent; None: not known. rows_max: rows that are named
    of each sort."""

    table: Path
    source: SourceConfig
    namesrv: str
    state: Path | None = None
    excluded: tuple[str, ...] = ()
    rows_max: int = 20
    retry_timeout_ms: int = 30_000
    instance: InstanceConfig = field(default_factory=InstanceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that differs. columns: name -> [value in the source, value in the table]. position, msg_id: of the change
    that the table has. messages: ids of the row's messages in the topic, oldest first, at most MESSAGES_MAX."""

    sort: RowFault
    key: str
    columns: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    position: str = ""
    msg_id: str = ""
    messages: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """The result. counts: rows by sort. rows: examples of each sort. columns: how many different rows each column has.

    read_to: place in the binlog up to which the table has read. is_cut: it ended at DIFFERENCES_MAX. lag_ms: age of the
    oldest change that is late; 0: none is.
    """

    outcome: Agreement
    source: str
    topic: str
    table: str
    version: int
    source_rows: int
    table_rows: int
    source_place: str
    read_to: str
    parts: int
    parts_different: int
    counts: dict[str, int]
    columns: dict[str, int]
    rows: tuple[RowDifference, ...]
    out_of_order: int
    is_cut: bool
    lag_ms: int
    notes: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class _Found:
    """A row that differs, before it is known why. has: what the table has of it; None: nothing."""

    key: str
    columns: dict[str, tuple[Any, Any]]
    in_source: bool
    in_table: bool


def compare(config: CompareConfig, say: Callable[[str], None] = lambda text: None) -> TableComparison:
    """Compare a table with its source now. TableError, TableUnreadable, BinlogError, SourceAway, MQError."""
    begun = time.monotonic()
    target = DeltaTarget.open(config.table)  # before the source: it cannot be ahead of it
    if target is None:
        raise TableError(f"{config.table}: found no table, expected one of `mqtrail pipeline table`: pass --table")
    _, position = target.read_to()
    source = BinlogSource(config.source)
    identity = source.identity()
    state = None if config.state is None else _state(config.state, identity, target.topic)
    with SourceTable.opened(source, target.source, config.excluded) as one:
        _check_ahead(target, one.place)
        with closing(target.connected()) as connection:
            comparing = _Comparing(one, connection, target)
            comparing.run(say)
            late = _Late(config, target, one.place, state)
            sorts = late.sorts(comparing.found)
            examples = _examples(comparing, sorts, config.rows_max)
            examples = _with_messages(config, target.topic, examples)
        notes = [*comparing.notes, *late.notes]
        counts = Counter(str(sort) for sort in sorts.values())
        faults = sum(counts[sort] for sort in (RowFault.MISSING, RowFault.EXTRA, RowFault.DIFFERENT))
        open_ = counts[RowFault.LATE] + counts[RowFault.UNKNOWN]
        return TableComparison(
            outcome=Agreement.FOUND if faults else Agreement.CANNOT_TELL if open_ else Agreement.NONE,
            source=target.source,
            topic=target.topic,
            table=str(config.table),
            version=target.version,
            source_rows=comparing.source_rows,
            table_rows=comparing.table_rows,
            source_place=str(one.place),
            read_to=position,
            parts=comparing.parts,
            parts_different=comparing.parts_different,
            counts={str(sort): counts[sort] for sort in RowFault},
            columns=dict(
                Counter(
                    name for row in comparing.found if sorts[row.key] is RowFault.DIFFERENT for name in row.columns
                ).most_common()
            ),
            rows=tuple(examples),
            out_of_order=target.late_messages(),
            is_cut=comparing.is_cut,
            lag_ms=late.lag_ms,
            notes=tuple(notes),
            seconds=round(time.monotonic() - begun, 3),
        )


def _state(path: Path, identity: str, topic: str) -> BinlogState:
    """Return the state of the run that sends to the table's topic. TableError: it is of another run."""
    state = read_state(path)
    if state is None:
        raise TableError(f"found no state {str(path)!r}, expected that of `mqtrail binlog run`: pass --state")
    if state.source != identity or state.wish.get("topic") != topic:
        raise TableError(
            f"found the state {str(path)!r} of a run from the server {state.source} to the topic "
            f"{state.wish.get('topic')}, expected one from {identity} to {topic}: pass the --state of the run that "
            "sends to the table's topic"
        )
    return state


def _check_ahead(target: DeltaTarget, place: BinlogPlace) -> None:
    """TableError: the table has changes that the source does not have yet."""
    order, position = target.read_to()
    if order > order_text(place, 0):
        raise TableError(
            f"{target.path}: found changes up to {position}, expected none after {place}, where the binlog of the "
            "source ends: the table is ahead of this server, which is another one, or was restored, or RESET MASTER "
            "was called; pass the right server, or build a new table from a new snapshot: `mqtrail binlog run` with a "
            "new --state and a new topic"
        )


class _Comparing:
    """Finds the rows that differ. `found` has them, at most DIFFERENCES_MAX."""

    def __init__(self, source: SourceTable, connection: duckdb.DuckDBPyConnection, target: DeltaTarget) -> None:
        self._source = source
        self._connection = connection
        self._target = target
        self._key = source.table.key
        self.found: list[_Found] = []
        self.notes: list[str] = []
        self.source_rows = self.table_rows = self.parts = self.parts_different = 0
        self.is_cut = False
        self._columns = [column.name for column in source.table.columns]
        if target.key_columns and set(target.key_columns) != set(self._key):
            raise TableError(
                f"found the primary key ({', '.join(self._key)}) in the source, expected "
                f"({', '.join(target.key_columns)}), by which the table was merged: build a new table from a new "
                "snapshot: `mqtrail binlog run` with a new --state and a new topic"
            )

    def run(self, say: Callable[[str], None]) -> None:
        """Compare."""
        [(self.table_rows,)] = self._ask(f"SELECT count(*) FROM t WHERE NOT {DELETED}")
        kinds = self._target.kinds
        if absent := [name for name in self._columns if name not in kinds]:
            self.notes.append(
                f"the table has no column {', '.join(absent)}: all its values are NULL; pass --exclude-column for "
                "columns that `binlog run` leaves out"
            )
        inexact = [
            name for name in self._columns if kinds.get(name) is ColumnKind.DOUBLE or name in self._source.inexact
        ]
        if inexact:
            self.notes.append(f"no checksum has {', '.join(inexact)}, numbers with fractions: all rows were compared")
        is_range = self._source.has_ranges and kinds.get(self._key[0]) is ColumnKind.LONG and self._has_small_groups()
        (self._by_range if is_range else self._by_bucket)(say, has_checksums=not inexact)

    def _has_small_groups(self) -> bool:
        """Return whether few enough rows of the table have one value of the key's first column."""
        if len(self._key) == 1:
            return True
        groups = f"SELECT count(*) AS rows FROM t WHERE NOT {DELETED} GROUP BY {_quoted(self._key[0])}"
        [(largest,)] = self._ask(f"SELECT max(rows) FROM ({groups})")
        return (largest or 0) <= GROUP_MAX

    def _by_range(self, say: Callable[[str], None], *, has_checksums: bool) -> None:
        self.source_rows, low, high = self._source.bounds()
        name = _quoted(self._key[0])
        [(first, last)] = self._ask(f"SELECT min({name}), max({name}) FROM t WHERE NOT {DELETED}")
        if first is not None:
            low, high = (min(low, first), max(high, last)) if self.source_rows else (first, last)
        size = max(-(-(high - low + 1) // self._parts(PARTS_MAX)), 1)
        edges = [*range(low, high + 1, size), high + 1]
        self.parts = len(edges) - 1
        bucket = f"(({name}::HUGEINT - ({low})) // {size})::BIGINT"
        own = self._checksums(bucket) if has_checksums else {}
        for part, (start, end) in enumerate(pairwise(edges)):
            if has_checksums and own.get(part, (0, 0)) == self._source.range_checksum(start, end):
                continue
            self.parts_different += has_checksums
            where = f"{name} >= {start} AND {name} < {end}"
            self._rows(self._source.range_rows(start, end), where)
            say(f"compared {part + 1} of {self.parts} parts")
            if self.is_cut:
                return

    def _by_bucket(self, say: Callable[[str], None], *, has_checksums: bool) -> None:
        self.source_rows = self._source.count()
        buckets = self.parts = self._parts(BUCKETS_MAX)
        at_once = max(ROWS_READ * buckets // max(self.source_rows, self.table_rows, 1), 1)
        text = _number(self._row_text(self._key), 8)
        bucket = f"({text} % {buckets})::BIGINT"
        different = list(range(buckets))
        if has_checksums:
            own, theirs = self._checksums(bucket), self._source.bucket_checksums(buckets)
            different = [one for one in different if own.get(one, (0, 0)) != theirs.get(one, (0, 0))]
            self.parts_different = len(different)
        for at in range(0, len(different), at_once):
            chosen = different[at : at + at_once]
            where = f"{bucket} IN ({', '.join(map(str, chosen))})"
            has = {row[KEY]: row for row in self._table_rows(where, "")}
            self._match(self._source.bucket_rows(chosen, buckets), has)
            say(f"compared {min(at + at_once, len(different))} of {len(different)} parts")
            if self.is_cut:
                return

    def _parts(self, parts_max: int) -> int:
        return min(max(max(self.source_rows, self.table_rows) // PART_ROWS, 1), parts_max)

    def _checksums(self, bucket: str) -> dict[int, tuple[int, int]]:
        """Return the checksum of each part of the table that has rows."""
        text = _number(self._row_text(self._columns), 16)
        found = self._ask(f"SELECT {bucket} AS part, count(*), bit_xor({text}) FROM t WHERE NOT {DELETED} GROUP BY 1")
        return {part: (count, number) for part, count, number in found}

    def _row_text(self, names: Sequence[str]) -> str:
        return " || ".join(_text(name, self._target.kinds.get(name), self._source.form(name)) for name in names)

    def _rows(self, theirs: Generator[Row], where: str) -> None:
        """Compare the rows of a range, which both sides give by the first column of the key."""
        first = self._key[0]
        own = _Grouped(self._table_rows(where, f"ORDER BY {_quoted(first)}"), first)
        with closing(theirs):
            for value, group in groupby(theirs, lambda row: row[first]):
                for before in own.below(value):
                    self._match((), before)
                self._match(group, own.of(value))
                if self.is_cut:
                    return
        for rest in own.below(None):
            self._match((), rest)

    def _match(self, theirs: Iterable[Row], own: dict[str, Row]) -> None:
        """Compare rows of the source with those of the table, by key: values, or their texts, as checksums do."""
        inexact = self._source.inexact
        for row in theirs:
            key = self._source.key_text(row)
            has = own.pop(key, None)
            if has is None:
                self._note(_Found(key, {}, True, False))
                continue
            columns = {}
            for name in self._columns:
                expected, found = plain(self._target.kinds.get(name), row[name]), has.get(name)
                if found != expected and (name in inexact or not _is_same(self._source.form(name), expected, found)):
                    columns[name] = (expected, found)
            if columns:
                self._note(_Found(key, columns, True, True))
        for key in own:
            self._note(_Found(key, {}, False, True))

    def _note(self, found: _Found) -> None:
        if len(self.found) >= DIFFERENCES_MAX:
            self.is_cut = True
            return
        self.found.append(found)

    def _table_rows(self, where: str, order: str) -> Iterator[Row]:
        names = [KEY, *(name for name in self._columns if name in self._target.kinds)]
        listed = ", ".join(map(_quoted, names))
        with in_words(self._target.path), closing(self._connection.cursor()) as cursor:
            cursor.execute(f"SELECT {listed} FROM t WHERE NOT {DELETED} AND {where} {order}")
            while chunk := cursor.fetchmany(PART_ROWS):
                for row in chunk:
                    yield dict(zip(names, row, strict=True))

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with in_words(self._target.path):
            return self._connection.execute(statement).fetchall()

    def about(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what the table has of keys beside the source's columns; of deleted rows too."""
        listed = ", ".join(_ABOUT)
        asked = f"SELECT {listed} FROM t WHERE {KEY} IN (SELECT unnest(?))"
        with in_words(self._target.path):
            found = self._connection.execute(asked, [list(keys)]).fetchall()
        return {row[0]: dict(zip(_ABOUT, row, strict=True)) for row in found}


class _Grouped:
    """Rows by the first column of the key, in its order."""

    def __init__(self, rows: Iterator[Row], first: str) -> None:
        self._groups = groupby(rows, lambda row: row[first])
        self._next: tuple[Any, dict[str, Row]] | None = None
        self._step()

    def _step(self) -> None:
        found = next(self._groups, None)
        self._next = None if found is None else (found[0], {row[KEY]: row for row in found[1]})

    def below(self, value: Any) -> Iterator[dict[str, Row]]:
        """Yield the groups below a value; None: all."""
        while self._next is not None and (value is None or self._next[0] < value):
            yield self._next[1]
            self._step()

    def of(self, value: Any) -> dict[str, Row]:
        """Return the group of a value."""
        if self._next is None or self._next[0] != value:
            return {}
        rows = self._next[1]
        self._step()
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest change in a queue. Its run sends to each queue in the binlog's order."""

    order: str
    position: str
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What the topic has: all changes before start, and in its file those up to `order`; none after `newest`.

    problem: why that is not known.
    """

    start: BinlogPlace | None = None
    order: str = ""
    newest: str = ""
    problem: str = ""


@dataclass(slots=True)
class _ReadSoFar:
    """What was read of the topic. pending: the changes that the table has not read. queues: None: no change."""

    pending: ChangesSince = field(default_factory=ChangesSince)
    queues: dict[MessageQueue, _Newest | None] = field(default_factory=dict)


class _Late:
    """Tells rows whose changes the table has not read yet from others."""

    def __init__(
        self, config: CompareConfig, target: DeltaTarget, place: BinlogPlace, state: BinlogState | None
    ) -> None:
        self._config = config
        self._target = target
        self._place = place
        self._until = order_text(place, 0)
        self._state = state
        self.notes: list[str] = []
        self._oldest_ms = 0

    @property
    def lag_ms(self) -> int:
        """Age of the oldest change that is late; 0: none is."""
        return max(now_ms() - self._oldest_ms, 0) if self._oldest_ms else 0

    def sorts(self, found: Sequence[_Found]) -> dict[str, RowFault]:
        """Return how each row differs."""
        if not found:
            return {}
        read = self._read()
        pending = read.pending
        sent = self._sent(read.queues)
        unsent = self._unsent(sent)
        is_known = not pending.problem and not unsent.problem
        self.notes += [one for one in (pending.problem, unsent.problem) if one]
        sorts = {}
        on_the_way = 0
        for row in found:
            change = pending.keys.get(row.key)
            if change is None and not pending.statement:
                change = unsent.keys.get(row.key)
                newest = max(unsent.statement, change[0] if change else "")
                if newest and newest <= sent.newest:
                    on_the_way += 1
                if not newest or newest <= sent.newest:
                    sorts[row.key] = _sort_of(row) if is_known and not newest else RowFault.UNKNOWN
                    continue
            sorts[row.key] = RowFault.LATE
            if change is not None:
                self._oldest_ms = min(self._oldest_ms or change[1], change[1])
        if on_the_way:
            self.notes.append(
                f"changes of {on_the_way} rows may be lost or still on their way to the topic: pass --state, which "
                "says what was sent"
            )
        return sorts

    def _read(self) -> _ReadSoFar:
        """Read what the table has not read of the topic, and the newest message of each queue."""
        read = _ReadSoFar()
        made = read.pending
        config, target = self._config, self._target
        options = parse_options(
            {
                "nameServer": config.namesrv,
                "topic": target.topic,
                "failOnDataLoss": "false",
                "retryTimeoutMs": str(config.retry_timeout_ms),
                **security_options(config.instance),
            }
        )
        try:
            with closing(connect(options.name_server, None, options.credentials, options.tls)) as cluster:
                bounds = bounds_of(cluster, [target.topic], config.retry_timeout_ms, hold_unreachable=False)
                starts = {queue: max(target.offset(queue) or 0, first) for queue, (first, _) in bounds.items()}
                ends = {queue: end for queue, (_, end) in bounds.items()}
                if not bounds or sum(each.count for each in ranges_between(starts, ends)) > PENDING_MAX:
                    made.problem = (
                        f"more than {PENDING_MAX} messages of the topic {target.topic} are not read by the table"
                        if bounds
                        else f"the topic {target.topic} is not there"
                    )
                    return read
                read.queues = dict.fromkeys(bounds)
                firsts = {queue: min(starts[queue], max(first, end - 1)) for queue, (first, end) in bounds.items()}
                for batch in read_ranges(cluster, ranges_between(firsts, ends), MESSAGE_COLUMNS, options):
                    for message in batch.to_pylist():
                        queue = MessageQueue(target.topic, message["broker_name"], message["queue_id"])
                        self._note(message, queue, read, is_new=message["queue_offset"] >= starts.get(queue, 0))
        except MQError as error:
            made.problem = f"the topic cannot be read: {error}"
        return read

    def _note(self, message: Mapping[str, Any], queue: MessageQueue, read: _ReadSoFar, *, is_new: bool) -> None:
        made = read.pending
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            body = json.loads(message["body"])
            place_of_text(body["position"])  # ValueError: it is of another program
            read.queues[queue] = _Newest(order=body["order"], position=body["position"], op=body["op"])
            if not is_new or body["order"] > self._until:
                return  # the table has read it, or it is after the source's snapshot
            if body["op"] == "schema":
                source = self._target.source
                if not {source, source.partition(".")[0]}.isdisjoint(body["schema"]["names"]):
                    made.statement = body["order"]
            else:
                made.note(message["keys"], body["order"], body["time_ms"])

    def _sent(self, queues: Mapping[MessageQueue, _Newest | None]) -> _Sent:
        """Return what was sent: by the state, else by the queue that is behind the others."""
        state, target = self._state, self._target
        if state is not None:
            if not state.is_snapshot_done and target.source not in state.tables:
                return _Sent(problem=f"the snapshot of {target.source} is not complete: `mqtrail binlog run` sends it")
            return _Sent(start=place_of_text(state.place))
        newest = [one for one in queues.values() if one is not None]
        remedy = "it is not known what was sent: pass --state"
        if not newest or len(newest) < len(queues):
            without = len(queues) - len(newest)
            return _Sent(
                problem=f"{without} of {len(queues)} queues of {target.topic} end without a change, so {remedy}"
            )
        if all(one.op == "snapshot" for one in newest):
            return _Sent(problem=f"the topic {target.topic} ends with rows of the snapshot, so {remedy}")
        behind = min(newest, key=lambda one: one.order)
        place = place_of_text(behind.position)
        if behind.op != "snapshot":  # it is within a transaction, which begins in the same file
            place = BinlogPlace(place.file, FILE_START)
        return _Sent(start=place, order=behind.order, newest=max(one.order for one in newest))

    def _unsent(self, sent: _Sent) -> ChangesSince:
        """Return the changes in the binlog after those that are known to be in the topic."""
        if sent.start is None:
            return ChangesSince(problem=sent.problem)
        try:
            return changes_since(
                self._config.source, self._target.source, sent.start, self._place, PENDING_MAX, sent.order
            )
        except (BinlogError, SourceAway) as error:
            return ChangesSince(problem=f"what the topic does not have yet cannot be read: {error}")


def _sort_of(row: _Found) -> RowFault:
    """Return how a row differs that is not late."""
    if row.in_source and row.in_table:
        return RowFault.DIFFERENT
    return RowFault.MISSING if row.in_source else RowFault.EXTRA


def _examples(comparing: _Comparing, sorts: Mapping[str, RowFault], rows_max: int) -> list[RowDifference]:
    chosen: list[_Found] = []
    for sort in RowFault:
        chosen += [row for row in comparing.found if sorts[row.key] is sort][:rows_max]
    about = comparing.about([row.key for row in chosen])
    made = []
    for row in chosen:
        has = about.get(row.key, {})
        hint = next((text for pair in row.columns.values() if (text := hint_of(*pair))), "")
        if not row.in_table and has.get(DELETED):
            hint = f"the table has a {'statement' if has[OP] == 'schema' else 'deletion'} of it"
        made.append(
            RowDifference(
                sort=sorts[row.key],
                key=row.key,
                columns=row.columns,
                position=has.get(POSITION) or "",
                msg_id=has.get(MSG_ID) or "",
                hint=hint,
            )
        )
    return made


def hint_of(expected: Any, found: Any) -> str:
    """Return what may have happened to a value; '': nothing known. expected: in the source."""
    if not isinstance(expected, str) or not isinstance(found, str):
        return ""
    apart = _apart(expected, found)
    if found and len(found) < len(expected) and expected.startswith(found) and apart is None:
        return f"cut after {len(found)} of {len(expected)} characters"
    if apart is not None:
        quarter = timedelta(minutes=15)
        if apart and not apart % quarter and abs(apart) <= timedelta(hours=26):
            sign = "-" if apart < timedelta() else "+"
            minutes = abs(apart) // timedelta(minutes=1)
            return f"{sign}{minutes // 60:02}:{minutes % 60:02}, as of another time zone"
    return ""


def _apart(expected: str, found: str) -> timedelta | None:
    """Return the time between two moments, each with or without Z; None: one is none."""
    with suppress(ValueError):
        first, second = (datetime.fromisoformat(text.removesuffix("Z")) for text in (expected, found))
        return second - first if first.tzinfo is second.tzinfo is None else None
    return None


def _with_messages(config: CompareConfig, topic: str, rows: Sequence[RowDifference]) -> list[RowDifference]:
    """Look up the messages of the first rows by their keys. Without an answer there are none."""
    made = list(rows)
    with suppress(MQError, OSError), SyncAdmin(config.namesrv, config=config.instance) as admin:
        for number, row in enumerate(made[:MESSAGE_LOOKS_MAX]):
            found = admin.query(topic, row.key, count_max=32).messages
            ids = tuple(one.msg_id for one in found)[-MESSAGES_MAX:]
            made[number] = replace(row, messages=ids)
    return made


# -- the table's side of checksums; binlog/compared.py has the source's -------------------------------------------


def _quoted(name: str) -> str:
    return f'"{name}"'


def _text(name: str, kind: ColumnKind | None, form: TextForm) -> str:
    if kind is None:
        return "'N'" if form is TextForm.LENGTH else "'N|'"
    value = f"array_to_string({_quoted(name)}, ',')" if kind is ColumnKind.LIST else f"{_quoted(name)}::VARCHAR"
    if form is TextForm.LENGTH:
        return f"coalesce(length({value}) || ':' || {value}, 'N')"
    if form is TextForm.MOMENT:
        value = f"replace(rtrim({value}, 'Z'), 'T', ' ')"
    return f"coalesce({value}, 'N') || '|'"


def _is_same(form: TextForm, expected: Any, found: Any) -> bool:
    """Return whether two values have the same text in checksums. The column's type in the source may have changed."""
    if expected is None or found is None:
        return expected is found
    texts = [",".join(one) if isinstance(one, list) else str(one) for one in (expected, found)]
    if form is TextForm.MOMENT:
        texts = [text.rstrip("Z").replace("T", " ") for text in texts]
    return texts[0] == texts[1]


def _number(text: str, digits: int) -> str:
    return f"('0x' || left(md5({text}), {digits}))::UBIGINT"
