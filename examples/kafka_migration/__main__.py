"""The command line: `python -m examples.kafka_migration --help`."""

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from mqtrail.testing import embedded
from mqtrail.wire import MQError

from .run import FORGOTTEN, WRONG, Migration
from .shop import RunError


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog="python -m examples.kafka_migration", description=__doc__)
    parser.add_argument("--kafka", default="127.0.0.1:9092", metavar="HOST:PORT", help="a Kafka without orders")
    parser.add_argument("--namesrv", default="", metavar="HOST:PORT", help="default: a broker in this process")
    parser.add_argument(
        "--folder", type=Path, default=Path("kafka-migration"), help="ledger and files of the migration"
    )
    parser.add_argument("--orders", type=int, default=40, help="orders of each of the four phases")
    parser.add_argument(
        "--plant", choices=[FORGOTTEN, WRONG], action="append", default=[], help="a defect to find; repeatable"
    )
    return parser


def main(arguments: list[str]) -> int:
    """The program. Exit codes: 0 nothing is wrong, 1 something was found, 2 cannot run."""
    given = options().parse_args(arguments)
    with contextlib.ExitStack() as stack:
        try:
            namesrv = given.namesrv or stack.enter_context(embedded()).namesrv_address
            migration = Migration(given.kafka, namesrv, given.folder, given.orders, frozenset(given.plant))
            found = asyncio.run(migration.run())
        except (RunError, MQError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    for text in found:
        print(f"found: {text}")
    print("found: nothing wrong" if not found else f"{len(found)} checks found something")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
