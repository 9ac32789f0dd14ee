"""`cluster restart` and `cluster drain`: take brokers out of service without a failed send."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from .clusters import BrokerName
from .config import load
from .exits import Exit, UsageError
from .local_processes import listening_processes
from .operate import Yes, admin_of, confirm_change
from .options import ConfigFile, Json, Namesrv
from .output import progress, say, show_json

if TYPE_CHECKING:
    from mqtrail.client import SyncAdmin
    from mqtrail.wire import GroupReplicas, ReplicaState

READ_ONLY, READ_AND_WRITE = "4", "6"  # brokerPermission
POLL_S = 1.0

With = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="COMMAND",
        help="Command that restarts a broker, without a shell; {host}, {address} and {id} are replaced. [default: send "
        "SIGTERM to its process on this machine; its supervisor must start it again]",
    ),
]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="Maximum time to wait for consumers.")]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet",
        metavar="SECONDS",
        help="Time without new messages before the stop; clients refresh routes every 30 s.",
    ),
]
NoStop = Annotated[bool, typer.Option("--no-stop", help="Do not stop the process.")]


def cluster_restart(
    broker: BrokerName,
    with_: With = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Restart the brokers of a group in controller mode one by one; the master last, after a transfer of its role."""
    confirm_change(f"restart each in-sync broker of {broker!r}", yes)
    steps: list[str] = []

    def report(words: str) -> None:
        steps.append(words)
        if not json:
            say(f"{broker}: {words}")

    with admin_of(load(config), namesrv) as admin:
        if with_ is None:
            _check_local(admin.replica_group(broker))
        after = admin.restart_members(broker, _restarter(with_), report)
    if json:
        show_json({"broker": broker, "master": after.master_broker_id, "steps": steps})
    else:
        say(f"{broker}: all brokers were restarted; {after.master_broker_id} ({after.master_address}) is master")
    return Exit.OK


def _check_local(group: GroupReplicas) -> None:
    """Raise UsageError if a broker to restart is no process of this machine and user."""
    addresses = [one.broker_address for one in group.in_sync_replicas]
    missing = [one for one in addresses if one not in listening_processes(addresses)]
    if missing:
        raise UsageError(
            f"found no process of yours on this machine at {', '.join(missing)}, expected one: pass --with COMMAND, "
            "for example --with 'ssh {host} systemctl restart mqtrail'"
        )


def _restarter(command: str | None) -> Callable[[ReplicaState], Awaitable[None]]:
    async def restart(member: ReplicaState) -> None:
        await asyncio.to_thread(_restart, command, member)

    return restart


def _restart(command: str | None, member: ReplicaState) -> None:
    """Restart one broker. UsageError: it could not be done."""
    address = member.broker_address
    if command is None:
        _stop_process(address)
        return
    words = shlex.split(command)
    for name, value in (("host", address.rpartition(":")[0]), ("address", address), ("id", str(member.broker_id))):
        words = [word.replace(f"{{{name}}}", value) for word in words]
    try:
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except OSError as error:
        raise UsageError(f"--with: found {error}, expected a command that can run") from error
    if done.returncode:
        raise UsageError(f"--with: found exit code {done.returncode} of {shlex.join(words)}, expected 0")


def _stop_process(address: str) -> bool:
    """Send SIGTERM to the process of this machine that listens on an address; return whether there is one."""
    process_id = listening_processes([address]).get(address)
    if process_id is None:
        return False
    os.kill(process_id, signal.SIGTERM)
    return True


def cluster_drain(
    broker: BrokerName,
    wait_s: Wait = 600.0,
    quiet_s: Quiet = 31.0,
    no_stop: NoStop = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Take a master out of service: hand over or wait until all its messages are consumed, then stop its process."""
    confirm_change(f"take the master of {broker!r} out of service", yes)
    with admin_of(load(config), namesrv) as admin:
        (address,) = admin.targets(None, broker).values()
        successor = _successor(admin, broker)
        with progress("waiting for the brokers", enabled=not json):
            if successor:
                admin.set_master(broker)
                waiting: list[str] = []
            else:
                admin.set_broker_config({"brokerPermission": READ_ONLY}, broker=broker)
                waiting = _until_consumed(admin, broker, address, wait_s, quiet_s)
    stopped = not waiting and not no_stop and _stop_process(address)
    if json:
        found = {"broker": broker, "address": address, "handed_over": successor, "waiting": waiting}
        show_json(found | {"stopped": stopped})
    else:
        for words in waiting:
            say(f"{broker}: {words}")
        say(f"{broker} ({address}): {_outcome(broker, successor, waiting, stopped)}")
    return Exit.FAILED if waiting else Exit.OK


def _successor(admin: SyncAdmin, broker: str) -> bool:
    """Whether another replica of a group in controller mode can take over."""
    from mqtrail.client import NoControllers

    try:
        group = admin.replica_group(broker)
    except NoControllers:
        return False
    return any(one.alive and one.broker_id != group.master_broker_id for one in group.in_sync_replicas)


def _until_consumed(admin: SyncAdmin, broker: str, address: str, wait_s: float, quiet_s: float) -> list[str]:
    """Wait until nothing waits and nothing new came for quiet_s; return what waits after wait_s."""
    deadline_s = time.monotonic() + wait_s
    end, since_s = "", time.monotonic()
    while True:
        found = admin.runtime_info(address).get("commitLogMaxOffset", "")
        if found != end:
            end, since_s = found, time.monotonic()
        waiting = admin.waiting_at(broker)
        is_quiet = time.monotonic() - since_s >= quiet_s
        if not waiting and is_quiet:
            return []
        if time.monotonic() >= deadline_s:
            return waiting or [f"new messages within the last {quiet_s:g} s"]
        time.sleep(POLL_S)


def _outcome(broker: str, successor: bool, waiting: list[str], stopped: bool) -> str:
    if waiting:
        return (
            "it takes no sends of clients with a fresh route, and was not stopped; wait longer with --wait, or let it "
            f"take sends again: mqtrail cluster config brokerPermission={READ_AND_WRITE} --broker {broker}"
        )
    done = "another broker is master" if successor else "everything is consumed"
    return f"{done}, and its process was stopped" if stopped else f"{done}; it can be stopped now"
