"""Who may publish, receive and operate through the door, from where, and how fast: the rules of an operator.

    [topics.orders]
    owners = ["bob"]            # operators who may change the topic
    tokens = ["sha256:…"]       # to publish, one of these is needed
    groups = ["stock"]          # only these groups receive
    messages_per_s = 200        # then answers ask to slow down

    [groups.stock]
    owners = ["bob"]            # operators who may change the group
    tokens = ["sha256:…"]       # to receive, one of these is needed
    allow = ["10.0.0.0/8"]      # only from there
    deny = ["10.9.9.9"]

    [operators.ann]             # may use the operators' interface; the audit log names her
    tokens = ["sha256:…"]
    read_only = true            # may look, and change nothing

    [operators.bob]
    tokens = ["sha256:…"]
    role = "user"               # may look, and change what he owns

    [operators.portal]
    tokens = ["sha256:…"]
    acts_for = true             # a console: it names the operator for whom it asks

    [mail]                      # pmq's clients ask for mails, to these addresses and those of their group
    host = "mail.example.com"
    sender = "mqtrail@example.com"
    to = ["ops@example.com"]

A topic or group without rules is open to all who reach the door; without operators their interface is closed. Tokens
are kept as hashes.

The rules of a broadcast group hold for the group that each of its members has.

A group's own topics hold copies of messages of others: its retries, its dead letters, pmq's G_T_fail. So the rules of
that group hold for them, and those of the topics that the copies may be from. Topics of the broker itself, which hold
messages of everybody and the state of deliveries, are refused.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Annotated, Final

import msgspec

from mqtrail.wire import BROKER_TOPIC_PREFIXES, DLQ_PREFIX, RETRY_PREFIX, UNSENDABLE_TOPICS, InvalidParameter

from .mail import Addresses, MailRule
from .member_names import origin_of
from .problems import Problem
from .rights import DoorOperator, GroupLimits, KnownOperator, OperatedRules, OperatorRole, TopicLimits

PREFIX: Final = "sha256:"
BURST_S: Final = 1.0  # what a topic may get at once, in seconds of its rate
DEBT_S: Final = 5.0  # how far senders may go ahead of the rate before they are refused
GROUP_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)
FAILURE_SUFFIX: Final = "_fail"  # of pmq's failure topics

TokenHash = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]


class TopicRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """tokens: to publish. groups: that may receive; None: all. messages_per_s: None: any number. mail: addresses.
    owners: operators who may change it."""

    tokens: tuple[TokenHash, ...] = ()
    groups: tuple[str, ...] | None = None
    messages_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    mail: Addresses = ()
    owners: tuple[str, ...] = ()


class GroupRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """tokens: to receive. allow, deny: addresses and networks; without allow all that are not denied. mail: who gets
    the mails that its clients ask for. owners: operators who may change it."""

    tokens: tuple[TokenHash, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    mail: Addresses = ()
    owners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (*self.allow, *self.deny):
            ip_network(text, strict=False)

    def admits(self, ip: str) -> bool:
        """Return whether a client of this address may be of the group."""
        address = ip_address(ip)

        def among(texts: Sequence[str]) -> bool:
            return any(address in ip_network(text, strict=False) for text in texts)

        return not among(self.deny) and (not self.allow or among(self.allow))


class OperatorRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """tokens: one of them is needed; none: only a console asks for the operator. read_only: the operator may look, and
    change nothing. role: user: it may change only what it owns. acts_for: a console, which names who asks."""

    tokens: tuple[TokenHash, ...] = ()
    read_only: bool = False
    role: OperatorRole = OperatorRole.ADMIN
    acts_for: bool = False


class GateRules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The rules of all topics and groups that have any, the operators by name, and the mail server; None: no mails."""

    topics: dict[str, TopicRule] = {}
    groups: dict[str, GroupRule] = {}
    operators: dict[str, OperatorRule] = {}
    mail: MailRule | None = None

    def __post_init__(self) -> None:
        has_console = any(one.acts_for for one in self.operators.values())
        for name, rule in self.operators.items():
            if not rule.tokens and (rule.acts_for or not has_console):
                raise ValueError(f"operator {name!r} has no tokens and no console with acts_for asks for it")
        for kind, rules in (("topic", self.topics), ("group", self.groups)):
            for name, one in rules.items():
                if unknown := sorted(set(one.owners) - self.operators.keys()):
                    raise ValueError(f"owner {unknown[0]!r} of {kind} {name!r} is no operator")


def read_rules(text: str, where: str) -> GateRules:
    """Return the rules of a TOML file. InvalidParameter: found, expected, remedy."""
    try:
        return msgspec.convert(tomllib.loads(text), GateRules)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise InvalidParameter(
            f"{where}: found rules that cannot be used ({error}), expected [topics.NAME], [groups.NAME], "
            "[operators.NAME] and [mail] with tokens, groups, messages_per_s, allow, deny, mail, owners, role, "
            "read_only, acts_for, host, sender: correct the file"
        ) from error


def new_token() -> tuple[str, str]:
    """Return a new token, and its hash for the rules."""
    token = secrets.token_urlsafe(32)
    return token, token_hash(token)


def token_hash(token: str) -> str:
    """Return how the rules name a token."""
    return PREFIX + hashlib.sha256(token.encode()).hexdigest()


class TokenBucket:
    """The debt of a topic's senders, in messages: it grows by what they publish, and shrinks at the rate."""

    def __init__(self) -> None:
        self._debt = 0.0
        self._seen_s = 0.0

    def take(self, count: int, rate: float, now_s: float) -> float | None:
        """Return for how many seconds the sender should pause; None: too far ahead, take nothing."""
        self._debt = max(0.0, self._debt - rate * max(0.0, now_s - self._seen_s))
        self._seen_s = now_s
        if self.wait_s(rate) > DEBT_S:
            return None
        self._debt += count
        return self.wait_s(rate)

    def wait_s(self, rate: float) -> float:
        """Return the seconds until the debt is within the burst."""
        return max(0.0, self._debt / rate - BURST_S)


class Gate:
    """Applies the rules. They may be replaced while the door serves."""

    def __init__(self, rules: GateRules | None = None) -> None:
        self.rules = rules or GateRules()
        self._buckets: dict[str, TokenBucket] = {}

    def check_topic(self, topic: str, token: str | None) -> None:
        """Problem: the client may not publish to the topic, or change it."""
        _refuse_of_broker(topic)
        rule = self.rules.topics.get(topic)
        if rule is not None:
            _check(rule.tokens, token, f"the topic {topic}")
        if topic.startswith(GROUP_PREFIXES):  # pmq's client publishes to a failure topic without a token
            for owner in self._owners(topic):
                _check(self.rules.groups[owner].tokens, token, f"the group {owner}")

    def check_group(self, group: str, token: str | None, ip: str, topic: str | None = None) -> None:
        """Problem: the client may not receive for the group; topic: from it."""
        group = origin_of(group)
        self.check_subscription(group, token, topic)
        for one in (group, *self._owners(topic or "")):
            if not self.admits(one, ip):
                detail = f"found the address {ip}, expected one that the group {one} allows: ask its owner"
                raise Problem(HTTPStatus.FORBIDDEN, detail)

    def check_subscription(self, group: str, token: str | None, topic: str | None) -> None:
        """Problem: the group may not receive from the topic, or not with this token."""
        group, topic = origin_of(group), topic or ""
        _refuse_of_broker(topic)
        for origin in (topic, *self._origins(topic)):
            rule = self.rules.topics.get(origin)
            if rule is not None and rule.groups is not None and group not in rule.groups:
                detail = (
                    f"found the group {group!r}, expected one that may receive from {origin}: ask the topic's owner"
                )
                raise Problem(HTTPStatus.FORBIDDEN, detail)
        for one in (group, *self._owners(topic)):
            if one in self.rules.groups:
                _check(self.rules.groups[one].tokens, token, f"the group {one}")

    def _owners(self, topic: str) -> Iterator[str]:
        """Yield the groups with rules whose own topic this may be."""
        name = _name_in_group(topic)
        if name is not None:
            yield from (group for group in self.rules.groups if _begins(name, group))
        elif topic.endswith(FAILURE_SUFFIX):
            yield from (group for group in self.rules.groups if topic.startswith(f"{group}_"))

    def _origins(self, topic: str) -> Iterator[str]:
        """Yield the topics with rules whose messages a group's own topic may hold."""
        name = _name_in_group(topic)
        if name is not None:
            for origin, rule in self.rules.topics.items():
                if name.endswith((f"_{origin}", f"+{origin}")) or name in (rule.groups or ()):
                    yield origin
        elif topic.endswith(FAILURE_SUFFIX):
            yield from (origin for origin in self.rules.topics if topic.endswith(f"_{origin}{FAILURE_SUFFIX}"))

    def admits(self, group: str, ip: str) -> bool:
        """Return whether a client of this address gets queues of the group."""
        rule = self.rules.groups.get(origin_of(group))
        return rule is None or rule.admits(ip)

    def operator(self, token: str | None, acts_for: str | None = None) -> DoorOperator:
        """Return the operator with this token. acts_for: whom a console names instead. Problem: there is none."""
        if not self.rules.operators:
            detail = (
                "found no operators in the rules of this door, expected some: add [operators.NAME] with tokens to the "
                "file of --rules (`mqtrail pmq token` creates one)"
            )
            raise Problem(HTTPStatus.FORBIDDEN, detail)
        if token is None:
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "found no token, expected one of an operator: set MQTRAIL_OPERATOR_TOKEN, or send Authorization: "
                "Bearer …",
            )
        found = token_hash(token)
        for name, rule in self.rules.operators.items():
            if found in rule.tokens:
                return self._known(name, rule) if acts_for is None else self._acted_for(name, rule, acts_for)
        raise Problem(HTTPStatus.UNAUTHORIZED, "found another token, expected one of an operator: check the rules")

    def _acted_for(self, console: str, rule: OperatorRule, name: str) -> DoorOperator:
        if not rule.acts_for:
            detail = f"found the operator {console!r} asking for another one, expected acts_for = true in its rules"
            raise Problem(HTTPStatus.FORBIDDEN, detail)
        named = self.rules.operators.get(name)
        if named is None or named.acts_for:
            detail = f"found no operator {name!r} in the rules of this door, expected one: add [operators.NAME] for it"
            raise Problem(HTTPStatus.FORBIDDEN, detail)
        known = self._known(name, named)
        return replace(known, through=console, is_read_only=known.is_read_only or rule.read_only)

    def _known(self, name: str, rule: OperatorRule) -> DoorOperator:
        topics = frozenset(topic for topic, one in self.rules.topics.items() if name in one.owners)
        groups = frozenset(group for group, one in self.rules.groups.items() if name in one.owners)
        return DoorOperator(name=name, role=rule.role, is_read_only=rule.read_only, topics=topics, groups=groups)

    def owned_by(self, topic: str) -> frozenset[str]:
        """Return the group whose own topic this is; none if it may be that of several groups with rules."""
        found = frozenset(self._owners(topic))
        return found if len(found) == 1 else frozenset()

    def allowed(self, topic: str, groups: frozenset[str]) -> frozenset[str]:
        """Return those of these groups that may receive from a topic."""
        rule = self.rules.topics.get(topic)
        return groups if rule is None or rule.groups is None else groups & frozenset(rule.groups)

    def shown(self, who: DoorOperator) -> OperatedRules:
        """Return who asks, and all rules without tokens."""
        known = [(name, rule, self._known(name, rule)) for name, rule in self.rules.operators.items()]
        return OperatedRules(
            who.name,
            who.role,
            who.is_read_only,
            sorted(who.topics),
            sorted(who.groups),
            who.through,
            [
                TopicLimits(
                    name,
                    list(one.owners),
                    len(one.tokens),
                    None if one.groups is None else list(one.groups),
                    one.messages_per_s,
                )
                for name, one in sorted(self.rules.topics.items())
            ],
            [
                GroupLimits(name, list(one.owners), len(one.tokens), list(one.allow), list(one.deny))
                for name, one in sorted(self.rules.groups.items())
            ],
            [
                KnownOperator(
                    name,
                    rule.role,
                    rule.read_only,
                    rule.acts_for,
                    len(rule.tokens),
                    sorted(own.topics),
                    sorted(own.groups),
                )
                for name, rule, own in known
            ],
        )

    def take(self, topic: str, count: int, now_s: float) -> float:
        """Count messages to be published; return for how many seconds their sender should pause then. Problem: the
        senders are far ahead of the topic's limit, so nothing is stored."""
        rule = self.rules.topics.get(topic)
        if rule is None or rule.messages_per_s is None:
            return 0.0
        rate = rule.messages_per_s
        bucket = self._buckets.setdefault(topic, TokenBucket())
        found = bucket.take(count, rate, now_s)
        if found is None:
            wait_s = math.ceil(bucket.wait_s(rate) - DEBT_S)
            detail = (
                f"found more than {rate:g} messages per second for {topic}, expected fewer: pause as slow_down_ms says"
            )
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, retry_after_s=wait_s)
        return found


def _refuse_of_broker(topic: str) -> None:
    """Problem: the broker keeps the topic for itself."""
    if topic in UNSENDABLE_TOPICS or topic.startswith(BROKER_TOPIC_PREFIXES):
        detail = f"found the topic {topic}, which is the broker's own and forbidden, expected one of applications"
        raise Problem(HTTPStatus.FORBIDDEN, f"{detail}: name another topic")


def _name_in_group(topic: str) -> str | None:
    """Return what follows the prefix of a retry or dead-letter topic: GROUP, or GROUP_TOPIC; None: it is another."""
    return next((topic.removeprefix(one) for one in GROUP_PREFIXES if topic.startswith(one)), None)


def _begins(name: str, group: str) -> bool:
    return name == group or name.startswith((f"{group}_", f"{group}+"))


def _check(hashes: Sequence[str], token: str | None, what: str) -> None:
    if not hashes:
        return
    if token is None:
        raise Problem(HTTPStatus.UNAUTHORIZED, f"found no token, expected one for {what}: send Authorization: Bearer …")
    found = token_hash(token)
    if found not in hashes:  # of hashes, so the time that this takes tells nothing about a token
        raise Problem(HTTPStatus.UNAUTHORIZED, f"found another token, expected one for {what}: ask its owner")
