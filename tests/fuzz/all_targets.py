"""Further targets of the fuzzer: both ends of replication, and readers of a database's changes; and the list of all."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mqtrail.binlog import empties, moves_rows
from mqtrail.binlog.rows import RowDecoder
from mqtrail.binlog.statements import parse_statement
from mqtrail.binlog.tablemap import decode_table_map
from mqtrail.broker import BrokerConfig, Epoch, EpochFollower, Epochs, Follower, LogSender
from mqtrail.broker.ha import EpochSender
from mqtrail.broker.ha.epoch_frames import (
    EPOCH,
    EPOCH_REPORT,
    HANDSHAKE,
    HELLO,
    HELLO_REPLY,
    TRANSFER,
    TRANSFER_HEADER,
)
from mqtrail.broker.ha.frames import HEADER, REPORT
from mqtrail.store import CommitLogConfig, MemoryStore
from mqtrail.tables.changes import Wanted, _Reader
from mqtrail.wire import MQError

from .grammar import Grammar
from .targets import READ_S_PER_BYTE, TARGETS, Target
from .world import START_MS

LOG: Final = (Path(__file__).parent.parent / "broker" / "ha" / "data" / "apache-5.3.3-two-epochs").read_bytes()
EPOCHS: Final = (Epoch(1, 0), Epoch(5, 654))
COPY_STORE: Final = CommitLogConfig(segment_size=1 << 20, queue_entries=60, index_slots=32, index_entries=500)
PIECES_MAX: Final = 40  # frames of one connection
LONG: Final = 100_000  # bytes of a long statement
# Recorded from MariaDB 10.11.19 with --binlog-row-metadata=FULL: the payloads of a table map and of its row.
TABLE: Final = bytes.fromhex(
    "120000000000010001640001740015080d010405f61311fe0ffefe03fc10fefefe03ff0f1a04080a020306fe040900f701f801040201"
    "fe10fe10fe0c042800feff1f0101e402093f022e052d07fc000907010104370269640179027562016602646202647a02743302747301"
    "6202766201650273740176016a0262740175026970016303696e7601670263690a010805050201780179060502016101e9080100"
)
ROW: Final = bytes.fromhex(
    "120000000000010015ffff1f0000e0ffffffffffffffff7cffcdcccc3d9a9999999999b93f80000001327feffff63c6955b90001e240"
    "01010200ff020300010000070000007b2261223a317d0201106ccd780cbaba102695645b8c656024db10000000000000000000000000"
    "0000000103e4b8ad0500000019000000000000000101000000000000000000f03f000000000000004002c3a9"
)
CHARSETS: Final = {8: "latin1", 63: "binary", 45: "utf8mb4", 46: "utf8mb4", 2304: "utf8mb4", 28: "gbk", 3: "dec8"}
ROW_KINDS: Final = (23, 24, 25, 30, 31, 32)
PARTS: Final = (
    *("ALTER TABLE ", "DROP TABLE ", "RENAME ", "TRUNCATE ", "CREATE OR REPLACE ", "SET STATEMENT ", " FOR ", "TO "),
    *("DISCARD PARTITION ", "IMPORT ", "TABLESPACE ", "IF EXISTS ", "orders", "shop.orders", "`a``b`", "t", ",", " "),
    *("/*", "*/", "/*!50000 ", "/*M!", "-- ", "#", "\n", "'", '"', "`", "\\", "\\'", "''", "(", "=", "é", "\0"),
)


class Replication(Target):
    """A connection of a slave or of a master, in both forms of the protocol, whose other end sends anything."""

    numbers = (0, 1, 2, 7, 218, 654, 1_090, 1 << 20, (1 << 31) - 1, -1, -(1 << 31))

    def renew(self) -> None:
        self._store = MemoryStore(COPY_STORE)
        self._store.append_copy(0, LOG[: self._chance.choice((0, 218, 654, 1_090))])

    def next(self) -> bytes:
        chance = self._chance
        frames = (self._hello, self._report, self._old_report, self._reply, self._transfer, self._old_transfer)
        data = b"".join(chance.choice(frames)() for _ in range(chance.randrange(1, PIECES_MAX)))
        return data if chance.random() < 0.9 else data[: chance.randrange(len(data) + 1)]

    def _number(self) -> int:
        return self._chance.choice(self.numbers)

    def _place(self) -> int:
        return self._chance.choice((*self.numbers, self._store.end_offset, (1 << 63) - 1, -(1 << 63)))

    def _hello(self) -> bytes:
        return HELLO.pack(HANDSHAKE, self._chance.randrange(2), self._chance.randrange(2), self._place())

    def _report(self) -> bytes:
        return EPOCH_REPORT.pack(TRANSFER, self._place())

    def _old_report(self) -> bytes:
        return REPORT.pack(self._place())

    def _reply(self) -> bytes:
        chance = self._chance
        epochs = EPOCHS if chance.random() < 0.7 else [Epoch(self._number(), self._place()) for _ in range(3)]
        data = b"".join(EPOCH.pack(*epoch) for epoch in epochs)
        size = len(data) if chance.random() < 0.9 else self._number()
        return HELLO_REPLY.pack(HANDSHAKE, size, chance.choice((len(LOG), self._place())), self._number()) + data

    def _log(self) -> tuple[int, bytes]:
        """Return a place, and bytes that may be of it."""
        chance = self._chance
        at = self._store.end_offset if chance.random() < 0.7 else self._place()
        data = bytearray(LOG[max(0, min(at, len(LOG))) :][: chance.choice((0, 100, 218, 436, 2_000))])
        if data and chance.random() < 0.3:
            data[chance.randrange(len(data))] = chance.randrange(256)
        return at, bytes(data)

    def _transfer(self) -> bytes:
        at, data = self._log()
        size = len(data) if self._chance.random() < 0.9 else self._number()
        epoch = EPOCHS[at >= 654] if self._chance.random() < 0.8 else Epoch(self._number(), self._place())
        return TRANSFER_HEADER.pack(TRANSFER, size, at, *epoch, self._place()) + data

    def _old_transfer(self) -> bytes:
        at, data = self._log()
        return HEADER.pack(at, len(data) if self._chance.random() < 0.9 else self._number()) + data

    def _end(self) -> LogSender | Follower:
        """Return one end of a new connection."""
        config = BrokerConfig(broker_role="SLAVE", broker_id=7)
        written = [one for one in EPOCHS if one.start_offset < self._store.end_offset]
        number = self._chance.randrange(4)
        if number == 0:
            return LogSender(self._store, config, START_MS)
        if number == 1:
            return Follower(self._store, config, START_MS)
        if number == 2:
            epochs = Epochs(written or EPOCHS[:1])  # a master has one
            return EpochSender(self._store, config, START_MS, epochs=epochs, confirm_offset=lambda: 0)
        return EpochFollower(
            self._store,
            Epochs(written),
            config,
            START_MS,
            broker_id=7,
            is_learner=self._chance.random() < 0.5,
            save=lambda epochs: None,
        )

    def take(self, frame: bytes) -> None:
        end = self._end()
        with contextlib.suppress(MQError):  # the connection ends
            for at in range(0, len(frame), size := self._chance.choice((7, 400, 1 << 20))):
                piece = frame[at : at + size]
                self.meter.turn(len(piece), end.receive, piece, START_MS)
                if isinstance(end, LogSender):
                    for _ in range(16):  # a turn of a connection
                        if end.next_bytes(START_MS) is None:
                            break
                else:
                    end.report(START_MS)


class DatabaseChanges(Target):
    """Events of a binlog, its statements, and messages that claim to be changes."""

    turn_s_per_byte = READ_S_PER_BYTE

    def renew(self) -> None:
        self._grammar = Grammar(self._chance)
        self._act: Callable[[bytes], None] = self._read_rows

    def next(self) -> bytes:
        self._act, made = self._chance.choice(
            ((self._read_rows, self._events), (self._read_statement, self._statement), (self._read_message, self._body))
        )
        return made()

    def take(self, frame: bytes) -> None:
        with contextlib.suppress(MQError):
            self.meter.turn(len(frame), self._act, frame)

    def _events(self) -> bytes:
        chance = self._chance
        events = bytearray(TABLE + ROW)
        for _ in range(chance.randrange(6)):
            events[chance.randrange(len(events))] = chance.choice((0, 1, 2, 0x7F, 0xFB, 0xFC, 0xFE, 0xFF))
        return bytes(events) if chance.random() < 0.8 else bytes(events[: chance.randrange(len(events) + 1)])

    def _read_rows(self, frame: bytes) -> None:
        table = decode_table_map(frame[: len(TABLE)])
        for kind in ROW_KINDS:
            with contextlib.suppress(MQError):
                for _ in RowDecoder(CHARSETS).rows(kind, frame[len(TABLE) :], table):
                    pass

    def _statement(self) -> bytes:
        chance = self._chance
        text = "".join(chance.choice(PARTS) for _ in range(chance.randrange(30)))
        if chance.random() < 0.2:
            text += chance.choice(PARTS) * (chance.choice((1_000, LONG)) // 4)
        return text.encode()

    def _read_statement(self, frame: bytes) -> None:
        text = frame.decode()
        found = parse_statement(text, "shop")
        moves_rows("ALTER TABLE", text)
        empties(found.kind, text)

    def _body(self) -> bytes:
        chance, grammar = self._chance, self._grammar
        if chance.random() < 0.1:
            return grammar.any_body()
        body: dict[str, Any] = {
            "op": chance.choice(("insert", "update", "delete", "snapshot", "schema")),
            "database": "shop",
            "table": "orders",
            "key": {"id": 1},
            "after": {"id": 1, "n": "x"},
            "position": "bin.000001:4",
            "order": "0000000001.000000000004.00000000.0",
            "time_ms": 5,
            "schema": {"kind": "ALTER TABLE", "names": ["shop.orders"], "statement": self._statement().decode()},
        }
        if chance.random() < 0.5:
            values: tuple[Any, ...] = (
                None,
                [],
                {},
                1.5,
                -1,
                10**30,
                "x",
                ["x"],
                {"x": {}},
                float("nan"),
                "\ud800",
                grammar.value(),
            )
            body[chance.choice(list(body))] = chance.choice(values)
        return json.dumps(body, default=str).encode("utf-8", "surrogatepass")

    def _read_message(self, frame: bytes) -> None:
        place = {"broker_name": "broker-a", "queue_id": 0, "queue_offset": 0, "msg_id": "M", "body_problem": None}
        _Reader(Wanted("shop.orders", ignores_other=self._chance.random() < 0.5)).read(
            place | {"keys": "shop.orders:1", "body": frame}
        )


ALL_TARGETS: tuple[type[Target], ...] = (*TARGETS, Replication, DatabaseChanges)
