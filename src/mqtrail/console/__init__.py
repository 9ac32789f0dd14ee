"""Web pages over `answers`: home, search, one message, incidents, groups, cluster, pipeline. They hold no
logic, and change nothing unless the console is given `ClusterChanges`.

`make_console` returns the application, with the HTTP API beside the pages; `make_clusters_console` that of several
clusters. Values from messages are shown as text: never as HTML, never as a link, control and invisible characters
escaped.
"""

from .app import make_clusters_console, make_console
from .pmq import PmqPortal

__all__ = ["PmqPortal", "make_clusters_console", "make_console"]
