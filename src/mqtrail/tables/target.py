"""The Delta table: rows by key, each with the order of its last change, and the offsets that were read.

The offset of each queue is an app transaction of the commit that merges its messages, so both are in the table or
neither is: a run that ends in between reads the same messages again. A deleted row stays, marked, with the order of
its deletion: an older change that comes later, or again, is then recognized. A merge writes the files anew that have
changed rows. The commit of a version says how far the topic was read (READ_ORDER), and in which queues (QUEUES).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from mqtrail.net import hold_lock
from mqtrail.trail import literal
from mqtrail.wire import MessageQueue

from .changes import Digest, RowState, key_changed
from .kinds import ColumnKind, array_of, fitting, kinds_of, quoted
from .model import (
    DELETED,
    EXACT_DOUBLE,
    FILES_MAX,
    GTID,
    KEY,
    META,
    MSG_ID,
    OP,
    ORDER,
    POSITION,
    TIME_MS,
    TableError,
    TableUnreadable,
)

TOPIC_KEY, SOURCE_KEY, COLUMNS_KEY = "mqtrail.binlog.topic", "mqtrail.binlog.table", "mqtrail.binlog.key"
READ_ORDER, READ_POSITION = "mqtrail.binlog.order", "mqtrail.binlog.position"
QUEUES: Final = "mqtrail.binlog.queues"  # those that were read, as JSON: [[broker, queue], ...]
LATE_COUNT: Final = "mqtrail.binlog.late"
COMMITS_MAX: Final = 10_000  # commits of the log whose late messages are counted
NOTES_BACK: Final = (
    100  # commits that are searched for notes: commits of other programs, which optimize the table, have no notes
)
LOCK: Final = "_mqtrail.lock"
KEY_SEPARATOR: Final = ","
_META_TYPES: Final[Mapping[str, pa.DataType]] = {
    KEY: pa.string(),
    ORDER: pa.string(),
    OP: pa.string(),
    DELETED: pa.bool_(),
    POSITION: pa.string(),
    GTID: pa.string(),
    TIME_MS: pa.int64(),
    MSG_ID: pa.string(),
}
_META_SCHEMA: Final = pa.schema(_META_TYPES)


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Turn errors of Delta and of the file system into TableError and TableUnreadable."""
    try:
        yield
    except CommitFailedError as error:
        raise TableError(
            f"{path}: found another writer ({_first(error)}), expected to be alone: stop it, and run this again; "
            "nothing was merged twice"
        ) from None
    except (DeltaError, duckdb.Error, pa.ArrowException, OSError, json.JSONDecodeError) as error:
        raise TableUnreadable(
            f"{path}: found data that cannot be read or written ({_first(error)}), expected a Delta table: check the "
            "disk and its permissions; what was committed is kept"
        ) from None
    except UnicodeError as error:
        raise TableError(
            f"{path}: found a text that cannot be written ({_first(error)}), expected one of `mqtrail binlog run`; "
            "what was committed is kept"
        ) from None


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class DeltaTarget:
    """One table. One writer at a time, and any number of readers, each on its version."""

    def __init__(self, path: Path, delta: DeltaTable) -> None:
        self.path = path
        self.delta = delta
        with in_words(path):
            noted = delta.metadata().configuration
        self.topic, self.source = noted.get(TOPIC_KEY, ""), noted.get(SOURCE_KEY, "")
        self.key_columns = tuple(filter(None, noted.get(COLUMNS_KEY, "").split(KEY_SEPARATOR)))
        if not self.topic or not self.source:
            raise TableError(
                f"{path}: found a Delta table of another program, expected one of `mqtrail pipeline table`: pass "
                "another --table"
            )
        self.kinds = kinds_of(self._schema())
        with in_words(path):
            notes = self._notes()
            self._read_to = self._read_to_of(notes)
            queues: list[tuple[str, int]] = json.loads(notes.get(QUEUES, "[]"))
        self.queues = frozenset(MessageQueue(self.topic, broker, number) for broker, number in queues)
        """Of which messages were read. Empty, too, if nothing was merged since tables note them."""

    def _notes(self) -> dict[str, Any]:
        """Return the notes of the version's commit, from its file: Delta's history begins at the newest version."""
        for version in range(self.version, max(self.version - NOTES_BACK, -1), -1):
            file = self.path / "_delta_log" / f"{version:020}.json"
            if not file.exists():  # cleaned up
                break
            with file.open(encoding="utf-8") as lines:
                found: dict[str, Any] = next((one for line in lines if "commitInfo" in (one := json.loads(line))), {})
            if READ_ORDER in (notes := found.get("commitInfo", {})):
                return dict(notes)
        return {}

    def _read_to_of(self, notes: Mapping[str, Any]) -> tuple[str, str]:
        if READ_ORDER in notes:
            return notes[READ_ORDER], notes[READ_POSITION]
        [(order, position)] = self.rows(f"SELECT max({ORDER}), max_by({POSITION}, {ORDER}) FROM t")
        return order or "", position or ""

    @classmethod
    def open(cls, path: Path) -> DeltaTarget | None:
        """Return the table; None: there is none. TableError: what is there is no such table."""
        if "%" in str(path):
            raise TableError(f"{path}: found % in the name of the folder, expected one that Delta accepts: rename it")
        if not path.exists() or (path.is_dir() and {one.name for one in path.iterdir()} <= {LOCK}):
            return None
        try:
            delta = DeltaTable(str(path))
        except TableNotFoundError:
            raise TableError(
                f"{path}: found files that are not a Delta table, expected a table of `mqtrail pipeline table`, or no "
                "folder: pass another --table"
            ) from None
        except (DeltaError, OSError) as error:
            raise TableUnreadable(
                f"{path}: found a Delta log that cannot be read ({_first(error)}), expected a table of `mqtrail "
                "pipeline table`: restore it from a copy, or build a new one in another --table"
            ) from None
        return cls(path, delta)

    @classmethod
    def create(cls, path: Path, topic: str, source: str) -> DeltaTarget:
        """Make an empty table."""
        with in_words(path):
            path.mkdir(parents=True, exist_ok=True)
            delta = DeltaTable.create(
                str(path),
                schema=_META_SCHEMA,
                configuration={TOPIC_KEY: topic, SOURCE_KEY: source},
                raise_if_key_not_exists=False,
            )
        return cls(path, delta)

    @staticmethod
    @contextmanager
    def alone(path: Path) -> Iterator[None]:
        """Keep other writers of this machine from the table. TableError: one has it."""
        taken = TableError(
            f"{path}: found another run that writes to this table, expected to be alone: stop it, or pass another "
            "--table"
        )
        with ExitStack() as stack:
            with in_words(path):
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold_lock(path / LOCK, taken))
            yield

    def check(self, topic: str, source: str) -> None:
        """TableError: it is of another topic or source."""
        if (self.topic, self.source) != (topic, source):
            raise TableError(
                f"{self.path}: found the table of {self.source} by the topic {self.topic}, expected {source} by "
                f"{topic}: pass its own --table, or these options"
            )

    @property
    def version(self) -> int:
        """Delta's version."""
        return self.delta.version()

    def offset(self, queue: MessageQueue) -> int | None:
        """Return the next offset to read of a queue; None: nothing of it was read."""
        return self.delta.transaction_version(_app(queue))

    def read_to(self) -> tuple[str, str]:
        """Return order and position of the newest message that was read, of any table; "": none."""
        return self._read_to

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the result of SQL of DuckDB over the rows, as t."""
        connection = self.connected()
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def connected(self) -> duckdb.DuckDBPyConnection:
        """Return a connection with the rows as t, deleted ones too. Close it. A column that a file lacks is NULL."""
        with in_words(self.path):
            files = [self.path / uri.rpartition("/")[2] for uri in self.delta.file_uris()]  # URIs are quoted
            connection = duckdb.connect()
            names = {field.name: field.type for field in self._schema()}
            empty = ", ".join(f'NULL::{_DUCK[str(kind)]} AS "{name}"' for name, kind in names.items())
            rows = f"SELECT {empty} WHERE false"
            if files:
                listed = ", ".join(literal(str(file)) for file in files)
                rows += f" UNION ALL BY NAME SELECT * FROM read_parquet([{listed}], union_by_name=true)"
            connection.execute(f"CREATE VIEW t AS {rows}")
        return connection

    def _schema(self) -> pa.Schema:
        schema: pa.Schema = pa.schema(self.delta.schema().to_arrow())  # type: ignore[arg-type]  # it has Arrow's interface
        return schema

    def late_messages(self) -> int:
        """Return how many messages came after a newer one of their key, by the commits that the log has."""
        with in_words(self.path):
            return sum(int(one.get(LATE_COUNT, 0)) for one in self.delta.history(COMMITS_MAX))

    # -- write -----------------------------------------------------------------------------------------------------

    def apply(self, found: Digest, offsets: Mapping[MessageQueue, int]) -> None:
        """Merge a batch and commit the offsets after it. TableError: it cannot be merged; nothing is committed."""
        rows = found.settled()
        fills = found.filled()
        needed = fitting(self.kinds, (row.values for row in [*fills, *rows]), self.source)
        if found.key_columns and self.key_columns and found.key_columns != self.key_columns:
            raise key_changed(found.key_columns, self.key_columns)
        before, queues = self._read_to, self.queues | offsets.keys()
        order, position = max(before, (found.last_order, found.last_position))
        notes = _notes_of((order, position), queues)
        with in_words(self.path):
            earlier = _notes_of(before, self.queues)  # of commits before that of the rows
            self._note_key(found.key_columns, earlier)
            self._widen(needed, earlier)
            for fill in fills:
                self._fill(fill, needed, earlier)
            properties = self._properties(offsets, notes | {LATE_COUNT: str(found.counts["late"])})
            self._merge(rows, found.clear, needed, properties)
            if any(self.offset(queue) != offset for queue, offset in offsets.items()):  # no row changed
                self.delta.create_write_transaction([], "append", self.delta.schema(), commit_properties=properties)
                self.delta.update_incremental()
            if len(self.delta.file_uris()) > FILES_MAX:
                self.delta.optimize.compact(commit_properties=CommitProperties(custom_metadata=notes))
            self._read_to, self.queues = (order, position), queues
        self.kinds = kinds_of(self._schema())

    def _properties(self, offsets: Mapping[MessageQueue, int], notes: dict[str, str]) -> CommitProperties:
        return CommitProperties(
            custom_metadata=notes,
            app_transactions=[Transaction(_app(queue), offset) for queue, offset in sorted(offsets.items())],
        )

    def _note_key(self, columns: tuple[str, ...], notes: dict[str, str]) -> None:
        if columns and not self.key_columns:
            self.delta.alter.set_table_properties(
                {COLUMNS_KEY: KEY_SEPARATOR.join(columns)},
                raise_if_not_exists=False,
                commit_properties=CommitProperties(custom_metadata=notes),
            )
            self.key_columns = columns

    def _widen(self, needed: Mapping[str, ColumnKind], notes: dict[str, str]) -> None:
        """Rewrite the table if a column gets a wider type: the same rows in one commit, streamed."""
        changed = {name: needed[name] for name, kind in self.kinds.items() if needed[name] is not kind}
        if not changed:
            return
        connection = self.connected()
        try:
            for name, kind in changed.items():
                if kind is ColumnKind.DOUBLE:
                    [(largest,)] = connection.execute(f"SELECT max(abs({quoted(name)}::HUGEINT)) FROM t").fetchall()
                    if largest is not None and largest > EXACT_DOUBLE:
                        raise TableError(
                            f"found {largest} in the column {name}, expected numbers up to {EXACT_DOUBLE}, which a "
                            f"double represents exactly, since {self.source} has fractions in it now: build a new "
                            "table from a new snapshot: `mqtrail binlog run` with a new --state and a new topic, then "
                            "this command with another --table"
                        )
            casts = ", ".join(
                f"{quoted(name)}::{_DUCK[str(kind.arrow)]} AS {quoted(name)}" for name, kind in changed.items()
            )
            rows = connection.sql(f"SELECT * REPLACE ({casts}) FROM t").to_arrow_reader(10_000)
            write_deltalake(
                self.delta,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=CommitProperties(custom_metadata=notes),
            )
        finally:
            connection.close()
        self.delta.update_incremental()

    def _fill(self, fill: RowState, kinds: Mapping[str, ColumnKind], notes: dict[str, str]) -> None:
        """Write the values that an ALTER TABLE gave to the rows from before it. The same again changes nothing.

        Each queue has the statement behind the rows that it has from before it.
        """
        properties = CommitProperties(custom_metadata=notes)
        known = {one.name for one in self.delta.schema().fields}
        for name, value in fill.values.items():
            kind = kinds[name]
            if name not in known:
                added = Schema.from_arrow(pa.schema([pa.field(name, kind.arrow)])).fields
                self.delta.alter.add_columns(added, commit_properties=properties)
            [given] = array_of(kind, [value]).to_pylist()
            cast = f"CAST({literal(str(given))} AS {_SQL[kind]})"
            before = f"{ORDER} < {literal(fill.order)} AND NOT {DELETED}"
            self.delta.update(
                updates={name: cast},
                predicate=f"{before} AND {quoted(name)} IS DISTINCT FROM {cast}",
                commit_properties=properties,
            )

    def _merge(
        self,
        rows: Sequence[RowState],
        clear: RowState | None,
        kinds: Mapping[str, ColumnKind],
        properties: CommitProperties,
    ) -> None:
        if not rows and clear is None:
            return
        merger = self.delta.merge(
            _table_of(rows, kinds),
            f"target.{KEY} = source.{KEY}",
            source_alias="source",
            target_alias="target",
            merge_schema=True,
            commit_properties=properties,
        )
        merger = merger.when_matched_update_all(predicate=f"source.{ORDER} > target.{ORDER}")
        merger = merger.when_not_matched_insert_all()
        if clear is not None:
            updates = {
                OP: "'schema'",
                DELETED: "true",
                ORDER: literal(clear.order),
                POSITION: literal(clear.position),
                GTID: "CAST(NULL AS STRING)" if clear.gtid is None else literal(clear.gtid),
                TIME_MS: str(clear.time_ms),
                MSG_ID: literal(clear.msg_id),
            }
            merger = merger.when_not_matched_by_source_update(
                updates=updates, predicate=f"target.{ORDER} < {literal(clear.order)}"
            )
        merger.execute()


_SQL: Final[Mapping[ColumnKind, str]] = {
    ColumnKind.LONG: "BIGINT",
    ColumnKind.DECIMAL: "DECIMAL(20, 0)",
    ColumnKind.DOUBLE: "DOUBLE",
    ColumnKind.STRING: "STRING",
}
_DUCK: Final = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "decimal128(20, 0)": "DECIMAL(20,0)",
    **{f"list<{name}: string>": "VARCHAR[]" for name in ("item", "element")},
}


def _app(queue: MessageQueue) -> str:
    return f"mqtrail.binlog:{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _notes_of(read_to: tuple[str, str], queues: Iterable[MessageQueue]) -> dict[str, str]:
    listed = [[queue.broker_name, queue.queue_id] for queue in sorted(queues)]
    return {READ_ORDER: read_to[0], READ_POSITION: read_to[1], QUEUES: json.dumps(listed, separators=(",", ":"))}


def _table_of(rows: Sequence[RowState], kinds: Mapping[str, ColumnKind]) -> pa.Table:
    meta: dict[str, list[Any]] = {
        KEY: [row.key for row in rows],
        ORDER: [row.order for row in rows],
        OP: [row.op for row in rows],
        DELETED: [row.deleted for row in rows],
        POSITION: [row.position for row in rows],
        GTID: [row.gtid for row in rows],
        TIME_MS: [row.time_ms for row in rows],
        MSG_ID: [row.msg_id for row in rows],
    }
    made = pa.table(meta, schema=_META_SCHEMA)
    for name, kind in kinds.items():
        made = made.append_column(name, array_of(kind, (row.values.get(name) for row in rows)))
    return made


assert tuple(_META_SCHEMA.names) == META
