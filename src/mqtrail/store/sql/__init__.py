"""A store whose queues are tables of a database. docs/design/table-store.md has the tables and what a crash leaves.

It needs SQLAlchemy, `pip install mqtrail[pmq]`; only `mqtrail up --store` and `mqtrail pmq` import it.
"""

from .facts import DatabaseFacts, QueueTable, WriterStart, look_at
from .store import SqlStore

__all__ = ["DatabaseFacts", "QueueTable", "SqlStore", "WriterStart", "look_at"]
