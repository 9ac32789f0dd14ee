"""A store whose queues are tables of a database. docs/design/table-store.md has the tables and what a crash leaves.

It needs SQLAlchemy, `pip install mqtrail[pmq]`; only `mqtrail up --store` and `mqtrail pmq` import it.
"""

from .facts import DatabaseFacts, NodeFacts, QueueTable, WriterStart, look_at, set_node
from .nodes import NodeDatabase
from .registry import parse_node
from .replica import ReplicaDatabase, parse_replica
from .store import SqlStore

__all__ = [
    "DatabaseFacts",
    "NodeDatabase",
    "NodeFacts",
    "QueueTable",
    "ReplicaDatabase",
    "SqlStore",
    "WriterStart",
    "look_at",
    "parse_node",
    "parse_replica",
    "set_node",
]
