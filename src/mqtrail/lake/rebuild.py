"""Rebuilds silver and indexes from bronze, and empties gold, so that the next judgement judges every message again.

For lakes whose silver is wrong or damaged while bronze is whole. Everything changes in one batch: a crash before it
leaves the lake as it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import duckdb

from mqtrail import trail
from mqtrail.trail import HOUR_MS, UNKNOWN_HOUR

from .batches import Change
from .duck import connect
from .edge import lake_errors
from .errors import LakeDamaged
from .indexes import MEMORY_LIMIT, SOURCES, write_index
from .known import STATES
from .lake import Lake
from .maintenance import expired_before_ms
from .parquet import copy_hours, of_cluster, rows_of
from .places import LakePath, emptied, is_remote, own_folder, remove_tree
from .tables import DataFile, LakeTable, cluster_of

APP: Final = "rebuild"
PIECE_SIZE: Final = 64 * 1024 * 1024
"""Bytes of bronze files that are read at once."""

_BRONZE: Final = (trail.TRACE_EVENTS, trail.MESSAGE_META)


class _Piece(NamedTuple):
    """Files of a table of bronze, and the cluster whose rows are taken."""

    relation: trail.Relation
    files: Sequence[DataFile]
    cluster: str


def rebuild(path: str | LakePath) -> Iterator[str]:
    """Rebuild the attempts of a lake and remove its judgements; yield a line for each step.

    Once retention has removed rows of bronze, attempts of the oldest hour, and of ids without a time, are completed
    instead of replaced: some of their rows are gone. LakeMissing, LakeBusy, LakeDamaged: bronze, or the log of a table.
    """
    lake = Lake.open(path)
    with lake.writing(), lake_errors(lake.path):
        lake.refresh()
        last = lake.batches.last(APP)
        number = last.number + 1 if last else 1
        attempts = lake[trail.ATTEMPTS.name]
        folder = emptied(attempts.path / f"batch={APP}-{number}")
        pieces = [piece for relation in _BRONZE for piece in _pieces(lake, relation)]
        partial_hour = max(expired_before_ms(lake[relation.name]) for relation in _BRONZE) // HOUR_MS
        added: list[LakePath] = []
        indexes: dict[str, list[LakePath]] = {name: [] for name in SOURCES}
        with _scratch(lake) as spill:
            duck = connect(memory_limit=MEMORY_LIMIT)
            duck.execute("SET temp_directory = ?", [spill])
            for done, piece in enumerate(pieces, 1):
                relation, files, cluster = piece
                added += _attempts_of(duck, lake, piece, folder / str(done))
                for name, (source, _) in SOURCES.items():
                    if source is relation:
                        target = own_folder(lake[name].path / f"batch={APP}-{number}") / f"{done}.parquet"
                        indexes[name].append(write_index(duck, name, lake[relation.name], files, target, cluster))
                yield f"{relation.name}: {len(files)} files read, piece {done} of {len(pieces)}"
            duck.close()
        kept = range(UNKNOWN_HOUR, partial_hour + 1) if partial_hour else ()
        removed = [file for file in attempts.files() if file.hour not in kept or not _is_readable(attempts, file)]
        changes = {one.name: Change(removed=lake[one.name].files()) for one in trail.APPENDED}
        changes |= {name: Change(made, lake[name].files()) for name, made in indexes.items()}
        remove_tree(lake.path / STATES)  # without it, every message is judged again
        lake.batches.commit(APP, number, {**changes, attempts.table.name: Change(added, removed)}, {})
    yield f"{len(added)} files of attempts replace {len(removed)}; the next cycle judges every message again"


@contextmanager
def _scratch(lake: Lake) -> Iterator[str]:
    """A folder for what does not fit into memory: in the lake's, where there is room for its like, if it has one."""
    if is_remote(lake.path):
        with tempfile.TemporaryDirectory(prefix="mqtrail-rebuild-") as spill:
            yield spill
    else:
        yield str(lake.path / "_rebuild")
        remove_tree(lake.path / "_rebuild")


def _attempts_of(duck: duckdb.DuckDBPyConnection, lake: Lake, piece: _Piece, folder: LakePath) -> list[LakePath]:
    """Write the attempts of a piece of bronze; return the files."""
    for one in _BRONZE:
        table = lake[one.name]
        chosen = table.readable(piece.files) if one is piece.relation else []
        duck.execute(f"CREATE OR REPLACE TEMP VIEW {one.name} AS {rows_of(table, chosen, piece.cluster)}")
    return copy_hours(duck, trail.merge_sql(f"({trail.attempts_sql()})"), folder, lake[trail.ATTEMPTS.name].table)


def _is_readable(table: LakeTable, file: DataFile) -> bool:
    try:
        return bool(table.readable([file]))
    except LakeDamaged:
        return False


def _pieces(lake: Lake, relation: trail.Relation) -> Iterator[_Piece]:
    """Yield a table of bronze in pieces of one cluster each, so that a file of silver has rows of one cluster."""
    table = lake[relation.name]
    for cluster in _clusters(table):
        piece: list[DataFile] = []
        for file in sorted(of_cluster(table.files(), cluster), key=lambda file: file.path):
            if piece and sum(one.size for one in piece) + file.size > PIECE_SIZE:
                yield _Piece(relation, piece, cluster)
                piece = []
            piece.append(file)
        if piece:
            yield _Piece(relation, piece, cluster)


def _clusters(table: LakeTable) -> list[str]:
    """The clusters that a table has rows of; joined files have those of several."""
    found = {cluster_of(file) for file in table.files()}
    if None in found:
        joined = table.readable([file for file in table.files() if cluster_of(file) is None])
        query = f"SELECT DISTINCT cluster FROM ({rows_of(table, joined)}) AS joined"
        found |= {name for (name,) in connect(memory_limit=MEMORY_LIMIT).execute(query).fetchall()}
    return sorted(name for name in found if name is not None)
