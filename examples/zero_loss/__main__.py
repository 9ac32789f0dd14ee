"""The command line: `python -m examples.zero_loss --help`."""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mqtrail.wire import MQError

from . import jobs as parts
from .jobs import Jobs, RunError


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog="python -m examples.zero_loss", description=__doc__)
    parser.add_argument("act", choices=["run", "accept", "send", "work", "lake", "verify"])
    parser.add_argument("--folder", type=Path, default=Path("zero-loss"), help="databases, lake and logs")
    parser.add_argument("--name", default="zero", help="of the run, and of its topics")
    parser.add_argument("--namesrv", default="127.0.0.1:9876", metavar="HOST:PORT")
    parser.add_argument("--jobs", type=int, default=100, help="number of jobs")
    parser.add_argument("--plant", choices=["early-ack"], help="a defect to find")
    return parser


async def until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Run a part until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(serving)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: list[str]) -> int:
    """The program. Exit codes: 0 proven, 1 found, 2 cannot run, 3 cannot tell."""
    given = options().parse_args(arguments)
    jobs = Jobs(
        folder=given.folder,
        name=given.name,
        namesrv=given.namesrv,
        count=given.jobs,
        early_ack=given.plant == "early-ack",
    )
    errors: tuple[type[Exception], ...] = (RunError, MQError)
    if given.act not in ("send", "work"):  # what a part does not need is imported here: it starts without Spark
        from mqtrail.lake import LakeError
        from mqtrail.pipeline import JavaNotFound, JobFailed

        errors += (LakeError, JavaNotFound, JobFailed)
    try:
        return act(given.act, jobs)
    except errors as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def act(name: str, jobs: Jobs) -> int:
    """Do what was asked."""
    if name not in ("run", "accept") and not jobs.folder.is_dir():
        raise RunError(f"found no run in {jobs.folder}, expected one: run `accept`, or pass --folder")
    jobs.folder.mkdir(parents=True, exist_ok=True)
    if name in ("send", "work"):
        asyncio.run(until_stopped(parts.send(jobs) if name == "send" else parts.work(jobs)))
        return 0
    if name == "accept":
        parts.accept(jobs, range(jobs.count))
        return 0
    from . import run, verify

    if name == "run":
        return run.run(jobs)
    if name == "lake":
        run.make_lake(jobs.namesrv, jobs.folder / "lake")
        return 0
    proof = verify.verify(jobs.folder / "lake", jobs.name, jobs.count)
    print(verify.report(proof, jobs.count))
    return proof.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
