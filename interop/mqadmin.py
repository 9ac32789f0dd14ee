"""Apache RocketMQ's admin tool: runs an operator's commands and returns their output. One JVM runs many commands.

with MqAdmin("5.3.3", folder, namesrv) as mqadmin:
    print(mqadmin.run("topicStatus", "-t", "orders"))
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from interop import jars
from interop.apache import JVM_OPENS, JVM_SMALL, write_logback

COMMAND_TIMEOUT_S = 60.0
# Versions whose tool is used without a server of the same version.
TOOLS_ALONE = ("4.9.8",)


class MqAdmin:
    """mqadmin of one version against one name server. Commands run one after the other."""

    def __init__(self, version: str, folder: Path, namesrv_address: str) -> None:
        """folder: for logs and for files that commands write. version: of a server, or in TOOLS_ALONE."""
        self.version, self.folder, self.namesrv_address = version, folder, namesrv_address
        (folder / "conf").mkdir(parents=True, exist_ok=True)
        write_logback(folder / "conf", "tools", folder / "tools.log")
        name = f"{'tools' if version in TOOLS_ALONE else 'server'}-{version}"
        command = [jars.java_tool("java"), *JVM_OPENS, *JVM_SMALL, f"-Duser.home={folder}"]
        command += [f"-Djava.io.tmpdir={folder}", f"-Drocketmq.namesrv.addr={namesrv_address}"]
        command += ["-cp", jars.classpath(name, folder / "conf", jars.compiled(name)), "mqtrail.interop.AdminDriver"]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            cwd=folder,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
        )

    def run(self, *arguments: str) -> str:
        """Return the output of `mqadmin arguments…`, including errors, because the tool's exit codes hide failures.

        TimeoutError: it does not end in time. InteropError: the JVM ended.
        """
        return self._run([*arguments, "-n", self.namesrv_address])

    def watch(self, *arguments: str, until: str) -> str:
        """Return the output of a command that is killed, at its first pause after `until`."""
        return self._run([*arguments, "-n", self.namesrv_address], until)

    def help(self) -> str:
        """Return mqadmin's list of its commands."""
        return self._run([])

    def _run(self, arguments: list[str], until: str = "") -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"arguments": arguments, "until": until}) + "\n")
        self.process.stdin.flush()
        while True:
            readable, _, _ = select.select([self.process.stdout], [], [], COMMAND_TIMEOUT_S)
            if not readable:
                raise TimeoutError(f"mqadmin {' '.join(arguments)}: not within {COMMAND_TIMEOUT_S:g} s")
            line = self.process.stdout.readline()
            if not line:
                raise jars.InteropError(f"mqadmin ended while running {' '.join(arguments)}")
            if line.startswith('{"output"'):
                lines = json.loads(line)["output"].splitlines()
                # logback logs its own set-up at the first command
                return "\n".join(line for line in lines if "|-INFO in" not in line and "|-WARN in" not in line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
