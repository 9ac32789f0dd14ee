"""The rows of a query or an export as Python values, and as a file: Parquet, CSV, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from mqtrail.lake import LakeDamaged
from mqtrail.wire import part_file

TEXTS: Final = pa.list_(pa.string())
EXPORT_SCHEMA: Final = pa.schema(
    {
        "msg_id": pa.string(),
        "topic": pa.string(),
        "keys": TEXTS,
        "send": TEXTS,
        "message": TEXTS,
        "groups": pa.map_(pa.string(), TEXTS),
        "knowledge": pa.string(),
        "reasons": TEXTS,
        "as_of": pa.int64(),
        "cluster": pa.string(),
    }
)
"""The columns of a file of `mqtrail export`: the fields of its JSON lines."""
EXPORT_ROWS: Final = 10_000  # in a batch


class Rows(Protocol):
    """Rows in batches of Arrow. A QueryAnswer is one."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def batches(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class _Export:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def rows_of(answer: Rows) -> Iterator[list[Any]]:
    """Yield the rows, with times as ISO texts. Columns may have equal names."""
    for batch in answer.batches:
        for row in zip(*(_values(column) for column in batch.columns), strict=True):
            yield [_plain(value) for value in row]


def _values(column: pa.Array[Any]) -> list[Any]:
    values = column.to_pylist()
    return [None if one is None else dict(one) for one in values] if pa.types.is_map(column.type) else values


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def save_rows(answer: Rows, path: Path) -> int:
    """Write all rows in the format of path's suffix; return their number. The file appears when it is complete."""
    with part_file(path.with_name(f".{path.name}.tmp")) as part:
        count = ROW_FORMATS[path.suffix](answer, part)
        part.replace(path)
    return count


def save_export(lines: Iterator[dict[str, Any]], path: Path) -> int:
    """Write the objects of `Answers.export` as `save_rows` does. LakeDamaged: the file lacks unreadable messages."""
    damage: list[LakeDamaged] = []
    count = save_rows(_Export(EXPORT_SCHEMA, _batches(lines, damage)), path)
    if damage:
        raise damage[0]
    return count


def _batches(lines: Iterator[dict[str, Any]], damage: list[LakeDamaged]) -> Iterator[pa.RecordBatch]:
    def readable() -> Iterator[dict[str, Any]]:
        try:
            yield from lines
        except LakeDamaged as error:
            damage.append(error)

    found = readable()
    while some := list(islice(found, EXPORT_ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=EXPORT_SCHEMA)


def _write_parquet(answer: Rows, path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, answer.schema, compression="zstd") as file:
        for batch in answer.batches:
            file.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(answer: Rows, path: Path) -> int:
    with path.open("w", encoding="utf-8", newline="") as file:
        to = csv.writer(file)
        to.writerow(answer.schema.names)
        return _write_rows(answer, lambda row: to.writerow(["" if one is None else _cell(one) for one in row]))


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _write_json_lines(answer: Rows, path: Path) -> int:
    names = answer.schema.names

    def line(file: TextIO, row: list[Any]) -> None:
        file.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str) + "\n")

    with path.open("w", encoding="utf-8") as file:
        return _write_rows(answer, lambda row: line(file, row))


def _write_rows(answer: Rows, write: Callable[[list[Any]], object]) -> int:
    count = 0
    for row in rows_of(answer):
        write(row)
        count += 1
    return count


ROW_FORMATS: Final[dict[str, Callable[[Rows, Path], int]]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
"""Ending of a file's name -> writes the rows, returns their number."""
