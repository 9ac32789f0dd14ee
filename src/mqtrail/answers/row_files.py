"""The rows of a query as Python values, and as a file: Parquet, CSV, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

import pyarrow.parquet as pq

from mqtrail.lake import part_file

from .queries import QueryAnswer


def rows_of(answer: QueryAnswer) -> Iterator[list[Any]]:
    """Yield the rows, with times as ISO texts. Columns may have equal names."""
    for batch in answer.batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield [_plain(value) for value in row]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def save_rows(answer: QueryAnswer, path: Path) -> int:
    """Write all rows in the format of path's suffix; return their number. The file appears when it is complete."""
    with part_file(path.with_name(f".{path.name}.tmp")) as part:
        count = ROW_FORMATS[path.suffix](answer, part)
        part.replace(path)
    return count


def _write_parquet(answer: QueryAnswer, path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, answer.schema, compression="zstd") as file:
        for batch in answer.batches:
            file.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(answer: QueryAnswer, path: Path) -> int:
    with path.open("w", encoding="utf-8", newline="") as file:
        to = csv.writer(file)
        to.writerow(answer.schema.names)
        return _write_rows(answer, lambda row: to.writerow(["" if one is None else _cell(one) for one in row]))


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _write_json_lines(answer: QueryAnswer, path: Path) -> int:
    names = answer.schema.names

    def line(file: TextIO, row: list[Any]) -> None:
        file.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str) + "\n")

    with path.open("w", encoding="utf-8") as file:
        return _write_rows(answer, lambda row: line(file, row))


def _write_rows(answer: QueryAnswer, write: Callable[[list[Any]], object]) -> int:
    count = 0
    for row in rows_of(answer):
        write(row)
        count += 1
    return count


ROW_FORMATS: Final[dict[str, Callable[[QueryAnswer, Path], int]]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
"""Ending of a file's name -> writes the rows, returns their number."""
