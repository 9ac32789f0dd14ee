"""A store whose queues are tables of a database. docs/design/table-store.md has the tables and what a crash leaves.

It needs SQLAlchemy, `pip install mqtrail[pmq]`; only `mqtrail up --store` imports it.
"""

from .store import SqlStore

__all__ = ["SqlStore"]
