"""The binlog of a server as items, through the library mysql-replication.

The library connects, asks for the binlog and splits it into events. Values of rows are decoded here (`tablemap`,
`rows`): exactly, and with the table as it was at the change. This is the only module that knows the library.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from .model import (
    BinlogError,
    BinlogItem,
    BinlogPlace,
    NothingNew,
    RowChange,
    SchemaChange,
    TableMap,
    TransactionBegin,
    TransactionEnd,
)
from .rows import RowDecoder
from .source import SourceConfig, TableFilter, check_key, in_words
from .statements import Sort, parse_statement
from .tablemap import decode_table_map

HEARTBEAT_S: Final = 1.0  # how often the server says that it has nothing new
SILENCE_S: Final = 15  # without an event or a heartbeat: it is away
CONNECTIONS: Final = 2  # of one reader: the binlog, and the library's questions
STANDALONE, PREPARED_XA, COMPLETED_XA = 1, 64, 128  # flags of a GTID event
HEADER_SIZE: Final = 20  # of an event in a packet: a status, then 19 bytes
COMPRESSED_KINDS: Final = frozenset(range(165, 172))  # MariaDB's compressed events
PARTIAL_KIND: Final = 39  # MySQL's partial updates
EVENTS: Final = (
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
    TableMapEvent,
    WriteRowsEvent,
    UpdateRowsEvent,
    DeleteRowsEvent,
)


class BinlogStream:
    """Items from a place on, in a thread; they do not end. `close` may be called from another thread."""

    def __init__(
        self, config: SourceConfig, place: BinlogPlace, chosen: TableFilter, charsets: Mapping[int, str]
    ) -> None:
        self._config = config
        self._start = place
        self._chosen = chosen
        self._decoder = RowDecoder(charsets)
        self._tables: dict[int, TableMap] = {}
        self._connections: list[Any] = []
        self._closed = False
        self._within = False
        self._ends_itself = False

    def close(self) -> None:
        """Let `items` end."""
        self._closed = True
        for connection in list(self._connections):
            with suppress(OSError, AttributeError):
                connection._sock.shutdown(socket.SHUT_RDWR)

    def items(self) -> Iterator[BinlogItem]:
        """Yield items. SourceAway; BinlogError: something in the binlog cannot be passed on."""
        logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)
        with in_words(self._config, "reading its binlog"):
            reader = BinLogStreamReader(
                self._config.arguments | {"read_timeout": SILENCE_S},
                server_id=0x80000000 | secrets.randbits(31),  # each reader of a server needs its own
                blocking=True,
                resume_stream=True,
                log_file=self._start.file,
                log_pos=self._start.position,
                only_events=EVENTS,
                filter_non_implemented_events=False,
                enable_logging=False,
                slave_heartbeat=HEARTBEAT_S,
                pymysql_wrapper=self._connect,
            )
            try:
                while (event := _next(reader)) is not None:
                    yield from self._of(event, reader.log_file)
            except (OSError, pymysql.MySQLError):
                if not self._closed:
                    raise
            finally:
                for connection in self._connections:
                    with suppress(Exception):
                        connection._force_close()

    def _connect(self, **arguments: Any) -> Any:
        """Connect for the library. It would connect again without end, and continue in the middle of a transaction."""
        if self._closed or len(self._connections) >= CONNECTIONS:
            raise ConnectionError("the connection is closed")
        if "db" in arguments:  # the library's old name of it
            arguments["database"] = arguments.pop("db")
        connection = pymysql.connect(**arguments)
        self._connections.append(connection)
        return connection

    def _of(self, event: Any, file: str) -> Iterator[BinlogItem]:
        kind, size = event.packet.event_type, event.packet.event_size
        end = BinlogPlace(file, event.packet.log_pos)
        place = BinlogPlace(file, event.packet.log_pos - size)
        time_ms = event.timestamp * 1000
        if isinstance(event, MariadbGtidEvent):
            yield self._begin(event, place, time_ms)
        elif isinstance(event, TableMapEvent):
            self._note_table(decode_table_map(_payload(event)))
        elif isinstance(event, WriteRowsEvent | UpdateRowsEvent | DeleteRowsEvent):
            yield from self._changes(kind, event, place, time_ms)
        elif isinstance(event, XidEvent):
            self._within = False
            yield TransactionEnd(end)
        elif isinstance(event, QueryEvent):
            yield from self._statement(event, place, end, time_ms)
        elif isinstance(event, HeartbeatLogEvent):
            if not self._within:
                yield NothingNew(BinlogPlace(file, event.packet.log_pos))
        elif isinstance(event, RotateEvent):
            if event.timestamp:
                self._tables.clear()
        elif kind in COMPRESSED_KINDS or kind == PARTIAL_KIND:
            raise BinlogError(
                f"found a compressed event at {place}, expected plain ones: SET GLOBAL log_bin_compress=OFF, and "
                "take a new snapshot with a new --state"
            )

    def _begin(self, event: Any, place: BinlogPlace, time_ms: int) -> TransactionBegin:
        if event.flags & (PREPARED_XA | COMPLETED_XA):
            raise BinlogError(
                f"found an XA transaction, {event.gtid} at {place}, expected none: its changes are in the binlog "
                "before it is "
                "known whether they are kept; take a new snapshot with a new --state, and do not use XA on this server"
            )
        self._within, self._ends_itself = True, bool(event.flags & STANDALONE)
        return TransactionBegin(place, event.gtid, time_ms, self._ends_itself)

    def _note_table(self, table: TableMap) -> None:
        self._tables[table.table_id] = table

    def _changes(self, kind: int, event: Any, place: BinlogPlace, time_ms: int) -> Iterator[RowChange]:
        table = self._tables.get(event.table_id)
        if table is None:
            raise BinlogError(f"found changes of an unknown table at {place}, expected a table map before them")
        if not self._chosen.has(table.name):
            return
        self._check_within(place)
        left_out = self._chosen.left_out(table.name)
        check_key(table.name, table.key, left_out)
        payload = _payload(event)
        size = len(payload)  # counted for the first row of the event
        for number, (before, after) in enumerate(self._decoder.rows(kind, payload, table, left_out)):
            yield RowChange(table.database, table.table, table.key, before, after, place, number, time_ms, size)
            size = 0

    def _check_within(self, place: BinlogPlace) -> None:
        if not self._within:
            raise BinlogError(
                f"found a change outside of a transaction at {place}, expected a GTID before it: the place to start "
                "at is not the begin of a transaction; take a new snapshot with a new --state"
            )

    def _statement(self, event: Any, place: BinlogPlace, end: BinlogPlace, time_ms: int) -> Iterator[BinlogItem]:
        database = event.schema.decode("utf-8", "replace")
        parsed = parse_statement(event.query, database)
        if parsed.sort is Sort.ROWS:
            raise BinlogError(
                f"found the statement {event.query[:80]!r} at {place}, expected the rows that it changed: a session "
                "has set binlog_format; take a new snapshot with a new --state, and let all sessions use ROW"
            )
        if parsed.sort is Sort.ROLLBACK and self._within:
            raise BinlogError(
                f"found a transaction at {place} that was rolled back in part, expected whole ones: it changed "
                "tables without "
                "transactions; take a new snapshot with a new --state, and convert those tables to InnoDB"
            )
        if parsed.sort is Sort.SCHEMA:
            names = tuple(name for name in parsed.names if self._chosen.may_mean(name))
            if names:
                yield SchemaChange(parsed.kind, names, event.query, database, place, time_ms)
        if self._within and (self._ends_itself or parsed.sort is Sort.COMMIT):
            self._within = False
            yield TransactionEnd(end)


def _next(reader: Any) -> Any:
    """Return the next event; None at the end. BinlogError: the library cannot read it."""
    try:
        return reader.fetchone()
    except (OSError, pymysql.MySQLError):
        raise
    except Exception as error:
        place = BinlogPlace(str(reader.log_file), reader.log_pos or 0)
        raise BinlogError(
            f"found an event after {place} that cannot be read ({type(error).__name__}: {error}), expected those of "
            "MariaDB 10.5 to 11: take a new snapshot with a new --state"
        ) from error


def _payload(event: Any) -> bytes:
    """Return the bytes of an event between its header and its checksum."""
    data: bytes = event.packet.get_all_data()
    return data[HEADER_SIZE : HEADER_SIZE + event.event_size]
