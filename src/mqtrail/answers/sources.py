"""What the HTTP API, the console and the MCP server answer from: a lake, a cluster, or both."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqtrail.client import InstanceConfig
from mqtrail.trail import Settings
from mqtrail.wire import TRACE_TOPIC, MQError

from .cluster import ClusterAnswers
from .doctor import Diagnosis, examine

if TYPE_CHECKING:
    from mqtrail.lake import LakePath

    from .lookup import Answers
    from .openlake import OpenLake


class NoSource(MQError):
    """There is no lake, or no cluster, to ask."""


class KeptLake:
    """Opens a lake at the first question, and keeps it open. Thread safe."""

    def __init__(self, lake_count: int = 1) -> None:
        """lake_count: of lakes that share the memory of this process for questions."""
        self._lake_count = lake_count
        self._lock = threading.Lock()
        self._opened: OpenLake | None = None

    def opened(self, path: LakePath) -> OpenLake:
        """Return the lake. The first call imports DuckDB."""
        with self._lock:
            if self._opened is None:
                from .openlake import OpenLake

                self._opened = OpenLake(path, self._lake_count)
            return self._opened

    def close(self) -> None:
        """Close the lake."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """lake: None without one. namesrv: '' without a cluster. live: asks the cluster; None without one.

    name: of the cluster where one program has several, '' where it has one.
    """

    lake: LakePath | None
    namesrv: str
    live: ClusterAnswers | None
    settings: Settings
    instance: InstanceConfig
    trace_topic: str = TRACE_TOPIC
    kept: KeptLake = field(default_factory=KeptLake, repr=False, compare=False)
    name: str = ""

    @classmethod
    def open(
        cls,
        lake: LakePath | None,
        namesrv: str,
        *,
        settings: Settings | None = None,
        instance: InstanceConfig | None = None,
        lake_count: int = 1,
        name: str = "",
    ) -> Sources:
        """Return the sources; nothing is read or connected yet. lake_count: of lakes that share the memory."""
        chosen = instance or InstanceConfig()
        live = ClusterAnswers(namesrv, chosen) if namesrv else None
        return cls(
            lake=lake,
            namesrv=namesrv,
            live=live,
            settings=settings or Settings(),
            instance=chosen,
            kept=KeptLake(lake_count),
            name=name,
        )

    def answers(self, cluster: str = "") -> Answers:
        """Return look-ups in all sources. cluster: only this one of the lake. The first call imports DuckDB."""
        from .lookup import Answers

        return Answers(
            self.lake,
            self.namesrv,
            cluster=cluster,
            settings=self.settings,
            trace_topic=self.trace_topic,
            instance=self.instance,
            opened=self.opened(),
        )

    def opened(self) -> OpenLake | None:
        """Return the lake that stays open between questions; None without one."""
        return None if self.lake is None else self.kept.opened(self.lake)

    def of_lake(self, cluster: str = "") -> Answers:
        """Return look-ups in the lake. NoSource: there is none."""
        if self.lake is None:
            raise NoSource(f"found no lake: {self._remedy('lake', '--lake DIR')}")
        return self.answers(cluster)

    def of_cluster(self) -> ClusterAnswers:
        """Return questions to the cluster. NoSource: there is none."""
        if self.live is None:
            raise NoSource(f"found no cluster: {self._remedy('namesrv', '--namesrv HOST:PORT')}")
        return self.live

    def _remedy(self, key: str, option: str) -> str:
        if self.name:
            return f"set `{key}` of {self.name!r} in the file of `--clusters`"
        return f"start this program with {option}"

    def diagnosis(self, now_ms: int, *, sample_count: int = 1_000) -> Diagnosis:
        """Return what can be traced on the cluster. sample_count: latest trace messages to read. NoSource."""
        self.of_cluster()
        return examine(
            self.namesrv, now_ms, trace_topic=self.trace_topic, sample_count=sample_count, instance=self.instance
        )

    def close(self) -> None:
        """Close the connections and the lake."""
        self.kept.close()
        if self.live is not None:
            self.live.close()
