"""The command line: `python -m examples.move_cluster --help`."""

import argparse
import sys
import tempfile
from pathlib import Path

from mqtrail.wire import MQError

from .check import report
from .move import Plant, move


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog="python -m examples.move_cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, help="empty or new folder for clusters, export and state [default: new]")
    parser.add_argument("--orders", type=int, default=300, help="number of orders [default: 300]")
    parser.add_argument("--plant", type=Plant, choices=list(Plant), help="a mistake to find")
    return parser


def main(arguments: list[str]) -> int:
    """The program. Exit codes: 0 right, 1 orders are lost, doubled or misplaced, 2 cannot run."""
    given = options().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as fresh:
            found = move(given.folder or Path(fresh), given.orders, given.plant)
    except (MQError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report(found))
    return 0 if found.is_right else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
