"""The tables of a table store.

    mqtrail_store     one row: version of these tables, number of the writer, end of the log
    mqtrail_queue     one row per message table: whose queue it is, and its offsets
    message_NNNN      one row per message of a queue; id = queue offset
    mqtrail_place     physical offset -> queue and row
    mqtrail_key       hash of topic#key -> physical offsets, as in an IndexFile
    mqtrail_unqueued  records that are in no queue: prepared and rolled back messages
    mqtrail_writer    one row per start: which process became the writer, and when; for people

A store with several databases (nodes) also has these, all but the last one on the first, the home:

    mqtrail_node        one row per node: its name, kind and state
    mqtrail_assignment  one row per queue that is not on the home: its node
    mqtrail_parked      records for a node that was away when they were to be committed
    mqtrail_member      on a node: one row, which node of which store it is

The first one also has mqtrail_start once a table was taken from a queue: where that queue goes on without it.

Message tables have one column per field of a record, so that they can be read with SQL. `msg_id`, `tag` and `msg_keys`
repeat properties for that purpose; the store itself does not read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
)
from sqlalchemy.dialects import sqlite

from ..errors import StoreError

VERSION: Final = 1
STORE_ROW: Final = 1  # id of the only row of mqtrail_store
LONG: Final = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")  # SQLite: an INTEGER key is the row's own number
BODY: Final = LargeBinary(1 << 30)
OPTIONS: Final[Mapping[str, Any]] = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""Of each table, whatever the server's defaults are."""


class QueueUse(StrEnum):
    """What a message table is used for."""

    FREE = "free"  # empty, for the next new queue
    USED = "used"
    RELEASED = "released"  # its topic was deleted; its rows are being removed


METADATA: Final = MetaData()
STORE: Final = Table(
    "mqtrail_store",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("writer", LONG, nullable=False),  # rises at each start: an earlier process cannot commit any more
    Column("end_offset", LONG, nullable=False),
    Column("store_ms", LONG, nullable=False),
    **OPTIONS,
)
QUEUE: Final = Table(
    "mqtrail_queue",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("table_name", String(64), nullable=False, unique=True),
    Column("state", String(10), nullable=False),
    Column("topic", String(255)),  # with queue_id: whose queue it is
    Column("queue_id", Integer),
    Column("first_offset", LONG, nullable=False),
    Column("next_offset", LONG, nullable=False),
    **OPTIONS,
)
PLACE: Final = Table(
    "mqtrail_place",
    METADATA,
    Column("physical_offset", LONG, primary_key=True, autoincrement=False),
    Column("queue", Integer, nullable=False),
    Column("queue_offset", LONG, nullable=False),
    **OPTIONS,
)
KEY: Final = Table(
    "mqtrail_key",
    METADATA,
    Column("key_hash", LONG, primary_key=True, autoincrement=False),
    Column("physical_offset", LONG, primary_key=True, autoincrement=False),
    Column("store_ms", LONG, nullable=False),
    sqlite_with_rowid=False,
    **OPTIONS,
)
UNQUEUED: Final = Table(
    "mqtrail_unqueued",
    METADATA,
    Column("physical_offset", LONG, primary_key=True, autoincrement=False),
    Column("store_ms", LONG, nullable=False),
    Column("record", BODY, nullable=False),
    **OPTIONS,
)


WRITER: Final = Table(
    "mqtrail_writer",
    MetaData(),  # not of METADATA: databases of earlier versions lack it, and the store does not read it
    Column("writer", LONG, primary_key=True, autoincrement=False),
    Column("started_ms", LONG, nullable=False),  # the clock of the database
    Column("host", String(255), nullable=False),
    Column("pid", LONG, nullable=False),
    Column("mqtrail", String(40), nullable=False),
    **OPTIONS,
)
STARTS_KEPT: Final = 100


class NodeKind(StrEnum):
    """Which queues a node gets."""

    NORMAL = "normal"
    FAILURE = "failure"  # those of retries, dead letters and failure topics


class NodeState(StrEnum):
    """What clients may do with the queues of a node."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"
    CLOSED = "closed"


HOME: Final = 0  # number of the node with settings, groups and system topics
HOME_NAME: Final = "home"
NODES: Final = MetaData()  # made when there are several nodes
NODE: Final = Table(
    "mqtrail_node",
    NODES,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(40), nullable=False, unique=True),
    Column("kind", String(10), nullable=False),
    Column("state", String(10), nullable=False),
    Column("store", String(255), nullable=False),  # the same for all nodes of a store, in no other store
    Column("url", Text, nullable=False),  # without the password; for people
    Column("away", Text),  # why it does not answer; for people
    Column("reserved_offset", LONG, nullable=False),  # of the home: no record of any node ends behind it
    **OPTIONS,
)
ASSIGNMENT: Final = Table(
    "mqtrail_assignment",
    NODES,
    Column("topic", String(255), primary_key=True),
    Column("queue_id", Integer, primary_key=True, autoincrement=False),
    Column("node", Integer, nullable=False),
    Column("next_offset", LONG, nullable=False),  # of the queue, as last noted: used while its node is away at a start
    **OPTIONS,
)
PARKED: Final = Table(
    "mqtrail_parked",
    NODES,
    Column("physical_offset", LONG, primary_key=True, autoincrement=False),
    Column("node", Integer, nullable=False),
    Column("tags_code", LONG, nullable=False),
    Column("record", BODY, nullable=False),
    **OPTIONS,
)
MEMBER: Final = Table(
    "mqtrail_member",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(40), nullable=False),
    Column("store", String(255), nullable=False),
    **OPTIONS,
)


START: Final = Table(
    "mqtrail_start",
    MetaData(),
    Column("topic", String(255), primary_key=True),
    Column("queue_id", Integer, primary_key=True, autoincrement=False),
    Column("start_offset", LONG, nullable=False),  # a table of the queue that ends here or before is not its any more
    **OPTIONS,
)


def message_table(name: str) -> Table:
    """Return the table of one queue. It is in no MetaData: there may be thousands."""
    return Table(
        name,
        MetaData(),
        Column("id", LONG, primary_key=True, autoincrement=False),  # the queue offset
        Column("physical_offset", LONG, nullable=False),
        Column("size", Integer, nullable=False),  # of the whole record
        Column("store_ms", LONG, nullable=False),
        Column("born_ms", LONG, nullable=False),
        Column("tags_code", LONG, nullable=False),
        Column("flag", Integer, nullable=False),
        Column("sys_flag", Integer, nullable=False),
        Column("reconsume_times", Integer, nullable=False),
        Column("prepared_offset", LONG, nullable=False),
        Column("born_host", LargeBinary(20), nullable=False),
        Column("store_host", LargeBinary(20), nullable=False),
        Column("msg_id", Text),
        Column("tag", Text),
        Column("msg_keys", Text),
        Column("properties", LargeBinary(1 << 16), nullable=False),
        Column("body", BODY, nullable=False),
        **OPTIONS,
    )


def message_table_name(number: int) -> str:
    """Return the name of the message table with this number."""
    return f"message_{number:04}"


def has_nodes(connection: Connection) -> bool:
    """Return whether the store on this database has, or had, several nodes."""
    return inspect(connection).has_table(NODE.name)


def check_shape(connection: Connection) -> bool:
    """Return whether the store's tables exist. StoreError: some are missing or have other columns."""
    inspector = inspect(connection)
    names = set(inspector.get_table_names())
    found_names = [name for name in METADATA.tables if name in names]
    missing = [name for name in METADATA.tables if name not in names]
    if missing == [STORE.name] and connection.execute(select(QUEUE.c.id).limit(1)).first() is None:
        return False  # a first start that ended while it made the tables
    if not found_names:
        return False
    if missing:
        raise StoreError(
            f"found a database without the table {missing[0]}, but with others of mqtrail, expected all or none: "
            "restore the database, or name an empty one"
        )
    for name, table in METADATA.tables.items():
        found = {column["name"] for column in inspector.get_columns(name)}
        expected = {column.name for column in table.columns}
        if found != expected:
            raise StoreError(
                f"found the columns {', '.join(sorted(found))} in the table {name}, expected "
                f"{', '.join(sorted(expected))}: another program owns it; name another database"
            )
    return True
