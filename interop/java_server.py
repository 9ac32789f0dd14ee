"""A server in Java that others start: its output in a file, ended with whoever started it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from interop import jars
from interop.apache import JVM_SMALL
from interop.probe import wait_until

START_TIMEOUT_S: Final = 120.0
SHOWN_SIZE: Final = 3_000  # characters of the end of its output, in an error


class JavaServer:
    """One process of a main class of a set of jars. Its output is in `folder`/console.log."""

    def __init__(self, name: str, jar_set: str, folder: Path, jvm: Sequence[str] = JVM_SMALL) -> None:
        """name: for errors. jvm: options of Java."""
        self._name = name
        self._set = jar_set
        self._folder = folder
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process, while it runs."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs Java with these arguments, options of Java first."""
        return [jars.java_tool("java"), *self._jvm, "-cp", jars.classpath(self._set), *arguments]

    def start(self, arguments: Sequence[str], is_ready: Callable[[], bool]) -> None:
        """Start it, and wait until is_ready says so. InteropError: it ended before."""
        command = self.command(*arguments)
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self._folder / "console.log").open("wb") as console:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, cwd=self._folder
            )
        try:
            wait_until(lambda: self._lives() and is_ready(), f"{self._name} ready", START_TIMEOUT_S)
        except BaseException:
            self.end()
            raise

    def _lives(self) -> bool:
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            text = (self._folder / "console.log").read_text(errors="replace")[-SHOWN_SIZE:]
            raise jars.InteropError(f"{self._name} ended with {status}:\n{text}")
        return True

    def end(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
