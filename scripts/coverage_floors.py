"""Compare the coverage of each room with its floor in pyproject.toml, `[tool.mqtrail.coverage]`.

A room is a package directly below mqtrail. Its coverage is the share of its statements that `make coverage` runs in the
tests' own processes: what only `mqtrail up`, the demo or Spark's workers run does not count.

Usage: python scripts/coverage_floors.py REPORT [--write]. REPORT is the file that `coverage json` writes. --write sets
each floor to what was measured, less MARGIN points, rounded down. Exit status 1: a room is below its floor or has none.
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
TABLE = "[tool.mqtrail.coverage]\n"
MARGIN = 2  # points of percent: what depends on timing is covered in one run and not in the next


def measured(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the percentage of statements run in each room."""
    run: dict[str, int] = defaultdict(int)
    all_: dict[str, int] = defaultdict(int)
    for file, of_file in report["files"].items():
        parts = PurePosixPath(file.replace("\\", "/")).parts
        room, *rest = parts[len(parts) - parts[::-1].index("mqtrail") :]
        if not rest:  # a module of no room
            continue
        run[room] += of_file["summary"]["covered_lines"]
        all_[room] += of_file["summary"]["num_statements"]
    return {room: 100 * run[room] / count for room, count in all_.items() if count}


def compare(found: Mapping[str, float], floors: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return the table's lines and what is wrong."""
    lines, wrong = [], []
    for room in sorted({*found, *floors}):
        percent, floor = found.get(room), floors.get(room)
        shown = "no statements" if percent is None else f"{percent:5.1f} %"
        lines.append(f"{room:10} {shown}  floor {'none' if floor is None else f'{floor} %'}")
        if percent is None:
            wrong.append(f"{room}: found a floor but no statements; remove the floor")
        elif floor is None:
            wrong.append(f"{room}: found no floor; add one, at most {percent:.0f}")
        elif percent < floor:
            wrong.append(f"{room}: found {percent:.1f} %, expected at least {floor} %; add tests for what is new")
    return lines, wrong


def with_floors(text: str, found: Mapping[str, float]) -> str:
    """Return the text of pyproject.toml with the floors that follow from what was measured."""
    before, table, rest = text.partition(TABLE)
    _, separator, after = rest.partition("\n[")
    floors = "".join(f"{room} = {max(0, math.floor(percent - MARGIN))}\n" for room, percent in sorted(found.items()))
    return f"{before}{table}{floors}{separator}{after}"


def main() -> None:
    """Print the table; exit with 1 when a room is below its floor."""
    path, *write = sys.argv[1:]
    found, text = measured(json.loads(Path(path).read_text("utf-8"))), PROJECT.read_text("utf-8")
    if write == ["--write"]:
        text = with_floors(text, found)
        PROJECT.write_text(text, "utf-8")
    lines, wrong = compare(found, tomllib.loads(text)["tool"]["mqtrail"]["coverage"])
    print("\n".join(lines))
    if wrong:
        sys.exit("\n".join(["coverage is below a floor:", *wrong]))


if __name__ == "__main__":
    main()
