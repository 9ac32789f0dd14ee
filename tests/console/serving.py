"""A console in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(
    lake: Path | None = None, namesrv: str = "", *options: str, data: Path | None = None
) -> Iterator[tuple[str, int]]:
    """Run `mqtrail console` on a free port; yield its http://host:port and its process id. At the end it must have
    logged no fault. data: the folder of its users.

    It does not know that a test runs: NiceGUI would leave out what users get, such as compressed files.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "mqtrail", "console", "--port", "0", *options]
    command += ["--lake", str(lake)] if lake else []
    command += ["--namesrv", namesrv] if namesrv else []
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**env, **({"MQTRAIL_DATA": str(data)} if data else {})},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r"http://[0-9.]+:[0-9]+", process.stdout.readline())
            assert found is not None, "the console did not start"
            yield found[0], process.pid
        finally:
            process.kill()
        log.seek(0)
        logged = log.read()
        assert "Traceback" not in logged, logged


@contextmanager
def console(lake: Path | None = None, namesrv: str = "", *options: str, data: Path | None = None) -> Iterator[str]:
    """Run `mqtrail console` on a free port; yield its http://host:port."""
    with running(lake, namesrv, *options, data=data) as (url, _):
        yield url
