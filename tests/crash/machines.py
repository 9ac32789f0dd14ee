"""Machines with links that can be cut: network namespaces on one bridge, in a namespace of its own without privileges.

    python -m tests.crash … --inside-links   in `unshare -Urnm`: clients and name server, at HUB
      machine 1, 2, 3                        a network namespace each, at 10.77.0.1, …

A cut link loses packets without a word, as a broken cable does: one direction sends them to an address of the bridge
that does not exist. A machine that is isolated loses the link to the hub too.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HUB = "10.77.0.254"
NOBODY = "02:00:00:00:00:99"  # a link address of the bridge that no machine has
READY = "ready"


def inside(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs this package's main function with network namespaces of its own."""
    return ["unshare", "-Urnm", sys.executable, "-m", "tests.crash", *arguments, "--inside-links"]


class Machine:
    """One network namespace. Its processes have names; their output goes to files of the folder."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder = number, folder
        self.ip = f"10.77.0.{number}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        wait = f"echo {READY}; exec sleep infinity"
        self._holder = subprocess.Popen(["unshare", "-n", "sh", "-c", wait], stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline().split() == [READY.encode()]
        ip("link", "add", f"v{number}", "type", "veth", "peer", "name", f"e{number}")
        ip("link", "set", f"v{number}", "master", "br0", "up")
        ip("link", "set", f"e{number}", "netns", str(self._holder.pid))
        self._ip("link", "set", "lo", "up")
        self._ip("link", "set", f"e{number}", "name", "eth0")
        self._ip("addr", "add", f"{self.ip}/24", "dev", "eth0")
        self._ip("link", "set", "eth0", "up")

    def _in_here(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "-n", "-t", str(self._holder.pid), *command]

    def _ip(self, *arguments: str) -> None:
        subprocess.run(self._in_here(["ip", *arguments]), check=True)

    def run(self, name: str, *arguments: str) -> None:
        """Start `mqtrail` with a data folder of this name."""
        command = [sys.executable, "-m", "mqtrail", *arguments, "--json", "--data", str(self.folder / name)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(self._in_here(command), stdout=subprocess.DEVNULL, stderr=log)

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def lose_to(self, target: str) -> None:
        """Lose what goes from here to an address."""
        self._ip("neigh", "replace", target, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")

    def heal(self) -> None:
        """Lose nothing any more."""
        self._ip("neigh", "flush", "dev", "eth0", "nud", "permanent")

    def end(self) -> None:
        for name in list(self.running):
            self.kill(name)
        self._holder.kill()
        self._holder.wait()


def ip(*arguments: str) -> None:
    """Run `ip` at the hub."""
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def machines(folders: Sequence[Path]) -> Iterator[list[Machine]]:
    """Make the bridge, and a machine for each folder; end what runs on them afterwards."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge")
    ip("addr", "add", f"{HUB}/24", "dev", "br0")
    ip("link", "set", "br0", "up")
    found: list[Machine] = []
    try:
        for number, folder in enumerate(folders, 1):
            found.append(Machine(number, folder))
        yield found
    finally:
        for machine in found:
            machine.end()
