"""The cluster that the path of a request names, in a console with several: `/c/NAME` before the rest of the path.

`ClusterPaths` notes it in the request's scope, with `/c/NAME` as the root path; the door narrows the visitor's roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from starlette.types import Scope

from mqtrail.gateway import Problem
from mqtrail.wire import MQError

from ..access import IN_CLUSTER, Grant, Person, Visitor
from .problems import problem_of

CLUSTERS_PREFIX: Final = "/c/"
_KEY: Final = "mqtrail.cluster"  # of a scope


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """A cluster of a console. name: in addresses and roles. title: for people."""

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class ClusterList:
    """The clusters of a console, in the order of its file."""

    all: tuple[NamedCluster, ...]

    def without(self, grants: Iterable[Grant]) -> tuple[str, ...]:
        """Return the clusters that grants name and that are not among these, such as one that was removed."""
        known = {"", *(one.name for one in self.all)}
        return tuple(sorted({one.cluster.partition(IN_CLUSTER)[0] for one in grants} - known))

    def seen_by(self, person: Person) -> tuple[NamedCluster, ...]:
        """Return those in which a person has a role."""
        return tuple(one for one in self.all if person.within(one.name).grants)


class ChosenCluster:
    """The cluster of one request."""

    def __init__(self, name: str, known: ClusterList) -> None:
        self.name = name
        self.seen: tuple[NamedCluster, ...] = ()
        """Those in which the visitor has a role. The door sets it."""
        self._known = known

    @property
    def title(self) -> str:
        """Its title."""
        return next(one.title for one in self._known.all if one.name == self.name)

    def enter(self, visitor: Visitor) -> Visitor:
        """Return the visitor with the roles of this cluster alone. Problem: there is none."""

        def now() -> Person:
            return visitor.now().within(self.name)

        try:
            self.seen = self._known.seen_by(visitor.now())
            if not now().grants:
                found = f"found no role of {visitor.now().name!r} in the cluster {self.name!r}"
                raise Problem(HTTPStatus.FORBIDDEN, f"{found}, expected one: ask an administrator of the console")
        except MQError as error:
            raise problem_of(error) from error
        return replace(visitor, now=now)


def chosen_of(scope: Any) -> ChosenCluster | None:
    """Return the cluster that a request's path names; None: it names none."""
    found = scope.get(_KEY)
    return found if isinstance(found, ChosenCluster) else None


def path_within(scope: Any) -> str:
    """Return the path of a request without `/c/NAME`."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def chosen_scope(scope: Scope, chosen: ChosenCluster) -> Scope:
    """Return the scope of a request to one cluster."""
    return {**scope, "root_path": f"{CLUSTERS_PREFIX}{chosen.name}", _KEY: chosen}
