"""The clusters that one server answers from, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from mqtrail.wire import MQError

from ..model import Scope
from ..sources import Sources

CALLS_MAX: Final = 8  # questions to one cluster at a time; further ones wait
NAMES_MAX: Final = 64  # names in an error


class UnknownName(MQError):
    """No cluster of the server has this name, or a tool has to be asked for one of several."""


@dataclass(frozen=True, slots=True)
class McpCluster:
    """A cluster that tools can be asked for. has_lake: past messages. has_cluster: its brokers answer now."""

    name: str
    title: str
    has_lake: bool
    has_cluster: bool


@dataclass(frozen=True, slots=True)
class McpClustersAnswer:
    """The clusters of this server, in the order of its file."""

    scope: Scope
    clusters: tuple[McpCluster, ...]


@dataclass(frozen=True, slots=True)
class NamedSources:
    """One cluster of a server. name: in the argument `cluster`; '' in a server with one. title: for people.

    limiter: bounds the questions to it, so that a cluster that does not answer keeps no thread from the others.
    """

    name: str
    title: str
    sources: Sources
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(CALLS_MAX), repr=False)


class McpClusters:
    """All clusters of a server."""

    def __init__(self, clusters: Sequence[NamedSources]) -> None:
        """clusters: at least one; a name that several have is an error of the caller."""
        self._by_name = {one.name: one for one in clusters}
        assert 0 < len(self._by_name) == len(clusters)

    def named(self, name: str) -> NamedSources:
        """Return a cluster; '': the only one. UnknownName: there is none, or there are several."""
        if not name and len(self._by_name) == 1:
            return next(iter(self._by_name.values()))
        if name in self._by_name:
            return self._by_name[name]
        names = ", ".join(map(repr, [*self._by_name][:NAMES_MAX]))
        if not name:
            raise UnknownName(f"found no cluster, expected `cluster` to be one of {names}")
        if [*self._by_name] == [""]:
            raise UnknownName(
                f"found the cluster {name!r}, expected none: this server has one cluster without a name; "
                "`lake_cluster` chooses a RocketMQ cluster of its lake"
            )
        raise UnknownName(f"found the cluster {name!r}, expected one of {names}")

    def listed(self, now_ms: int) -> McpClustersAnswer:
        """Return their names, without a question to any of them."""
        rows = tuple(
            McpCluster(one.name, one.title, one.sources.lake is not None, one.sources.live is not None)
            for one in self._by_name.values()
        )
        return McpClustersAnswer(Scope(now_ms, ("the settings of this server",)), rows)

    def close(self) -> None:
        """Close the connections and lakes of all."""
        for one in self._by_name.values():
            one.sources.close()
