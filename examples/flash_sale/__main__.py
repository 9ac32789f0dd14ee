"""The command line of the flash sale: `python -m examples.flash_sale --help`."""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mqtrail.wire import MQError

from .sale import Plant, Sale, SaleError


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog="python -m examples.flash_sale", description=__doc__)
    parser.add_argument("act", choices=["run", "prepare", "serve", "lake", "check"])
    parser.add_argument("part", nargs="?", choices=["shop", "payment", "points", "sms"], help="of serve")
    parser.add_argument("--folder", type=Path, default=Path("flash-sale"), help="databases, lake and logs")
    parser.add_argument("--name", default="sale", help="of the sale, and of its topics")
    parser.add_argument("--namesrv", default="127.0.0.1:9876", metavar="HOST:PORT")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379", metavar="URL")
    parser.add_argument("--stock", type=int, default=200, help="units on sale")
    parser.add_argument("--buyers", type=int, default=300, help="buyers, each with a double click")
    parser.add_argument(
        "--plant", type=Plant, choices=list(Plant), action="append", default=[], help="a defect to find"
    )
    parser.add_argument("--no-kill", action="store_true", help="let all parts live in peace")
    return parser


async def until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Run a part until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(serving)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: list[str]) -> int:
    """The program. Exit codes: 0 nothing is wrong, 1 found, 2 cannot run, 3 cannot tell."""
    given = options().parse_args(arguments)
    if (given.act == "serve") != (given.part is not None):
        options().error("found no part, expected one" if given.act == "serve" else "found a part, expected none")
    sale = Sale(
        folder=given.folder,
        name=given.name,
        namesrv=given.namesrv,
        redis=given.redis,
        stock=given.stock,
        buyers=given.buyers,
        plants=frozenset(given.plant),
    )
    errors: tuple[type[Exception], ...] = (SaleError, MQError)
    if given.act != "serve":  # what a part does not need is imported here: it starts without Spark
        from mqtrail.lake import LakeError
        from mqtrail.pipeline import JavaNotFound, JobFailed

        errors += (LakeError, JavaNotFound, JobFailed)
    try:
        return act(given, sale)
    except errors as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def act(given: argparse.Namespace, sale: Sale) -> int:
    """Do what was asked."""
    if given.act not in ("run", "prepare") and not sale.folder.is_dir():
        raise SaleError(f"found no sale in {sale.folder}, expected one: run `prepare`, or pass --folder")
    if given.act == "serve":
        from . import payment, points, shop, sms

        serve = {"shop": shop.serve, "payment": payment.serve, "points": points.serve, "sms": sms.serve}[given.part]
        asyncio.run(until_stopped(serve(sale)))
        return 0
    from . import check, run

    if given.act == "run":
        return run.run(sale, kills=() if given.no_kill else run.KILLS)
    if given.act == "prepare":
        asyncio.run(run.prepare(sale))
        return 0
    if given.act == "lake":
        run.make_lake(sale.namesrv, sale.folder / "lake")
        return 0
    verdict = asyncio.run(check.check(sale, sale.folder / "lake"))
    print(check.report(sale, verdict))
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
