"""Which program Spark starts as Python: this one, except that workers of sources connect before their imports.

A shell script, since Spark takes one path and adds `-m MODULE` itself. Only the worker that has 10 s to connect is told
a port in its environment; the daemon that forks all others is not, and is started as ever.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from mqtrail.pipeline import early_worker

_WRAPPER = """#!/bin/sh
if [ -n "$PYTHON_WORKER_FACTORY_PORT" ] && [ "$1" = -m ]; then
    exec {python} {early} "$@"
fi
exec {python} "$@"
"""


def wrap_python(folder: Path) -> Path:
    """Write the program below folder and return its path."""
    program = folder / "python"
    early = Path(early_worker.__file__)
    program.write_text(_WRAPPER.format(python=shlex.quote(sys.executable), early=shlex.quote(str(early))))
    program.chmod(0o755)
    return program
