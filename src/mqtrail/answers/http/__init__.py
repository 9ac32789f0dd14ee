"""The HTTP API: the answers of this room as JSON, with an OpenAPI description, for this machine alone.

Without a `Changing` it makes no changes; without an `AccessDesk` it requires no log-in.

`make_api` returns the application, `make_clusters_api` that of several clusters. Each answer has its scope; errors are
problem details (RFC 9457).
"""

from .api import make_api
from .changes import Changing
from .chosen import CLUSTERS_PREFIX, ChosenCluster, NamedCluster, chosen_of, path_within
from .clusters import ClusterPaths, ServedCluster, ServedClusters, make_clusters_api
from .door import API_PREFIX, LOGIN, PROVIDER, PUBLIC, actor_of, cookie_name, forwarded_for, seen_by, visitor_of
from .workers import Workers

__all__ = [
    "API_PREFIX",
    "CLUSTERS_PREFIX",
    "LOGIN",
    "PROVIDER",
    "PUBLIC",
    "Changing",
    "ChosenCluster",
    "ClusterPaths",
    "NamedCluster",
    "ServedCluster",
    "ServedClusters",
    "Workers",
    "actor_of",
    "chosen_of",
    "cookie_name",
    "forwarded_for",
    "make_api",
    "make_clusters_api",
    "path_within",
    "seen_by",
    "visitor_of",
]
