"""The program that Spark starts as Python: this interpreter, with two changes that make workers start sooner.

Workers of sources connect before their imports. And PySpark is imported from where it is installed: Spark puts a zip of
the same package ahead of it, from which every process compiles all modules again, a second of CPU time each.

It is a shell script, because Spark takes one path and adds `-m MODULE` itself. Only the worker that has 10 s to connect
gets a port in its environment; the daemon that forks all other workers starts as usual.
"""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path

import pyspark

from . import early_worker

_WRAPPER = """#!/bin/sh
{unzip}if [ -n "$PYTHON_WORKER_FACTORY_PORT" ] && [ "$1" = -m ]; then
    exec {python} {early} "$@"
fi
exec {python} "$@"
"""

_UNZIP = """kept=
set -f
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept${kept:+:}$entry ;;
    esac
done
unset IFS
export PYTHONPATH="$kept"
"""


def wrap_python(folder: Path) -> Path:
    """Write the program below folder and return its path."""
    program = folder / "python"
    early = shlex.quote(early_worker.__file__)
    unzip = _UNZIP if _is_installed() else ""
    program.write_text(_WRAPPER.format(python=shlex.quote(sys.executable), early=early, unzip=unzip))
    program.chmod(0o755)
    return program


def _is_installed() -> bool:
    """Whether this interpreter finds PySpark without PYTHONPATH, as a folder of modules."""
    home = Path(pyspark.__file__).parent.parent
    return home in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
