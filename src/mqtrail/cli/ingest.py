"""`mqtrail pipeline once|run`: from a cluster's trace to a lake's verdicts."""

from __future__ import annotations

from mqtrail.cli.options import ConfigFile, Json, LakeFolder, Namesrv


def once(namesrv: Namesrv = None, lake: LakeFolder = None, config: ConfigFile = None, json: Json = False) -> int:
    """Ingest what the cluster has now, judge it, end."""
    return 0


def run(namesrv: Namesrv = None, lake: LakeFolder = None, config: ConfigFile = None, json: Json = False) -> int:
    """Ingest and judge until a signal."""
    return 0
