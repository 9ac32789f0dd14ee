"""The file of `--clusters`: which clusters and lakes one console or MCP server has, and where the files of each are.

[[clusters]]
name = "east"                          # in addresses and roles
title = "Shop, east"
namesrv = "10.1.0.5:9876;10.1.0.6:9876"
lake = "/srv/lakes/east"
config = "/etc/mqtrail/east.toml"      # its credentials, TLS and thresholds
data = "/var/lib/mqtrail/east"         # its alerts, saved searches, handled incidents and audit log
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqtrail.wire import setting, visible

from .config import ENVIRONMENT, TOP_KEYS, Config, build, load, namesrv_addresses, toml_of
from .exits import UsageError
from .imports import collector_paused
from .incident_acts import handled_incidents
from .output import warn

if TYPE_CHECKING:
    from mqtrail.answers import Sources
    from mqtrail.answers.access import AccessDesk
    from mqtrail.answers.http import ServedCluster, ServedClusters
    from mqtrail.answers.mcp import McpClusters

CLUSTERS_MAX: Final = 64
NAMES_MAX: Final = 10  # clusters that a warning names
TITLE_SIZE_MAX: Final = 80  # characters
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TABLES: Final = "clusters"
OWN_KEYS: Final = tuple(one for one in TOP_KEYS if one != "tls_config")
"""Keys of the settings file that each cluster has for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEntry:
    """One table of the file."""

    name: str = setting("", "name in addresses and roles")
    title: str = setting("", "name for people; empty: `name`")
    namesrv: str = setting("", "name server addresses; empty: a lake alone")
    lake: str = setting("", "folder of the lake, or s3://bucket/prefix; empty: a cluster alone")
    config: str = setting("", "settings file with its credentials, TLS and thresholds; empty: those of the console")
    data: str = setting("", "data folder; empty: `DATA/clusters/NAME`")


def check_alone(**options: object) -> None:
    """Raise UsageError for an option beside --clusters that each cluster of the file has for itself."""
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"found {option} with --clusters, expected one of them: the file has it of each cluster")


def clusters_in(path: Path, shared: Config) -> list[tuple[ClusterEntry, Config]]:
    """Return each cluster of the file with its settings. shared: of the console. UsageError: the file is wrong."""
    values = toml_of(path, "clusters file")
    if unknown := sorted(set(values) - {TABLES}):
        raise UsageError(f"clusters file {path}: found {unknown[0]!r}, expected tables [[{TABLES}]] alone")
    tables = values.get(TABLES, [])
    if not isinstance(tables, list) or not all(isinstance(one, Mapping) for one in tables):
        raise UsageError(f"clusters file {path}: found one [{TABLES}], expected a table [[{TABLES}]] for each cluster")
    if not 1 <= len(tables) <= CLUSTERS_MAX:
        raise UsageError(f"clusters file {path}: found {len(tables)} [[{TABLES}]], expected 1 to {CLUSTERS_MAX}")
    found: list[tuple[ClusterEntry, Config]] = []
    for number, table in enumerate(tables, 1):
        where = f"clusters file {path}, [[{TABLES}]] {number}"
        entry = _entry(where, table)
        settings = _settings(where, entry, shared)
        for other, known in found:
            if other.name == entry.name:
                raise UsageError(f"{where}: found name {entry.name!r} again, expected another one")
            if known.data(None).resolve() == settings.data(None).resolve():
                raise UsageError(f"{where}: found the data folder of {other.name!r}, expected one of its own: set data")
        found.append((entry, settings))
    return found


def _entry(where: str, table: Mapping[str, Any]) -> ClusterEntry:
    entry: ClusterEntry = build(ClusterEntry, {key: (f"{where}, {key}", value) for key, value in table.items()})
    if not NAME.fullmatch(entry.name):
        raise UsageError(
            f"{where}, name: found {entry.name[:80]!r}, expected 1 to 63 letters, digits or any of . _ - that begin "
            "with a letter or digit"
        )
    title = entry.title or entry.name
    if len(title) > TITLE_SIZE_MAX or not title.strip() or visible(title) != title:
        raise UsageError(f"{where}, title: found {title[:100]!r}, expected 1 to {TITLE_SIZE_MAX} visible characters")
    if not entry.namesrv and not entry.lake:
        raise UsageError(f"{where}: found neither namesrv nor lake, expected one or both")
    if entry.namesrv and not re.match(r"https?://[^/]+/.", entry.namesrv):
        try:
            namesrv_addresses(entry.namesrv)
        except UsageError as error:
            raise UsageError(f"{where}, namesrv: {error}") from None
    if entry.lake and ":/" not in entry.lake and not Path(entry.lake).expanduser().is_dir():
        raise UsageError(
            f"{where}, lake: found no folder {entry.lake!r}, expected the lake that `mqtrail pipeline` writes: correct "
            "the path, or remove it until there is a lake"
        )
    return replace(entry, title=title)


def _settings(where: str, entry: ClusterEntry, shared: Config) -> Config:
    """Return the settings of a cluster: those of its own file alone, else those of the console without its sources."""
    try:
        base = load(Path(entry.config).expanduser(), {}) if entry.config else shared
    except UsageError as error:
        raise UsageError(f"{where}, config: {error}") from None
    data = Path(entry.data).expanduser() if entry.data else shared.data(None) / "clusters" / entry.name
    own = {"namesrv": entry.namesrv, "lake": entry.lake, "data": str(data)}
    names = [ENVIRONMENT[key] for key in OWN_KEYS if key in ENVIRONMENT]
    return replace(
        base,
        values={**base.values, **own},
        environment={name: value for name, value in base.environment.items() if name not in names},
    )


def clusters_of(
    entries: list[tuple[ClusterEntry, Config]], access: AccessDesk | None, *, is_changing: bool
) -> ServedClusters:
    """Return what a console serves of the clusters. AuditFailed."""
    from mqtrail.answers.http import ServedClusters

    lake_count = _lake_count(entries)
    served = ServedClusters([_served(*one, lake_count, is_changing=is_changing) for one in entries], access)
    if access is not None and (others := served.list.without(access.named_grants())):
        names = ", ".join(map(repr, others[:NAMES_MAX])) + (", …" if len(others) > NAMES_MAX else "")
        warn(
            f"found roles in {names}, expected names of the clusters file: these roles hold nowhere; remove them with "
            "`mqtrail console user role` or from the settings file"
        )
    return served


def mcp_clusters_of(entries: list[tuple[ClusterEntry, Config]]) -> McpClusters:
    """Return what an MCP server answers from of the clusters."""
    with collector_paused():
        from mqtrail.answers.mcp import McpClusters, NamedSources

    lake_count = _lake_count(entries)
    return McpClusters([NamedSources(one.name, one.title, _sources(one, its, lake_count)) for one, its in entries])


def _lake_count(entries: list[tuple[ClusterEntry, Config]]) -> int:
    return max(1, sum(bool(entry.lake) for entry, _ in entries))


def _sources(entry: ClusterEntry, settings: Config, lake_count: int) -> Sources:
    with collector_paused():
        from mqtrail.answers import Sources

    return Sources.open(
        settings.lake(None),
        settings.namesrv(None, is_default_used=False),
        settings=settings.room("judge"),
        instance=settings.room("client"),
        lake_count=lake_count,
        name=entry.name,
    )


def _served(entry: ClusterEntry, settings: Config, lake_count: int, *, is_changing: bool) -> ServedCluster:
    with collector_paused():
        from mqtrail.answers.access import SEARCHES_FILE
        from mqtrail.answers.alerts import ALERTS_FILE
        from mqtrail.answers.changes import AuditLog, ClusterChanges
        from mqtrail.answers.http import NamedCluster, ServedCluster
        from mqtrail.net import AUDIT_FILE

    sources = _sources(entry, settings, lake_count)
    data = settings.data(None)
    audit = data / AUDIT_FILE
    is_changed = is_changing and sources.namesrv
    changes = ClusterChanges(sources.namesrv, AuditLog(audit, entry.name), sources.instance) if is_changed else None
    return ServedCluster(
        NamedCluster(entry.name, entry.title),
        sources,
        alerts=data / ALERTS_FILE,
        searches=data / SEARCHES_FILE,
        changes=changes,
        handled=handled_incidents(settings, cluster=entry.name),
    )
