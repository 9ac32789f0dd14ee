"""What `mqtrail cluster export` wrote, and the steps of an import of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from mqtrail.wire import (
    AclAccounts,
    AclInfo,
    BodyError,
    SubscriptionGroupConfig,
    TopicConfig,
    UserInfo,
)

from .model import MirrorError

VERSION: Final = 1  # of the export
Key = TypeVar("Key", str, tuple[str, str, str])
Value = TypeVar("Value")


class ImportAction(StrEnum):
    """What a step does."""

    MAKE = "make"
    CHANGE = "change"
    EQUAL = "equal"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class ImportStep:
    """A thing of the export. broker: of the target; "": of all, or of the name servers.

    kind: topic, group, user, policy, account (of ACL files), addresses (that need no account), value (of name servers)
    or offset. detail: what differs, or why it is a conflict and what to do. value: what is written. error: why it could
    not be.
    """

    kind: str
    name: str
    broker: str
    action: ImportAction
    detail: str = ""
    value: Any = field(default=None, repr=False)
    is_done: bool = False
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """Return it without its value, which may have a password."""
        names = ("kind", "name", "broker", "action", "detail", "is_done", "error")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class ExportedBroker:
    """What an export has of a broker. cluster: its name. offsets: by group and topic, by number of the queue.

    users, policies, accounts: None: it did not list them.
    """

    cluster: str
    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]
    offsets: Mapping[str, Mapping[str, Mapping[int, int]]]
    users: tuple[UserInfo, ...] | None
    policies: tuple[AclInfo, ...] | None
    accounts: AclAccounts | None


@dataclass(frozen=True, slots=True)
class ExportedCluster:
    """An export. brokers: by name. values: the key-value configuration of its name servers, by namespace and key."""

    brokers: Mapping[str, ExportedBroker]
    values: Mapping[str, Mapping[str, str]]


def read_export(text: str) -> ExportedCluster:
    """Return an export. MirrorError: the text is not an export, or lacks a part."""
    try:
        content = json.loads(text)
        version = content.get("version", VERSION)
        if version != VERSION:
            raise MirrorError(
                f"found an export of version {version}, expected {VERSION}: use the mqtrail that wrote it"
            )
        if failures := content.get("failures"):
            raise MirrorError(
                f"found an export without {', '.join(failures)}, which did not answer: export again when it is there"
            )
        brokers = {name: _broker_of(found) for name, found in sorted(content["brokers"].items())}
        values = {
            str(namespace): {str(key): str(value) for key, value in table.items()}
            for namespace, table in (content.get("key_values") or {}).items()
        }
        return ExportedCluster(brokers, values)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, BodyError) as error:
        raise MirrorError(
            f"found {type(error).__name__} in the export, expected what `mqtrail cluster export` prints"
        ) from error


def _broker_of(found: dict[str, Any]) -> ExportedBroker:
    topics = [TopicConfig.read(one) for one in found["topics"]]
    groups = [SubscriptionGroupConfig.read(one) for one in found["groups"]]
    users, policies, accounts = found.get("users"), found.get("policies"), found.get("accounts")
    return ExportedBroker(
        str(found["settings"].get("brokerClusterName", "")),
        {one.topic: one for one in topics},
        {one.group_name: one for one in groups},
        {
            group: {topic: {int(at): int(offset) for at, offset in queues.items()} for topic, queues in one.items()}
            for group, one in (found.get("offsets") or {}).items()
        },
        None if users is None else tuple(UserInfo.read(one) for one in users),
        None if policies is None else tuple(AclInfo.read(one) for one in policies),
        None if accounts is None else AclAccounts.read(accounts),
    )


@dataclass(frozen=True, slots=True)
class BrokerPairs:
    """Which brokers of the target get what a broker of the export has.

    masters: addresses of the target, by name. pairs: names of the target by names of the export, in the order of both;
    {}: they are not as many. Then each master gets what is the same on all brokers of the export that have it.
    """

    masters: Mapping[str, str]
    pairs: Mapping[str, str]

    @classmethod
    def of(cls, export: ExportedCluster, masters: Mapping[str, str]) -> BrokerPairs:
        """Return those of an export and the masters of the target."""
        names = sorted(masters)
        pairs = dict(zip(export.brokers, names, strict=True)) if len(names) == len(export.brokers) else {}
        return cls(masters, pairs)

    def spread(
        self, wanted: Mapping[str, Mapping[Key, Value]], keys: Iterable[Key]
    ) -> Iterator[tuple[Key, dict[str, Value] | str]]:
        """Yield, for each key, what the brokers of the target get; or why they get nothing. wanted: by broker of the
        export."""
        for key in keys:
            found = {broker: one[key] for broker, one in wanted.items() if key in one}
            if self.pairs:
                yield key, {self.pairs[broker]: value for broker, value in found.items()}
            elif len({repr(value) for value in found.values()}) > 1:
                yield (
                    key,
                    f"it differs between {', '.join(found)}, and the target has {len(self.masters)} brokers, not "
                    f"{len(wanted)}: create it by hand",
                )
            else:
                value = next(iter(found.values()))
                yield key, dict.fromkeys(self.masters, value)
