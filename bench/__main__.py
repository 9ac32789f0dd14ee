"""`python -m bench [NAME ...] [--quick]`: run benchmarks, print a JSON line each, store them in bench/results/.
A missed target is reported, but is not a failure. A figure that could not be measured is a failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import ROOT, busy_cores, commit, machine
from bench.registry import FIGURES, Figure
from bench.rows import CannotMeasure, Json
from bench.session import Session
from bench.table import RESULTS, write_table

# In order of running: figures that share a pair of servers are adjacent.
MODULES = (
    "broker",
    "lane",
    "official",
    "features",
    "trace_cost",
    "topics",
    "start",
    "crowd",
    "recovery",
    "failover",
    "pmq",
    "lag",
    "lookup",
    "console",
    "prove",
    "incidents",
    "demo_time",
    "pipeline_bench",
    "sink",
    "binlog_table",
    "reconcile",
    "bridge",
    "tee",
    "mirror",
    "idempotency",
    "cycle",
    "growth",
    "freshness",
)


def register() -> dict[str, str]:
    """Import every module of figures; return name -> reason of those that could not be imported."""
    missing = {}
    for name in MODULES:
        try:
            importlib.import_module(f"bench.{name}")
        except ImportError as error:
            missing[name] = f"bench/{name}.py cannot be imported: {error}"
    return missing


def measure(chosen: Figure, session: Session, keep: bool) -> list[Json]:
    """Measure one figure; print and store its rows. Exceptions state why it could not be measured."""
    stamp = {"machine": machine(), "commit": commit()}
    rows = []
    for row in chosen.measure(session):
        when = datetime.now(UTC)
        record = {**row.to_json(), **stamp, "load_average": busy_cores(), "when": when.isoformat(timespec="seconds")}
        if session.quick:
            record["quick"] = True
        line = json.dumps(record, ensure_ascii=False)
        print(line, flush=True)
        if keep:
            RESULTS.mkdir(exist_ok=True)
            with (RESULTS / f"{when:%Y-%m-%d}.jsonl").open("a") as file:
                file.write(line + "\n")
        rows.append(record)
    return rows


def run(names: Sequence[str], missing: dict[str, str], arguments: argparse.Namespace) -> int:
    """Run the named figures, or all. Exit code 1: one could not be measured."""
    failures = {} if names else dict(missing)
    rows: list[Json] = []
    folder = (arguments.folder or ROOT / ".build") / f"bench-{os.getpid()}"
    with Session(folder, rounds=arguments.rounds, seconds=arguments.seconds, quick=arguments.quick) as session:
        for name in names or FIGURES:
            began_s = time.monotonic()
            print(f"bench: {name}: {FIGURES[name].about}", file=sys.stderr, flush=True)
            try:
                rows += measure(FIGURES[name], session, keep=not arguments.quick)
            except CannotMeasure as error:
                failures[name] = str(error)
            except Exception as error:  # a figure that fails must not stop the others
                traceback.print_exc()
                failures[name] = f"{type(error).__name__}: {error}"
                session.alone()
            print(f"bench: {name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    missed = [row for row in rows if row["met"] is False]
    for row in missed:
        value = row["ours"] if "×" not in row["bar"] else row["ratio"]
        print(f"bench: missed: {row['figure']}: {value}, bar {row['bar']}", file=sys.stderr)
    for name, why in failures.items():
        print(json.dumps({"figure": name, "failed": why}, ensure_ascii=False), flush=True)
        print(f"bench: not measured: {name}: {why}", file=sys.stderr)
    judged = sum(row["met"] is not None for row in rows)
    print(f"bench: {len(rows)} figures, {judged - len(missed)} of {judged} bars met", file=sys.stderr)
    return 1 if failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run figures, list them, or update the table of bench/README.md."""
    missing = register()
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="run one short round of each as a check; store nothing")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each figure (default 5)")
    parser.add_argument("--seconds", type=float, default=1.2, help="counted seconds of a load (default 1.2)")
    parser.add_argument("--folder", type=Path, help="folder of the servers' files: the disk that is measured")
    parser.add_argument("--list", action="store_true", help="list the figures and their approximate durations")
    parser.add_argument("--table", action="store_true", help="write the latest results into bench/README.md")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.names if name not in FIGURES]:
        parser.error(
            f"no figure {unknown[0]!r}; there are {', '.join(FIGURES)}" + "".join(f"; {m}" for m in missing.values())
        )
    if arguments.list:
        for chosen in FIGURES.values():
            print(f"{chosen.name:12} {chosen.seconds:5.0f} s  {chosen.about}")
        return 0
    if arguments.table:
        return write_table()
    return run(arguments.names, missing, arguments)


if __name__ == "__main__":
    sys.exit(main())
