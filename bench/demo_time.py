"""The figure of `make demo` on a warm machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.machine import ROOT
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session

ORDERS_QUICK = 500
BAR_S = 150.0
TIMEOUT_S = 450.0
NOT_ALL_FOUND = 1  # exit code: an injected fault was not found


@figure("demo", "make demo on a warm machine", seconds=150)
def demo(session: Session) -> Iterator[Row]:
    """Does what `make demo` does, with another data folder: the bootstrap of an existing environment, then the command.

    Once.
    """
    session.alone()
    command = [sys.executable, "-m", "mqtrail", "demo", "--folder", str(session.fresh_folder("demo") / "data")]
    if session.quick:
        command += ["--orders", str(ORDERS_QUICK)]
    began_s = time.monotonic()
    subprocess.run(["sh", "scripts/bootstrap.sh", "python3"], cwd=ROOT, capture_output=True, check=True)
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CannotMeasure(f"the demo did not end within {TIMEOUT_S:g} s: run `make demo` to see why") from error
    took_s = time.monotonic() - began_s
    tail = (run.stderr or run.stdout).strip()[-600:]
    if run.returncode not in (0, NOT_ALL_FOUND):
        raise CannotMeasure(f"mqtrail demo ended with {run.returncode}: {tail}")
    what = "make demo on a warm machine" + (f", {ORDERS_QUICK} orders only" if session.quick else "")
    more = {"end": tail} if run.returncode else {}
    errors = (run.returncode, 0)
    yield Row("demo", what, "s", [took_s], bar=Bar("<=", BAR_S, of="ours"), errors=errors, more=more)
