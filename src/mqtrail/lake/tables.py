"""One Delta table of a lake: its committed files, and commits exactly once.

    lake = Lake.create(path)                       # or open; a lake of another schema version is refused
    table = lake["attempts"]
    if not table.is_committed(app, batch):         # ask BEFORE writing: a replay must not touch committed files
        …write Parquet files below table.path…
        table.commit(files, app=app, batch=batch)

The commit point is one file of the Delta log, created atomically. A crash before it leaves files that no reader uses
(`maintenance.sweep` deletes them). After it, the app transaction marks the batch as done, and a replay is skipped.
The batches of an `app` are numbered for the life of the lake: who counts from 0 again needs a new name. There is one
writer at a time (`lock`) and any number of readers, each on the snapshot that it opened.

A writer opens a lake only if it is undamaged. A reader can open a damaged one (`is_whole=False`): unreadable tables and
files are skipped and listed in `Lake.damage`, and every answer must report them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from mqtrail import clock

from .edge import RESTORE, arrow_errors, first_line, lake_errors
from .errors import FileRefused, LakeDamaged, LakeError, LakeUnreadable, SchemaVersionError
from .lease import Lease
from .lock import FileLock, WriteLock
from .marks import MARKS, CommitMark
from .places import LakePath, inside, is_remote, parquet_size, parquet_source, relative_to, size_of, storage_options
from .schemas import MIGRATED_VERSION, SCHEMA_VERSION, Table, arrow_schema
from .storeerrors import ObjectStoreError

if TYPE_CHECKING:
    import pyarrow as pa

VERSION_KEY = "mqtrail.schema"
_STATS_TEXT_SIZE_MAX = 256
_LOOKS_MAX = 8  # files of an object store that are looked at one by one


@dataclass(frozen=True, slots=True)
class DataFile:
    """One committed file. minimum, maximum, nulls (rows without a value): of the columns with statistics."""

    path: str
    """Relative to the table's folder."""
    size: int
    row_count: int
    hour: int | None
    """publish_hour of all its rows; None in tables without partitions."""
    minimum: dict[str, Any] = field(default_factory=dict)
    maximum: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def may_hold(self, column: str, value: Any) -> bool:
        """Return False if the statistics exclude that a row has `value` in `column`."""
        low, high = self.minimum.get(column), self.maximum.get(column)
        return low is None or high is None or low <= value <= high

    def may_be_in(self, columns: Iterable[str], first: Any, end: Any) -> bool:
        """Return False if the statistics exclude that a row has a value in [first, end) in one of the columns."""
        return any(
            self.nulls.get(name) != self.row_count
            if name not in self.minimum
            else self.minimum[name] < end and self.maximum[name] >= first
            for name in columns
        )

    def is_in(self, columns: Iterable[str], first: Any, end: Any) -> bool:
        """Return True if the statistics prove that each row has a value in [first, end) in one of the columns, and no
        other value in any of them."""
        columns = list(columns)
        known = [name for name in columns if self.nulls.get(name) != self.row_count]
        return any(name in self.minimum and not self.nulls.get(name) for name in known) and all(
            name in self.minimum and self.minimum[name] >= first and self.maximum[name] < end for name in known
        )


def cluster_of(file: DataFile) -> str | None:
    """The cluster of all rows of a file; None: it has rows of several, or its statistics lack it."""
    low, high = file.minimum.get("cluster"), file.maximum.get("cluster")
    return str(low) if low is not None and low == high else None


class LakeTable:
    """One table: its committed files, and commits."""

    def __init__(self, table: Table, path: LakePath, lock: WriteLock, *, is_whole: bool = True) -> None:
        """is_whole: unreadable files are an error; otherwise they are skipped and listed in `damage`."""
        self.table = table
        self.path = path
        self.damage: dict[str, str] = {}
        """Unreadable parts -> reason: committed files by path, commits by name, the whole table as
        ''."""
        self._lock = lock
        self._is_whole = is_whole
        self._files: list[DataFile] | None = None
        self._later_columns: tuple[str, ...] | None = None
        self._updated_at_ns: int | None = None  # when the log had changed last before it was read
        self._mark = CommitMark(path)
        self._sizes: dict[str, int] = {}  # in an object store: of the files that were looked at
        self._batches: dict[str, int | None] = {}  # of this snapshot: app -> last batch
        self._read_under: FileLock | Lease | None = None  # held since the log was read: no other writer has committed
        try:
            _check_log(path)
            with lake_errors(path):
                self._read_mark()  # before the log, which may be ahead of its mark, never behind
                self._delta = DeltaTable(str(path), storage_options=storage_options(path))
                self._check_commits()
        except LakeError as error:
            if is_whole:
                raise
            self.damage[""] = str(error)
            self._files = []

    @property
    def is_lost(self) -> bool:
        """Whether the whole table is unreadable."""
        return "" in self.damage

    @property
    def version(self) -> int:
        """The Delta version of this snapshot."""
        return self._delta.version()

    @property
    def later_columns(self) -> tuple[str, ...]:
        """Columns that this version has and the one that created the table had not: older files lack them."""
        if self.is_lost:
            return ()
        if self._later_columns is None:
            with lake_errors(self.path):
                had = {field.name for field in self._delta.schema().fields}
            self._later_columns = tuple(name for name in self.table.relation.names if name not in had)
        return self._later_columns

    def check_version(self) -> None:
        """SchemaVersionError: another version of mqtrail wrote the table."""
        _check_version(self.path, self.noted(VERSION_KEY) or "none")

    def refresh(self) -> None:
        """Read newer commits. The writer of a lake knows them: while it has the lock there is no other writer."""
        taken = self._lock.taken
        if taken is None or taken is not self._read_under:
            self.reread()

    def reread(self) -> None:
        """Read newer commits, also as the writer: that shows whether commits were lost or replaced."""
        if self.is_lost:
            return
        taken = self._lock.taken
        with lake_errors(self.path):
            before = self._delta.version()
            self._read_mark()
            self._update()
            self._check_commits(before)
        self._read_under = taken

    def _update(self) -> None:
        changed_ns = self._log_changed_ns()
        if changed_ns is not None and changed_ns == self._updated_at_ns:
            return
        before = self._delta.version()
        self._delta.update_incremental()
        self._updated_at_ns = changed_ns
        if self._delta.version() != before:
            self._files = None
            self._batches = {}

    def _log_changed_ns(self) -> int | None:
        """Return when a file was added to the log or removed; None: unknown, or the next commit is there already.

        The time alone is not enough: file systems keep it in steps of some milliseconds.
        """
        if not isinstance(self.path, Path):
            return None
        log = self.path / "_delta_log"
        try:
            changed_ns = log.stat().st_mtime_ns
            return None if (log / f"{self._delta.version() + 1:020d}.json").exists() else changed_ns
        except OSError:
            return None  # reading the log says what is wrong

    def _read_mark(self) -> None:
        try:
            self._mark.read()
        except LakeDamaged as error:
            if self._is_whole:
                raise
            self.damage[MARKS] = str(error)

    def _check_commits(self, after: int = -1) -> None:
        """Compare the log with its mark. LakeDamaged, or a note in `damage`, of commits that are not as written."""
        for name, why in self._mark.problems(self._delta.version(), after).items():
            self._note_damage(f"_delta_log/{name}", why)

    def readable(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Return the files that exist with their committed size. For others: LakeDamaged, or an entry in `damage`.

        In an object store each file is looked at once.
        """
        files = list(files)
        if is_remote(self.path):
            self._look(files)
        found = []
        for file in files:
            if file.path not in self.damage:
                if (why := self._why_unreadable(file)) is None:
                    found.append(file)
                    continue
                self._note_damage(file.path, why)
        return found

    def probe(self) -> None:
        """Read every committed file completely, to find damage inside. Reports it as `readable` does."""
        import pyarrow.parquet as pq

        for file in self.readable(self.files()):
            try:
                with pq.ParquetFile(parquet_source(self.path / file.path)) as parquet:
                    for _ in parquet.iter_batches():
                        pass
            except ObjectStoreError as error:
                raise LakeUnreadable(str(error)) from None
            except arrow_errors() as error:
                self._note_damage(file.path, f"found an incomplete Parquet file ({first_line(error)})")

    def _why_unreadable(self, file: DataFile) -> str | None:
        try:
            size = self._sizes.get(file.path) or size_of(self.path / file.path)
        except ObjectStoreError as error:
            raise LakeUnreadable(str(error)) from None
        except FileNotFoundError:
            return f"found no such file, expected {file.size} bytes"
        except OSError as error:
            return f"found {error.strerror}, expected a file that this user may read"
        if is_remote(self.path):
            self._sizes[file.path] = size
        return None if size == file.size else f"found {size} bytes, expected {file.size}"

    def _look(self, files: Sequence[DataFile]) -> None:
        """Note the sizes of files that were not looked at yet: of many, by listing the table."""
        if sum(file.path not in self._sizes for file in files) > _LOOKS_MAX:
            with lake_errors(self.path):
                for found in self.path.rglob("*.parquet"):
                    self._sizes[relative_to(found, self.path)] = found.stat().st_size

    def _note_damage(self, path: str, why: str) -> None:
        text = f"{self.path / path}: {why}: {RESTORE}"
        if self._is_whole:
            raise LakeDamaged(text)
        self.damage[path] = text

    def files(self, hours: Iterable[int] | None = None) -> list[DataFile]:
        """Return the committed files; of a partitioned table only those of `hours`, if given."""
        if self._files is None:
            with lake_errors(self.path):
                added = self._delta.get_add_actions(flatten=True)
                self._files = [self._data_file(action) for action in added.to_struct_array().to_pylist()]
        if hours is None:
            return list(self._files)
        wanted = set(hours)
        return [f for f in self._files if f.hour in wanted]

    def has(self, files: Iterable[DataFile]) -> bool:
        """Return whether all of these files are still committed."""
        kept = {file.path for file in self.files()}
        return all(file.path in kept for file in files)

    def paths(self, files: Iterable[DataFile] | None = None) -> list[str]:
        """Absolute paths of `files` (all committed ones if not given), for any reader of Parquet."""
        return [str(self.path / f.path) for f in (self.files() if files is None else files)]

    def hours(self) -> list[int]:
        """The publish hours that have files, in order."""
        return sorted({f.hour for f in self.files() if f.hour is not None})

    def last_batch(self, app: str) -> int | None:
        """Return the latest committed batch of `app`, None if there is none."""
        if app not in self._batches:
            self._batches[app] = self._delta.transaction_version(app)
        return self._batches[app]

    def is_committed(self, app: str, batch: int) -> bool:
        """Return whether this batch of `app`, or a later one, is committed. Reads newer commits first."""
        self.refresh()
        last = self.last_batch(app)
        return last is not None and last >= batch

    def commit(
        self,
        files: Sequence[str | LakePath],
        *,
        app: str,
        batch: int,
        now_ms: int | None = None,
    ) -> bool:
        """Commit Parquet files below this table's folder. Return False, and do nothing, if the batch is committed.

        A batch may be empty. FileRefused: a file lacks a column, has another type, or has rows of several partitions.
        """
        if self.is_committed(app, batch):
            return False
        self.swap(files, [], app_transaction=Transaction(app, batch), now_ms=now_ms)
        return True

    def noted(self, key: str) -> str | None:
        """Return the text that `note` stored under key, None if there is none."""
        if self.is_lost:
            return None
        with lake_errors(self.path):
            return self._delta.metadata().configuration.get(key)

    def note(self, key: str, text: str) -> None:
        """Store a text as a property of the table, in a separate commit. Replaces the previous text."""
        with self._lock.held(), lake_errors(self.path):
            self.refresh()
            self._read_under = None
            own = uuid4().hex
            self._delta.alter.set_table_properties(
                {key: text},
                raise_if_not_exists=False,
                commit_properties=CommitProperties(custom_metadata=self._commit_info(own)),
            )
            self.refresh()
            self._mark.write(self._delta.version(), own)

    def swap(
        self,
        added: Sequence[str | LakePath],
        removed: Sequence[DataFile],
        *,
        app_transaction: Transaction | None = None,
        data_change: bool = True,
        now_ms: int | None = None,
    ) -> None:
        """Replace `removed` by `added` in one commit. data_change=False: the same rows in other files."""
        actions = self.actions(added, removed, data_change=data_change, now_ms=now_ms)
        self.commit_actions(actions, app_transaction)

    def actions(
        self,
        added: Sequence[str | LakePath],
        removed: Sequence[DataFile],
        *,
        data_change: bool = True,
        now_ms: int | None = None,
    ) -> list[AddAction | RemoveAction]:
        """Return what `commit_actions` commits to replace `removed` by `added`. FileRefused."""
        at_ms = clock.now_ms() if now_ms is None else now_ms
        with lake_errors(self.path):
            adds = [self._add_action(inside(self.path, f), at_ms, data_change) for f in added]
        return [*adds, *(RemoveAction(f.path, data_change, at_ms, f.size, self._partition(f.hour)) for f in removed)]

    def commit_actions(
        self, actions: list[AddAction | RemoveAction], app_transaction: Transaction | None = None
    ) -> None:
        """Make one commit of actions."""
        own, read_under = uuid4().hex, self._read_under
        self._read_under = None  # until it is known what became of the commit
        with self._lock.held(), lake_errors(self.path):
            try:
                self._delta.create_write_transaction(
                    actions,
                    "append",
                    self._delta.schema(),
                    partition_by=[self.table.partition_by] if self.table.partition_by else None,
                    commit_properties=CommitProperties(
                        custom_metadata=self._commit_info(own),
                        app_transactions=[app_transaction] if app_transaction else None,
                    ),
                )
            except (DeltaError, OSError):
                if not is_remote(self.path) or not self._has_arrived(own):
                    raise
            self._update()
            self._mark.write(self._delta.version(), own)
        self._read_under = read_under

    def _commit_info(self, own: str) -> dict[str, str]:
        return self._mark.commit_info(self._delta.version(), own)

    def _has_arrived(self, own: str) -> bool:
        """Whether a commit is in the log, though it failed: an object store did it, and its answer was lost."""
        before = self._delta.version()
        self._update()
        log = self.path / "_delta_log"
        versions = range(before + 1, self._delta.version() + 1)
        return any(own in (log / f"{version:020}.json").read_text() for version in versions)

    def relative(self, file: str | LakePath) -> str:
        """Return the path of a file below this table's folder, relative to it."""
        return relative_to(inside(self.path, file), self.path)

    def _partition(self, hour: int | None) -> dict[str, str | None]:
        return {self.table.partition_by: str(hour)} if self.table.partition_by else {}

    def _add_action(self, file: LakePath, at_ms: int, data_change: bool) -> AddAction:
        relative = self.relative(file)
        data = read_footer(inside(self.path, file), self.table, relative)
        if is_remote(self.path):
            self._sizes[relative] = data.size
        stats = {
            "numRecords": data.row_count,
            "minValues": data.minimum,
            "maxValues": data.maximum,
            "nullCount": data.nulls,
        }
        return AddAction(relative, data.size, self._partition(data.hour), at_ms, data_change, json.dumps(stats))

    def _data_file(self, action: dict[str, Any]) -> DataFile:
        return DataFile(
            action["path"],
            action["size_bytes"],
            action["num_records"] or 0,
            action.get(f"partition.{self.table.partition_by}") if self.table.partition_by else None,
            {k.removeprefix("min."): v for k, v in action.items() if k.startswith("min.") and v is not None},
            {k.removeprefix("max."): v for k, v in action.items() if k.startswith("max.") and v is not None},
            {k.removeprefix("null_count."): v for k, v in action.items() if k.startswith("null_count.") and v},
        )


def read_footer(path: LakePath, table: Table, relative: str = "") -> DataFile:
    """Read a Parquet file's footer and check it against the table. FileRefused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = parquet_source(path)
    with pq.ParquetFile(source) as parquet:
        metadata, schema = parquet.metadata, parquet.schema_arrow
        expected = arrow_schema(table.relation)
        for column in expected:
            index = schema.get_field_index(column.name)
            found = schema.field(index).type if index >= 0 else None
            if found is None or not (pa.types.is_nested(column.type) or _alike(found, column.type)):
                raise FileRefused(
                    f"{path}: column {column.name!r} is {found or 'missing'}, expected {column.type} as in table "
                    f"{table.name!r}"
                )
        minimum: dict[str, Any] = {}
        maximum: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        wanted = table.with_bounds
        for index in range(metadata.num_columns):
            name = metadata.schema.column(index).path
            if name not in wanted or metadata.num_rows == 0:
                continue
            groups = range(metadata.num_row_groups)
            statistics = [metadata.row_group(group).column(index).statistics for group in groups]
            counts = [None if s is None else s.null_count for s in statistics]
            if None not in counts:
                nulls[name] = sum(count or 0 for count in counts)
            low, high = _bounds(statistics)
            if low is not None and not (isinstance(high, str) and max(len(low), len(high)) > _STATS_TEXT_SIZE_MAX):
                minimum[name], maximum[name] = low, high
        hour = None
        if table.partition_by:
            hour = minimum.pop(table.partition_by, None)
            nulls.pop(table.partition_by, None)
            if metadata.num_rows and (hour is None or maximum.pop(table.partition_by) != hour):
                raise FileRefused(f"{path}: rows of several {table.partition_by}, expected one; write one file an hour")
        return DataFile(
            relative or path.name, parquet_size(path, source), metadata.num_rows, hour, minimum, maximum, nulls
        )


def _bounds(statistics: Sequence[Any]) -> tuple[Any, Any]:
    """Return (least, greatest) value of the row groups' statistics; (None, None) unless all groups with a value have
    them."""
    some = [s for s in statistics if s is None or s.null_count is None or s.num_values]
    if not some or not all(s is not None and s.has_min_max for s in some):
        return None, None
    return min(s.min for s in some), max(s.max for s in some)


def _alike(found: pa.DataType, expected: pa.DataType) -> bool:
    import pyarrow as pa

    return found == expected or (pa.types.is_string(expected) and pa.types.is_large_string(found))


def has_log(folder: LakePath) -> bool:
    """Return whether a table was created here. A crash during creation leaves a log without a commit."""
    return bool(_commits(folder))


def _commits(folder: LakePath) -> list[LakePath]:
    """The commit files of a table."""
    log = folder / "_delta_log"
    if not is_remote(log) and not log.is_dir():
        return []
    return [file for file in log.iterdir() if file.suffix == ".json"]


def _check_log(folder: LakePath) -> None:
    """LakeDamaged: the table has no log, or an empty commit file, which delta-rs would read as a commit of nothing."""
    with lake_errors(folder):
        commits = _commits(folder)
        if not commits:
            raise LakeDamaged(f"{folder}: found no Delta log, expected one, as the lake has commits: {RESTORE}")
        for file in commits:
            if file.stat().st_size == 0:
                raise LakeDamaged(f"{file}: found 0 bytes, expected a commit of the table: {RESTORE}")


_LOG_BOUNDS = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
"""Delta keeps commits for 30 days by itself, a million files at a commit each two seconds; and names of removed files
for seven. A reader of an older snapshot has an hour here, as with the files (`maintenance.sweep`)."""


_REMOTE_BOUNDS = {"delta.checkpointInterval": "10"}
"""In an object store each commit since the last checkpoint is a request to open the table; by itself Delta makes one
every 100."""


def create_table(table: Table, folder: LakePath) -> None:
    """Create a Delta table without rows, of this schema version."""
    folder.mkdir(parents=True, exist_ok=True)
    DeltaTable.create(
        str(folder),
        arrow_schema(table.relation),
        name=table.name,
        description=table.relation.doc,
        partition_by=[table.partition_by] if table.partition_by else None,
        configuration={
            VERSION_KEY: str(SCHEMA_VERSION),
            **_LOG_BOUNDS,
            **(_REMOTE_BOUNDS if is_remote(folder) else {}),
        },
        raise_if_key_not_exists=False,
        storage_options=storage_options(folder),
    )


def _check_version(folder: LakePath, found: str) -> None:
    if found != str(SCHEMA_VERSION):
        if found.isdigit() and int(found) > SCHEMA_VERSION:
            remedy = "Upgrade mqtrail to the version that wrote it."
        elif found == str(MIGRATED_VERSION):
            remedy = "Stop the pipeline that writes to it, and run `mqtrail pipeline migrate --lake DIR`."
        else:
            remedy = "Use the mqtrail that wrote it; there is no migration from it."
        raise SchemaVersionError(f"{folder}: schema version {found}, expected {SCHEMA_VERSION}. {remedy}")
