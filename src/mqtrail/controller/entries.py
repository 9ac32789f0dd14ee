"""What entries of the log and snapshots may contain: checked when they arrive, since each member applies them.

Data that no controller writes would fail at every member, and again at each start.
"""

from collections.abc import Generator
from typing import Any, Final

import msgspec

from mqtrail.wire import RemotingError, loads_file

from .broker_groups import SnapshotGroups, read_snapshot

Alive = dict[str, tuple[int, int, int]]


class _Command(msgspec.Struct, kw_only=True):
    """A command, with what its leader knew of brokers that are alive."""

    name: str
    alive: Alive
    unclean: bool
    at_ms: int | None = None


class _Alter(_Command):
    master: int | None
    master_epoch: int | None
    in_sync: list[int]
    in_sync_epoch: int | None


class _Elect(_Command):
    cluster: str
    id: int
    designate: bool
    reason: str = ""


class _Register(_Command):
    id: int
    address: str
    begins: bool = False


class _ApplyId(_Command):
    cluster: str
    id: int
    check_code: str


class _Clean(_Command):
    ids: list[int]
    living: bool


_KINDS: Final[dict[str, type[_Command]]] = {
    "alter": _Alter,
    "elect": _Elect,
    "register": _Register,
    "apply_id": _ApplyId,
    "clean": _Clean,
}


class _Any(msgspec.Struct):
    do: str


def check_entry(data: bytes) -> None:
    """RemotingError: an entry is not a command. One that only a newer version knows is."""
    try:
        loads_file(data)  # nested values have a limit: whoever applies an entry reads it again, deeper in the stack
        kind: type[Any] | None = _KINDS.get(msgspec.json.decode(data, type=_Any).do)
        if kind is not None:
            msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemotingError(f"found {len(data)} bytes that are not an entry of a controller: {error}") from error


def snapshot_slices(data: bytes) -> Generator[None, None, SnapshotGroups]:
    """Read a snapshot in slices. RemotingError: the data is not a snapshot."""
    try:
        return (yield from read_snapshot(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemotingError(f"found {len(data)} bytes that are not a snapshot of a controller: {error}") from error
