"""Benchmark of `mqtrail prove`: eight claims about ten million messages of a lake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.lookup import HOURS, HOURS_QUICK, PER_HOUR, PER_HOUR_QUICK, make_lake
from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import Session

BAR_S = 30.0
TIMEOUT_S = 600.0


@figure("prove", "mqtrail prove over 10 M messages", seconds=180)
def prove(session: Session) -> Iterator[Row]:
    """The command is timed from its fork. Every message has one group."""
    session.alone()
    hours, per_hour = (HOURS_QUICK, PER_HOUR_QUICK) if session.quick else (HOURS, PER_HOUR)
    folder = session.fresh_folder("prove")
    make_lake(folder, hours, per_hour)
    count = hours * per_hour
    times_s = []
    for _ in range(session.rounds):
        began_s = time.monotonic()
        command = [sys.executable, "-m", "mqtrail", "prove", "--lake", str(folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        times_s.append(time.monotonic() - began_s)
        found = json.loads(done.stdout)
        if (found["message_count"], found["pair_count"]) != (count, count):
            raise RuntimeError(f"found {found['message_count']} messages, expected {count}")
    yield Row(
        "prove/all", f"mqtrail prove over {count / 1e6:g} M messages", "s", times_s, bar=Bar("<=", BAR_S, of="ours")
    )
