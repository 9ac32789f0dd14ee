"""Fetches the jars of servers and clients with Maven, verifies them against the checksums, compiles the Java driver.

A set is a folder of `interop/` with a pom that names exact versions. Its jars are stored in `.build/interop/<set>/lib`;
the checksums of all jars, also transitive ones, are in `interop/checksums-<set>.sha256`. A set that is present and
verified is used, so a second run needs no network. Run `python -m interop.jars` to fetch all sets, and with `--lock` to
renew the checksums after a change of a pom (review the diff: these checksums are trusted).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

INTEROP = Path(__file__).resolve().parent
BUILD = INTEROP.parent / ".build" / "interop"
SETS = (
    *("client-4.9.8", "client-5.3.3", "kafka-4.1.0", "mirror-4.1.0", "s3proxy-4.1.0"),
    *("server-4.9.7", "server-5.3.3", "tools-4.9.8"),
)
JAVA_VERSION_MIN = 17
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
JDK_REMEDY = (
    "install a JDK of version 17 or newer and put it on PATH or name it in JAVA_HOME"
    " (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)"
)
MAVEN_REMEDY = "install Apache Maven 3 and put mvn on PATH (Debian, Ubuntu: apt-get install maven)"


class InteropError(Exception):
    """The real peers cannot be fetched or run; the message has the reason and a remedy."""


def java_tool(name: str) -> str:
    """Return the path of `java` or `javac`, preferably from JAVA_HOME. InteropError: none, or older than 17."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise InteropError(f"no {name} found in JAVA_HOME or on PATH: {JDK_REMEDY}")
    run = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'(?:version "|javac )(\d+)', run.stderr + run.stdout)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        text = (run.stderr + run.stdout).strip().splitlines() or ["no answer"]
        raise InteropError(f"{found} says {text[0]!r}, expected version {JAVA_VERSION_MIN} or newer: {JDK_REMEDY}")
    return found


def fetch(name: str) -> Path:
    """Return the folder of the set's jars, with all checksums verified. Maven fetches them if needed."""
    lock = _lock_file(name)
    if not lock.is_file():
        raise InteropError(f"{lock.name} is missing: restore it, or review a new one made by `-m interop.jars --lock`")
    with _exclusive(name):
        folder, stamp = BUILD / name / "lib", BUILD / name / "verified"
        wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        stamp.unlink(missing_ok=True)
        if not _mismatches(name, folder):
            stamp.write_text(wanted)
            return folder
        _bring(name, folder)
        if wrong := _mismatches(name, folder):
            shown = "; ".join(wrong[:5])
            raise InteropError(
                f"{name}: {len(wrong)} jars are not those of {lock.name}: {shown}. If the pom was changed, renew the"
                " sums with `-m interop.jars --lock` and review them; else do not use these jars"
            )
        stamp.write_text(wanted)
        return folder


def lock_sums(name: str) -> None:
    """Fetch the set again and write its checksum file."""
    with _exclusive(name):
        folder = BUILD / name / "lib"
        _bring(name, folder)
        lines = [f"{_sum(jar)}  {jar.name}\n" for jar in sorted(folder.glob("*.jar"))]
        _lock_file(name).write_text("".join(lines))


def classpath(name: str, *before: Path) -> str:
    """Return the -cp argument of a set: `before`, then its jars by name, so that the order is fixed."""
    return os.pathsep.join(str(path) for path in (*before, *sorted(fetch(name).glob("*.jar"))))


def compiled(name: str) -> Path:
    """Return the folder of the compiled driver classes for a set. They are compiled once per source text.

    A client set gets the driver of java/client, a server set that of java/admin.
    """
    folder = "client" if name.startswith("client-") else "admin"
    sources = sorted((INTEROP / "java" / folder).glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    jars = classpath(name)
    target = BUILD / name / f"classes-{digest}"
    with _exclusive(name):
        if target.is_dir():
            return target
        for stale in target.parent.glob("classes-*"):
            shutil.rmtree(stale)
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        options = ["--release", "17", "-encoding", "UTF-8", "-Xlint:all,-deprecation,-path,-processing", "-Werror"]
        command = [java_tool("javac"), *options, "-proc:none", "-cp", jars, "-d", str(partial), *map(str, sources)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise InteropError(f"javac refused the driver for {name}:\n{run.stdout}{run.stderr}")
        partial.rename(target)
    return target


def _bring(name: str, folder: Path) -> None:
    """Let Maven copy the set's runtime jars into folder. An interrupted run keeps the old folder."""
    maven = shutil.which("mvn")
    if maven is None:
        raise InteropError(f"no mvn found on PATH, needed to bring {name}: {MAVEN_REMEDY}")
    java = Path(java_tool("javac")).resolve()
    partial = folder.with_name("lib.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pom = INTEROP / name / "pom.xml"
    command = [maven, "-q", "-B", "-f", str(pom), COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    environ = {**os.environ, "JAVA_HOME": str(java.parent.parent)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if run.returncode != 0:
        raise InteropError(
            f"mvn could not bring {name} (exit {run.returncode}): check that Maven reaches its repository, through"
            f" its settings.xml if a mirror is needed\n{(run.stdout + run.stderr)[-2000:]}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _mismatches(name: str, folder: Path) -> list[str]:
    """Return the differences between the folder's jars and the locked checksums, one line each."""
    lines = (line.split(maxsplit=1) for line in _lock_file(name).read_text().splitlines())
    sums = {jar: digest for digest, jar in lines}
    present = {jar.name: jar for jar in folder.glob("*.jar")}
    wrong = [f"{jar} is missing" for jar in sums.keys() - present.keys()]
    wrong += [f"{jar} is not listed" for jar in present.keys() - sums.keys()]
    for jar in sums.keys() & present.keys():
        if (found := _sum(present[jar])) != sums[jar]:
            wrong.append(f"{jar} has sum {found[:12]}…, expected {sums[jar][:12]}…")
    return sorted(wrong)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock_file(name: str) -> Path:
    return INTEROP / f"checksums-{name}.sha256"


@contextmanager
def _exclusive(name: str) -> Iterator[None]:
    """Lock the set's folder while this process fetches or compiles."""
    (BUILD / name).mkdir(parents=True, exist_ok=True)
    with (BUILD / name / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the named sets, or all. Exit code 1 with a remedy: one is not available."""
    parser = argparse.ArgumentParser(prog="python -m interop.jars", description=main.__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)}; default: all")
    parser.add_argument(
        "--lock", action="store_true", help="renew the checksum files from the jars that Maven fetches now"
    )
    arguments = parser.parse_args(argv)
    try:
        java_tool("java")
        for name in arguments.sets or SETS:
            if arguments.lock:
                lock_sums(name)
            print(f"{name}: {len(list(fetch(name).glob('*.jar')))} jars verified")
            if not name.startswith(("kafka-", "mirror-", "s3proxy-")):
                compiled(name)
    except InteropError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
