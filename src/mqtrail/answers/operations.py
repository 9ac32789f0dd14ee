"""Answers about how a live cluster is run: replication, name servers, users and policies of its brokers. Read-only.

What a server does not report is an omission of the answer's scope, and unknown in its rows: None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mqtrail.client import Gathered, ReplicaInfo, SyncAdmin
from mqtrail.clock import now_ms
from mqtrail.wire import GroupReplicas, PolicyEntryInfo

from .changes.setting_kinds import is_secret_setting
from .model import Scope

ELECTION_REASONS: Final = {
    "first": "the group had none before",
    "requested": "requested by an operator",
    "connection_closed": "the connection of the master before it closed",
    "heartbeats_stopped": "the heartbeats of the master before it stopped",
    "restarted": "the process of the master before it was started again",
    "no_master": "the group had no master, until a broker in sync was there again",
    "cleaned": "an operator removed the master from the group",
}
"""Why a controller of mqtrail elected a master: its word -> a sentence."""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A broker's part in its group. The fields are those of client.ReplicaInfo. why: the broker's error, or ''."""

    broker: str
    broker_id: int
    address: str
    is_master: bool | None
    end_offset: int | None
    lag_bytes: int | None
    lag_ms: int | None
    epoch: int | None
    is_in_sync: bool | None
    why: str

    @classmethod
    def of(cls, one: ReplicaInfo) -> ReplicaRow:
        """Return the row of what a broker reported."""
        return cls(
            one.name,
            one.broker_id,
            one.address,
            one.is_master,
            one.end_offset,
            one.lag_bytes,
            one.lag_ms,
            one.epoch,
            one.in_sync,
            "" if one.error is None else str(one.error),
        )


@dataclass(frozen=True, slots=True)
class ElectedGroup:
    """A group in controller mode, as its controllers know it. master_id None: it has no master.

    elected_ms, reason, master_before: of the last election; None and '': unknown, since Apache's controllers do not
    report it. reason: a word of ELECTION_REASONS, or another one of a newer controller.
    """

    broker: str
    master_id: int | None
    epoch: int
    in_sync_ids: tuple[int, ...]
    elected_ms: int | None
    reason: str
    master_before: int | None

    @classmethod
    def of(cls, broker: str, known: GroupReplicas) -> ElectedGroup:
        """Return the row of what the controllers reported."""
        last = known.last_election
        return cls(
            broker,
            known.master_broker_id,
            known.master_epoch,
            tuple(one.broker_id for one in known.in_sync_replicas),
            None if last is None else last.timestamp,
            "" if last is None else last.reason,
            None if last is None else last.master_before,
        )


@dataclass(frozen=True, slots=True)
class ReplicationAnswer:
    """How brokers follow their masters. groups: those in controller mode."""

    scope: Scope
    replicas: tuple[ReplicaRow, ...]
    groups: tuple[ElectedGroup, ...]


@dataclass(frozen=True, slots=True)
class NameServersAnswer:
    """The settings of each name server, by its address. A setting None: a secret. differing: not alike on all."""

    scope: Scope
    settings: Mapping[str, Mapping[str, str | None]]
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """A user of the access control of brokers. kind: Super, Normal. status: enable, disable. brokers: that have it."""

    name: str
    kind: str
    status: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerPolicy:
    """What a subject, such as User:orders, may do. source_ips empty: from every address. brokers: that have it."""

    subject: str
    kind: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerAccessAnswer:
    """Users and policies of RocketMQ 5 on the masters. masters: those that answered."""

    scope: Scope
    masters: tuple[str, ...]
    users: tuple[BrokerUser, ...]
    policies: tuple[BrokerPolicy, ...]


def replication(admin: SyncAdmin, namesrv: str) -> ReplicationAnswer:
    """Return the replication of all brokers. MQError: no name server answers."""
    found = admin.replicas()
    rows = tuple(map(ReplicaRow.of, found.replicas))
    groups = tuple(ElectedGroup.of(name, one) for name, one in sorted(found.groups.found.items()))
    omissions = [f"broker {one.broker} at {one.address}: {one.why}" for one in rows if one.why]
    omissions += _failures("the controllers of ", found.groups)
    return ReplicationAnswer(cluster_scope(namesrv, omissions), rows, groups)


def name_servers(admin: SyncAdmin, namesrv: str) -> NameServersAnswer:
    """Return the settings of each name server; secrets are left out. MQError: none answers."""
    found = admin.namesrv_config()
    if not found.found:
        raise next(iter(found.failures.values()))
    names = {name for settings in found.values() for name in settings}
    differing = sorted(name for name in names if len({settings.get(name) for settings in found.values()}) > 1)
    shown = {
        address: {name: None if value and is_secret_setting(name) else value for name, value in settings.items()}
        for address, settings in found.found.items()
    }
    return NameServersAnswer(cluster_scope(namesrv, _failures("name server ", found)), shown, tuple(differing))


def broker_access(admin: SyncAdmin, namesrv: str) -> BrokerAccessAnswer:
    """Return the users and policies of the masters, without passwords. MQError: no master answers."""
    users, policies = admin.users(), admin.acls()
    failures = {**users.failures, **policies.failures}
    masters = sorted(users.found.keys() & policies.found.keys())
    if not masters:
        raise next(iter(failures.values()))
    holders: dict[tuple[str, ...], list[str]] = {}
    rules: dict[tuple[str, str, PolicyEntryInfo], list[str]] = {}
    for broker in masters:
        for user in users.found[broker]:
            key = (user.username or "", user.user_type or "", user.user_status or "")
            holders.setdefault(key, []).append(broker)
        for acl in policies.found[broker]:
            for policy in acl.policies:
                for entry in policy.entries:
                    rules.setdefault((acl.subject or "", policy.policy_type or "", entry), []).append(broker)
    return BrokerAccessAnswer(
        cluster_scope(namesrv, [f"broker {name}: {error}" for name, error in failures.items()]),
        tuple(masters),
        tuple(BrokerUser(name, kind, status, tuple(have)) for (name, kind, status), have in sorted(holders.items())),
        tuple(_policy(*key, have) for key, have in sorted(rules.items(), key=lambda each: each[0][:2])),
    )


def cluster_scope(namesrv: str, omissions: Iterable[str], as_of_ms: int | None = None) -> Scope:
    """Return the scope of an answer about a live cluster. as_of_ms: default now."""
    at_ms = now_ms() if as_of_ms is None else as_of_ms
    return Scope(at_ms, (f"cluster at {namesrv}",), omissions=tuple(omissions))


def _failures(who: str, gathered: Gathered[Any]) -> list[str]:
    return [f"{who}{name}: {error}" for name, error in gathered.failures.items()]


def _policy(subject: str, kind: str, entry: PolicyEntryInfo, brokers: Sequence[str]) -> BrokerPolicy:
    sources = entry.source_ips or ()
    decision = entry.decision or ""
    return BrokerPolicy(subject, kind, entry.resource or "", entry.actions, sources, decision, tuple(brokers))
