"""Who may publish and receive through the door, from where, and how fast: the rules of an operator.

    [topics.orders]
    tokens = ["sha256:…"]       # to publish, one of these is needed
    groups = ["stock"]          # only these groups receive
    messages_per_s = 200        # then answers ask to slow down

    [groups.stock]
    tokens = ["sha256:…"]       # to receive, one of these is needed
    allow = ["10.0.0.0/8"]      # only from there
    deny = ["10.9.9.9"]

A topic or group without rules is open to all who reach the door. Tokens are kept as hashes.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import tomllib
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Annotated, Final

import msgspec

from mqtrail.wire import InvalidParameter

from .problems import Problem

PREFIX: Final = "sha256:"
BURST_S: Final = 1.0  # what a topic may get at once, in seconds of its rate
DEBT_S: Final = 5.0  # how far senders may go ahead of the rate before they are refused

TokenHash = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]


class TopicRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """tokens: to publish. groups: that may receive; None: all. messages_per_s: None: any number."""

    tokens: tuple[TokenHash, ...] = ()
    groups: tuple[str, ...] | None = None
    messages_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


class GroupRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """tokens: to receive. allow, deny: addresses and networks; without allow all that are not denied."""

    tokens: tuple[TokenHash, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (*self.allow, *self.deny):
            ip_network(text, strict=False)

    def admits(self, ip: str) -> bool:
        """Return whether a client of this address may be of the group."""
        address = ip_address(ip)

        def among(texts: Sequence[str]) -> bool:
            return any(address in ip_network(text, strict=False) for text in texts)

        return not among(self.deny) and (not self.allow or among(self.allow))


class GateRules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The rules of all topics and groups that have any."""

    topics: dict[str, TopicRule] = {}
    groups: dict[str, GroupRule] = {}


def read_rules(text: str, where: str) -> GateRules:
    """Return the rules of a TOML file. InvalidParameter: found, expected, remedy."""
    try:
        return msgspec.convert(tomllib.loads(text), GateRules)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise InvalidParameter(
            f"{where}: found rules that cannot be used ({error}), expected [topics.NAME] and [groups.NAME] with "
            "tokens, groups, messages_per_s, allow, deny: correct the file"
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
        rule = self.rules.topics.get(topic)
        if rule is not None:
            _check(rule.tokens, token, f"the topic {topic}")

    def check_group(self, group: str, token: str | None, ip: str, topic: str | None = None) -> None:
        """Problem: the client may not receive for the group; topic: from it."""
        self.check_subscription(group, token, topic)
        if not self.admits(group, ip):
            detail = f"found the address {ip}, expected one that the group {group} allows: ask its owner"
            raise Problem(HTTPStatus.FORBIDDEN, detail)

    def check_subscription(self, group: str, token: str | None, topic: str | None) -> None:
        """Problem: the group may not receive from the topic, or not with this token."""
        of_topic = None if topic is None else self.rules.topics.get(topic)
        if of_topic is not None and of_topic.groups is not None and group not in of_topic.groups:
            detail = f"found the group {group!r}, expected one that may receive from {topic}: ask the topic's owner"
            raise Problem(HTTPStatus.FORBIDDEN, detail)
        rule = self.rules.groups.get(group)
        if rule is not None:
            _check(rule.tokens, token, f"the group {group}")

    def admits(self, group: str, ip: str) -> bool:
        """Return whether a client of this address gets queues of the group."""
        rule = self.rules.groups.get(group)
        return rule is None or rule.admits(ip)

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


def _check(hashes: Sequence[str], token: str | None, what: str) -> None:
    if not hashes:
        return
    if token is None:
        raise Problem(HTTPStatus.UNAUTHORIZED, f"found no token, expected one for {what}: send Authorization: Bearer …")
    found = token_hash(token)
    if found not in hashes:  # of hashes, so the time that this takes tells nothing about a token
        raise Problem(HTTPStatus.UNAUTHORIZED, f"found another token, expected one for {what}: ask its owner")
