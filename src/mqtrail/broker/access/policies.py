"""Values of users and policies of 5.x, and the decision of a policy about a request.

A resource is *, Topic:*, Topic:name or Topic:prefix*; likewise Group, Cluster and Namespace. A policy entry allows or
denies actions on a resource from source addresses. The most specific matching entry decides, custom entries before
default ones: an exact name, then the longest prefix, then all of a kind, then *. Among equal entries, the one that
denies decides.

Source: Resource, PolicyEntry, Acl, AclAuthorizationHandler, apache/rocketmq auth/ (docs/reference/compatibility.md says
where 5.3.3 compares otherwise).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Self

from mqtrail.wire import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    AclInfo,
    AddressMatcher,
    InvalidParameter,
    NoPermission,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
    block_matcher,
)

ANY_KIND: Final = "*"
ACTIONS: Final[Mapping[str, str]] = {
    name.lower(): name for name in ("All", "Any", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
}
KINDS: Final[Mapping[str, str]] = {name.lower(): name for name in ("Cluster", "Namespace", "Topic", "Group")}
USER_SUBJECT: Final = "User:"


class UserType(StrEnum):
    """A Super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """A disabled user is refused."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """A user. The password is the secret key of its signatures."""

    username: str
    password: str = field(repr=False)
    user_type: UserType = UserType.NORMAL
    user_status: UserStatus = UserStatus.ENABLE

    def info(self) -> UserInfo:
        """Return the entry for the file."""
        return UserInfo(self.username, self.password, self.user_type.value, self.user_status.value)

    def shown(self) -> UserInfo:
        """Return the user for answers, with an empty password. createUser rejects a copy of it."""
        return UserInfo(self.username, "", self.user_type.value, self.user_status.value)


class Resource(NamedTuple):
    """kind: Topic, Group, Cluster, Namespace or *. name: None: all of the kind. is_prefix: name is a prefix."""

    kind: str
    name: str | None = None
    is_prefix: bool = False

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a resource. NoPermission: invalid (Apache's answer)."""
        if text == ANY_KIND:
            return cls(ANY_KIND)
        kind, _, name = text.partition(":")
        known = KINDS.get(kind.lower())
        if known is None:
            raise NoPermission(
                f"The resource is null: found {text!r}, expected *, Topic:name, Topic:prefix* or Group:… or Cluster:…"
            )
        if name == ANY_KIND:
            return cls(known)
        if name.endswith(ANY_KIND):
            return cls(known, name.partition(ANY_KIND)[0], True)
        return cls(known, name)

    def __str__(self) -> str:
        if self.kind == ANY_KIND:
            return ANY_KIND
        return f"{self.kind}:{self.name or ''}{'*' if self.name is None or self.is_prefix else ''}"

    def holds(self, other: "Resource") -> bool:
        """Return whether this resource includes other, a single resource."""
        if self.kind == ANY_KIND:
            return True
        if self.kind != other.kind:
            return False
        if self.name is None:
            return True
        return (other.name or "").startswith(self.name) if self.is_prefix else other.name == self.name

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of resources: the most specific first."""
        if self.kind == ANY_KIND:
            return 3, 0
        if self.name is None:
            return 2, 0
        return (1, -len(self.name)) if self.is_prefix else (0, 0)


def topic_resource(name: str) -> Resource:
    """Return the resource of a topic; of a retry topic its group."""
    if name.startswith(RETRY_PREFIX):
        return Resource("Group", name.removeprefix(RETRY_PREFIX))
    return Resource("Topic", name)


def group_resource(name: str) -> Resource:
    """Return the resource of a group, from its name or its retry or dead-letter topic."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        name = name.removeprefix(prefix)
    return Resource("Group", name)


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy entry. actions: names as in ACTIONS. sources: empty: any address."""

    resource: Resource
    actions: tuple[str, ...]
    sources: tuple[str, ...]
    allows: bool
    matchers: tuple[AddressMatcher, ...] = field(repr=False, compare=False)

    @classmethod
    def read(cls, info: PolicyEntryInfo) -> Self:
        """Return the entry. NoPermission names the error, as in Apache's check."""
        if not info.resource:
            raise NoPermission("The resource is null: expected *, Topic:name, Topic:prefix* or Group:… or Cluster:…")
        resource = Resource.read(info.resource)
        actions = tuple(dict.fromkeys(known for name in info.actions if (known := ACTIONS.get(name.lower()))))
        if not actions:
            raise NoPermission(f"The actions is empty: found {info.actions}, expected some of {list(ACTIONS.values())}")
        if "Any" in actions:
            raise NoPermission("The actions can not be Any: expected All")
        decision = (info.decision or "").lower()
        if decision not in ("allow", "deny"):
            raise NoPermission(f"The decision is null or illegal: found {info.decision!r}, expected Allow or Deny")
        sources = info.source_ips or ()
        try:
            matchers = tuple(map(block_matcher, sources))
        except InvalidParameter as error:
            raise NoPermission(error.remark) from error
        return cls(resource, actions, sources, decision == "allow", matchers)

    def info(self) -> PolicyEntryInfo:
        """Return the entry for answers and the file."""
        decision = "Allow" if self.allows else "Deny"
        return PolicyEntryInfo(str(self.resource), self.actions, self.sources or None, decision)

    def matches(self, resource: Resource, actions: Iterable[str], ip: str) -> bool:
        """Return whether it applies to a request."""
        if not self.resource.holds(resource):
            return False
        if "All" not in self.actions and not any(action in self.actions for action in actions):
            return False
        return not self.matchers or any(matches(ip) for matches in self.matchers)


@dataclass(frozen=True, slots=True)
class Acl:
    """All policies of a subject: custom entries, and default ones if no custom entry matches."""

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, policies: Iterable[PolicyInfo]) -> Self:
        """Return the policies in a body. NoPermission: an invalid entry, or none."""
        found: dict[bool, list[Entry]] = {False: [], True: []}
        for policy in policies:
            if not policy.entries:
                raise NoPermission("The policy entries is empty: expected at least one")
            is_default = (policy.policy_type or "").lower() == "default"
            found[is_default] += map(Entry.read, policy.entries)
        if not found[False] and not found[True]:
            raise NoPermission("The policies is empty: expected at least one")
        return cls(_merged((), found[False]), _merged((), found[True]))

    def merged(self, newer: "Acl") -> "Acl":
        """Return both merged: an entry of newer replaces the one for the same resource."""
        return Acl(_merged(self.custom, newer.custom), _merged(self.default, newer.default))

    def without(self, resource: Resource, *, is_default: bool) -> "Acl":
        """Return a copy without the entry for a resource."""
        if is_default:
            return Acl(self.custom, tuple(entry for entry in self.default if entry.resource != resource))
        return Acl(tuple(entry for entry in self.custom if entry.resource != resource), self.default)

    def info(self, subject: str, resource_filter: str | None = None) -> AclInfo:
        """Return the policies for answers and the file. resource_filter: part of the text of the resource."""
        policies = []
        for name, entries in (("Custom", self.custom), ("Default", self.default)):
            shown = tuple(
                entry.info() for entry in entries if not resource_filter or resource_filter in str(entry.resource)
            )
            if shown:
                policies.append(PolicyInfo(name, shown))
        return AclInfo(subject, tuple(policies))

    def decide(self, resource: Resource, actions: tuple[str, ...], ip: str) -> bool | None:
        """Return whether a request is allowed; None: no entry applies."""
        for entries in (self.custom, self.default):
            matching = [entry for entry in entries if entry.matches(resource, actions, ip)]
            if matching:
                return min(matching, key=lambda entry: (entry.resource.rank, entry.allows)).allows
        return None


def _merged(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
    """Merge old and new entries: a new one replaces the old one of its resource. Within new, a denial takes
    precedence."""
    found = {entry.resource: entry for entry in old}
    seen: set[Resource] = set()
    for entry in new:
        if entry.resource in seen and not found[entry.resource].allows:
            continue
        seen.add(entry.resource)
        found[entry.resource] = entry
    return tuple(found.values())
