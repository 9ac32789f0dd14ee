"""What an operator of the door may do: all, or what its topics and groups allow.

Three kinds, as in pmq's portal: an admin may do everything; a user looks, and changes the topics and groups whose
rules name it among `owners`. Bodies of messages are for admins, owners of the topic and owners of a group that
consumes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import msgspec

from .problems import Problem

TOPIC_ACTIONS: Final = frozenset(
    {"create-topic", "shrink-topic", "free-tables", "set-topic-permission", "delete-topic", "send-message"}
)
GROUP_ACTIONS: Final = frozenset({"create-group", "pause-group", "delete-group", "set-offsets", "resend-messages"})
"""Changes that the owner of the topic, or of the group, may make. All others are for admins."""


class OperatorRole(StrEnum):
    """What an operator may do without being an owner."""

    ADMIN = "admin"  # everything
    USER = "user"  # look


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOperator:
    """Who asks. topics, groups: that it owns. through: the operator whose token a console used for it; '': its own."""

    name: str
    role: OperatorRole
    is_read_only: bool
    topics: frozenset[str]
    groups: frozenset[str]
    through: str = ""

    @property
    def is_admin(self) -> bool:
        """Return whether its rights need no owner."""
        return self.role is OperatorRole.ADMIN

    def check_change(self, action: str, parameters: Mapping[str, Any], *, is_dry_run: bool) -> None:
        """Problem: it may not make this change, or, in a dry run, not look at its plan."""
        if self.is_read_only and not is_dry_run:
            raise _refused(
                f"found the operator {self.name!r}, who may only read, expected one without read_only: "
                "ask another operator"
            )
        if self.is_admin:
            return
        if action in TOPIC_ACTIONS and parameters["topic"] in self.topics:
            return
        if action in GROUP_ACTIONS and parameters["group"] in self.groups:
            of = parameters.get("failed_of", "")
            if parameters.get("to") == "topic" and of not in self.topics:
                raise _refused(
                    f"found the operator {self.name!r}, expected an admin or the owner of the topic, because all its "
                    "groups receive these messages: set `to` to `group`"
                )
            return
        kind = "topic" if action in TOPIC_ACTIONS else "group" if action in GROUP_ACTIONS else ""
        owner = f"an owner of the {kind} {parameters[kind]!r} or an admin" if kind else "an admin"
        remedy = "ask one of them" if kind else "ask one"
        raise _refused(f"found the operator {self.name!r}, expected {owner} for {action}: {remedy}")

    def check_bodies(self, topic: str, consumers: frozenset[str]) -> None:
        """Problem: it may not read the bodies of a topic. consumers: groups that consume it."""
        if not (self.is_admin or topic in self.topics or consumers & self.groups):
            raise _refused(
                f"found the operator {self.name!r}, expected an admin, an owner of the topic {topic!r} or an owner of "
                "a group that consumes it, to show bodies: ask one of them"
            )


class TopicLimits(msgspec.Struct):
    """The rules of a topic. tokens: how many; 0: none is needed to publish. groups: that may receive; None: all."""

    topic: str
    owners: list[str]
    tokens: int
    groups: list[str] | None
    messages_per_s: float | None


class GroupLimits(msgspec.Struct):
    """The rules of a group. tokens: how many; 0: none is needed to receive. allow, deny: addresses and networks."""

    group: str
    owners: list[str]
    tokens: int
    allow: list[str]
    deny: list[str]


class KnownOperator(msgspec.Struct):
    """An operator. tokens: how many it has. acts_for: it is a console that asks for others."""

    name: str
    role: str
    read_only: bool
    acts_for: bool
    tokens: int
    topics: list[str]
    groups: list[str]


class OperatedRules(msgspec.Struct):
    """Who asks, and the rules of the door, without tokens. through: the console's operator; '': none."""

    name: str
    role: str
    read_only: bool
    own_topics: list[str]
    own_groups: list[str]
    through: str
    topics: list[TopicLimits]
    groups: list[GroupLimits]
    operators: list[KnownOperator]


def _refused(detail: str) -> Problem:
    return Problem(HTTPStatus.FORBIDDEN, detail)
