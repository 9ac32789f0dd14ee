"""Who asks, and what each role may do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mqtrail.wire import MQError


class NotAllowed(MQError):
    """The person's roles do not allow what was asked."""


class SignedOut(MQError):
    """The session is over: it was too long or too idle, or its user was removed or has a new password."""


class InvalidAccount(MQError):
    """A name, role or password is wrong; the text has no password."""


class Right(StrEnum):
    """What a role may do."""

    READ = "read"  # everything but bodies of messages
    BODIES = "bodies"
    OPERATE = "operate"  # move offsets, send messages again, have one consumed
    ADMINISTER = "administer"  # topics and settings of brokers, the audit log


class PersonRole(StrEnum):
    """Each role has the rights of those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


RIGHTS: Final = {
    PersonRole.VIEWER: frozenset({Right.READ}),
    PersonRole.OPERATOR: frozenset({Right.READ, Right.BODIES, Right.OPERATE}),
    PersonRole.ADMIN: frozenset(Right),
}
NAME: Final = re.compile(r"[\w.@+-]{1,128}")
IN_CLUSTER: Final = ":"
"""Between the name of a cluster of a console with several and that of a RocketMQ cluster in it."""
_GRANT: Final = re.compile(r"(viewer|operator|admin)(\+bodies)?(?:@([^/@\s]{1,255}))?(?:/([^/@\s]{1,255}))?")


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, perhaps in one cluster or on one topic. cluster, topic: '' for all; a topic's final * matches any rest.

    Its text is `ROLE[+bodies][@CLUSTER][/TOPIC]`, for example `viewer+bodies@prod/orders`. In a console with several
    clusters, CLUSTER is `NAME` of its file or `NAME:CLUSTER`.
    """

    role: PersonRole
    cluster: str = ""
    topic: str = ""
    has_bodies: bool = False

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Read the text of a grant. InvalidAccount."""
        found = _GRANT.fullmatch(text)
        if found is None:
            raise InvalidAccount(
                f"found the role {text[:300]!r}, expected ROLE[+bodies][@CLUSTER][/TOPIC] with the role viewer, "
                "operator or admin, for example viewer+bodies@prod/orders"
            )
        return cls(PersonRole(found[1]), found[3] or "", found[4] or "", found[2] is not None)

    def __str__(self) -> str:
        """Return its text."""
        bodies = "+bodies" if self.has_bodies else ""
        return (
            f"{self.role}{bodies}{f'@{self.cluster}' if self.cluster else ''}{f'/{self.topic}' if self.topic else ''}"
        )

    def gives(self, right: Right) -> bool:
        """Return whether the role has a right."""
        return right in RIGHTS[self.role] or (right is Right.BODIES and self.has_bodies)

    def covers(self, cluster: str, topic: str) -> bool:
        """Return whether it holds in a cluster on a topic. '': in all of them, on all of them."""
        is_topic = not self.topic or self.topic == topic
        if self.topic.endswith("*"):
            is_topic = bool(topic) and topic.startswith(self.topic[:-1])
        return self.cluster in ("", cluster) and is_topic


@dataclass(frozen=True, slots=True)
class Person:
    """A user who asks. name: '' without accounts."""

    name: str
    grants: tuple[Grant, ...]

    def may(self, right: Right, cluster: str = "", topic: str = "") -> bool:
        """Return whether a grant gives a right in a cluster on a topic. '': in all of them, on all of them."""
        return any(one.gives(right) and one.covers(cluster, topic) for one in self.grants)

    def within(self, name: str) -> Person:
        """Return the person with the roles that hold in one of several clusters of a console.

        A role in this cluster (`@NAME`) holds in all of it, one in a RocketMQ cluster of it (`@NAME:CLUSTER`) in that
        one. A role in any other cluster holds not at all, also if that one is not in the console's file (any more).
        """
        kept = []
        for one in self.grants:
            outer, _, inner = one.cluster.partition(IN_CLUSTER)
            if not one.cluster or outer == name:
                kept.append(replace(one, cluster=inner))
        return Person(self.name, tuple(kept))


LOCAL: Final = Person("", (Grant(PersonRole.ADMIN),))
"""Who asks a console without accounts: any user of its machine."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who sent a request, and how. now: who it is at this moment, with the roles of now; it raises SignedOut.

    csrf: the token that a form of this session sends back; '' without a session. is_ambient: the browser names the
    person by itself (a cookie, a proxy), also in requests that another site makes.
    """

    now: Callable[[], Person]
    address: str
    csrf: str = ""
    is_ambient: bool = False
