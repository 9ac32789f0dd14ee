"""The figure of `make demo` on a warm machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.machine import ROOT
from bench.registry import Bar, CannotMeasure, Row, figure
from bench.session import Session

ORDERS_QUICK = 500
BAR_S = 150.0


@figure("demo", "make demo on a warm machine", seconds=150)
def demo(session: Session) -> Iterator[Row]:
    """What the target does, with its data elsewhere: the bootstrap that finds all there, then the command. Once."""
    session.alone()
    command = [sys.executable, "-m", "mqtrail", "demo", "--folder", str(session.fresh_folder("demo") / "data")]
    if session.quick:
        command += ["--orders", str(ORDERS_QUICK)]
    began_s = time.monotonic()
    for part in (["sh", "scripts/bootstrap.sh", "python3"], command):
        run = subprocess.run(part, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode:
            tail = (run.stderr or run.stdout).strip()[-600:]
            raise CannotMeasure(f"{' '.join(part[-6:])} ended with {run.returncode}: {tail}")
    what = "make demo on a warm machine" + (f", {ORDERS_QUICK} orders only" if session.quick else "")
    yield Row("demo", what, "s", [time.monotonic() - began_s], bar=Bar("<=", BAR_S, of="ours"))
