"""Subscription groups: the configuration of consumer groups, by name.

A group is created at its first heartbeat or pull if auto_create_group is on.

Source: SubscriptionGroupManager, SubscriptionGroupConfig, apache/rocketmq broker/subscription/.
"""

from collections.abc import Callable, Mapping

from mqtrail.store import ConfigFileStore
from mqtrail.wire import (
    BROKER_GROUPS,
    DataVersion,
    InvalidParameter,
    NoPermission,
    Perm,
    SubscriptionGroupConfig,
    SubscriptionGroupNotExist,
    SubscriptionGroupTable,
    SystemError_,
    dumps_fastjson,
    is_system_group,
    validate_group,
)

from ..config import QUEUES_MAX, BrokerConfig
from ..encoded import EncodedEntries, member
from ..files import GROUPS_FILE, Unsaved, load_table, next_version

FORBIDDEN_TOPICS_MAX = 1_000  # of one group
_FORBIDDEN_READ = Perm.READ  # Java keeps the bit at INDEX_PERM_READ, the same place


class GroupTable:
    """Group name -> SubscriptionGroupConfig. Every change is saved (`ConfigFileStore.change`)."""

    def __init__(self, config: BrokerConfig, files: ConfigFileStore, now_ms: int) -> None:
        self._config = config
        self._files = files
        table = load_table(files, GROUPS_FILE, SubscriptionGroupTable) or SubscriptionGroupTable(
            {}, DataVersion(now_ms)
        )
        self.data_version = table.data_version
        self._forbidden = dict(table.forbidden_table)
        self._groups = dict(table.subscription_group_table)
        for name in BROKER_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(name))
        self._encoded = EncodedEntries({name: member(name, entry.members()) for name, entry in self._groups.items()})
        self._unsaved = Unsaved(files)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        self._unsaved.depend_on(group)
        return self._groups.get(group)

    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return the live table. Do not keep it: later calls change it."""
        return self._groups

    def find(self, group: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return the group; created now if automatic creation is on and its name is valid; else None."""
        known = self.get(group)
        if known is not None:
            return known
        if not (self._config.auto_create_group or is_system_group(group)):
            return None
        validate_group(group)
        if len(self._groups) >= self._config.groups_max:
            raise SystemError_(
                f"found {len(self._groups)} groups, expected at most {self._config.groups_max} (groups_max): "
                f"create group {group} with updateSubGroup, or raise groups_max"
            )
        made = SubscriptionGroupConfig(group)
        self.update(made, now_ms)
        return made

    def require(self, group: str, now_ms: int) -> SubscriptionGroupConfig:
        """Return the group like `find`. SubscriptionGroupNotExist: it does not exist and cannot be created."""
        found = self.find(group, now_ms)
        if found is None:
            raise SubscriptionGroupNotExist(
                f"subscription group [{group}] does not exist, autoCreateSubscriptionGroup is off: "
                "create it with updateSubGroup"
            )
        return found

    def require_consuming(self, group: str, now_ms: int) -> SubscriptionGroupConfig:
        """The same for a group that reads messages. NoPermission: it must not consume."""
        found = self.require(group, now_ms)
        if not found.consume_enable:
            raise NoPermission(f"subscription group no permission, {group}: its consumeEnable is false")
        return found

    def update(self, group: SubscriptionGroupConfig, now_ms: int) -> None:
        """Create or replace a group. InvalidParameter: invalid name or number of retry queues."""
        validate_group(group.group_name)
        if group.retry_queue_nums > QUEUES_MAX:
            raise InvalidParameter(
                f"found retryQueueNums {group.retry_queue_nums} of group {group.group_name}, expected at most "
                f"{QUEUES_MAX}"
            )
        if self.get(group.group_name) != group:
            self._change(group.group_name, group, self._forbidden.get(group.group_name), now_ms)

    def adopt(self, table: SubscriptionGroupTable, now_ms: int) -> None:
        """On a slave: take the groups of the master."""
        if (table.subscription_group_table, table.forbidden_table) == (self._groups, self._forbidden):
            self.data_version = table.data_version
            return
        before = self.table()
        self._replace(table, now_ms)
        self._files.change(GROUPS_FILE, self._document, lambda: self._replace(before, now_ms))

    def _replace(self, table: SubscriptionGroupTable, now_ms: int) -> None:
        groups, forbidden = table.subscription_group_table, table.forbidden_table
        for name in {*self._groups, *self._forbidden, *groups, *forbidden}:
            found = groups.get(name), forbidden.get(name)
            if found != (self._groups.get(name), self._forbidden.get(name)):
                self._set(name, *found, now_ms)
        self.data_version = table.data_version

    def delete(self, group: str, now_ms: int) -> bool:
        """Delete a group; return whether it existed."""
        if self.get(group) is None:
            return False
        self._change(group, None, None, now_ms)
        return True

    def forbid(self, group: str, topic: str, is_forbidden: bool, now_ms: int) -> None:
        """Forbid a group to read a topic, or allow it again."""
        topics = dict(self._forbidden.get(group, {}))
        bits = topics.get(topic, 0)
        changed = bits | _FORBIDDEN_READ if is_forbidden else bits & ~_FORBIDDEN_READ
        if changed == bits:
            return
        if changed and len(self._forbidden) >= self._config.groups_max and group not in self._forbidden:
            raise SystemError_(
                f"found {len(self._forbidden)} groups with forbidden topics, expected fewer: allow some topics again"
            )
        if changed and len(topics) >= FORBIDDEN_TOPICS_MAX and topic not in topics:
            raise SystemError_(
                f"found {len(topics)} forbidden topics of group {group}, expected fewer: allow some topics again"
            )
        topics[topic] = changed
        kept = {name: bits for name, bits in topics.items() if bits}
        self._change(group, self._groups.get(group), kept or None, now_ms)

    def _change(
        self, name: str, group: SubscriptionGroupConfig | None, forbidden: dict[str, int] | None, now_ms: int
    ) -> None:
        """Set a group and its forbidden topics."""
        before = (self._groups.get(name), self._forbidden.get(name))
        self._set(name, group, forbidden, now_ms)
        number = self._files.change(GROUPS_FILE, self._document, lambda: self._set(name, *before, now_ms))
        self._unsaved.note(name, number)

    def _set(
        self, name: str, group: SubscriptionGroupConfig | None, forbidden: dict[str, int] | None, now_ms: int
    ) -> None:
        if group is None:
            self._groups.pop(name, None)
        else:
            self._groups[name] = group
        if forbidden is None:
            self._forbidden.pop(name, None)
        else:
            self._forbidden[name] = forbidden
        self._encoded.put(name, None if group is None else member(name, group.members()))
        self.data_version = next_version(self.data_version, now_ms)

    def _document(self) -> Callable[[], bytes]:
        entries, version = self._encoded.snapshot(), self.data_version
        forbidden = {name: dict(topics) for name, topics in self._forbidden.items()}
        return lambda: b"".join(
            [
                *(b'{"dataVersion":', dumps_fastjson(version.members())),
                *(b',"forbiddenTable":', dumps_fastjson(forbidden)),
                *(b',"subscriptionGroupTable":', *entries, b"}"),
            ]
        )

    def table(self) -> SubscriptionGroupTable:
        """Return all groups as one body: the answer to request 201, and the content of the file."""
        return SubscriptionGroupTable(dict(sorted(self._groups.items())), self.data_version, self._forbidden)

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Return whether an administrator forbade the group to read the topic."""
        self._unsaved.depend_on(group)
        return bool(self._forbidden) and bool(self._forbidden.get(group, {}).get(topic, 0) & _FORBIDDEN_READ)
