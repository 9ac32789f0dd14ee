"""Planted bugs of a replicated group: a checker that misses them would miss others too."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from mqtrail.broker import EpochFollower, InSyncSet, Replicas
from mqtrail.broker.ha.replicas import EVERYTHING
from mqtrail.controller import broker_groups
from mqtrail.controller.broker_groups import Decision, ReplicaGroup, ReplicaGroups

from .member_group import MemberGroup
from .member_restarts import QuickRestarts


def _unfenced(self: ReplicaGroups, command: Mapping[str, Any]) -> Decision:
    group = self.groups.get(command["name"])
    if group is None:
        return ALTER(self, command)
    present = {"master": group.master, "master_epoch": group.master_epoch, "in_sync_epoch": group.in_sync_epoch}
    return ALTER(self, {**command, **present, "in_sync": sorted({*command["in_sync"], group.master or 0} - {0})})


def _same_epoch(self: ReplicaGroup, master: int | None, command: Mapping[str, Any], reason: str) -> None:
    epoch = self.master_epoch
    SET_MASTER(self, master, command, reason)
    self.master_epoch = max(1, epoch)


def _any_broker(group: ReplicaGroup, alive: Mapping[str, list[int]], wanted: int | None, unclean: bool) -> int | None:
    return CHOOSE(group, alive, wanted, True)


def _goes_on(self: ReplicaGroups, command: Mapping[str, Any]) -> Decision:
    return REGISTER(self, {**command, "begins": False})


REGISTER = ReplicaGroups._register
ALTER, SET_MASTER, CHOOSE = ReplicaGroups._alter, ReplicaGroup.set_master, broker_groups.choose


@dataclass(frozen=True, slots=True)
class PlantedMember:
    """name: of the bug. owner, attribute: what it replaces. problem: part of the report. group: the kind of lives.
    lives_max: within so many it must be found."""

    name: str
    problem: str
    owner: Any
    attribute: str
    value: Any
    group: type[MemberGroup] = MemberGroup
    lives_max: int = 6

    @contextmanager
    def planted(self) -> Iterator[None]:
        with patch.object(self.owner, self.attribute, self.value):
            yield


def _property(read: Callable[[Any], Any]) -> Any:
    return property(read)


PLANTED_MEMBERS = (
    PlantedMember(
        "acknowledge what no slave has", "are lost", Replicas, "replicated_offset", _property(lambda self: EVERYTHING)
    ),
    PlantedMember(
        "read what no slave has", "rolled back", Replicas, "hides_unconfirmed", _property(lambda self: False)
    ),
    PlantedMember(
        "count with the confirmed set alone",
        "are lost",
        InSyncSet,
        "counted",
        _property(lambda self: self.ids - {self.term.broker_id}),
    ),
    PlantedMember("change the set unfenced", "an unfenced decision", ReplicaGroups, "_alter", _unfenced),
    PlantedMember("elect in the same epoch", "in epoch", ReplicaGroup, "set_master", _same_epoch),
    PlantedMember("elect a broker that is not in sync", "an unclean election", broker_groups, "choose", _any_broker),
    PlantedMember(
        "a master that starts again goes on in its epoch",
        "logs differ",
        ReplicaGroups,
        "_register",
        _goes_on,
        group=QuickRestarts,
        lives_max=60,  # about one in ten shows it
    ),
    PlantedMember("keep a tail of another master", "logs differ", EpochFollower, "_compare", lambda *_: None),
)
