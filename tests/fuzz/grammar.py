"""Texts in the formats that peers send: almost valid, and chosen to cause trouble.

fastjson's dialect with references, object names and odd escapes; properties; trace records; SQL92; registrations;
batches and stored records. `pumped` repeats a part of a text many times, which reveals readers whose cost grows faster
than the size.
"""

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache

import lz4.frame
import zstandard

import mqtrail.wire as wire
from mqtrail.wire import MSG_TYPE_MAX, TRACE_LAYOUTS, CompressionType, FieldKind, compress, encode_record
from mqtrail.wire.body import Body
from mqtrail.wire.header import Header
from mqtrail.wire.sql92.grammar import KEYWORDS

BOMBS = 0.02  # share of stored records that expand to BOMB_SIZE
BOMB_SIZE = 256 << 20  # bytes: more than a client may keep of a whole pull
PUMPED_SIZE_MAX = 150_000  # bytes of the repeated part
NUMBERS = (
    "0", "1", "-1", "7", "32767", "2147483647", "2147483648", "-9223372036854775808", "9223372036854775808",
    "18446744073709551616", "9" * 30, "1" * 4_000, "1.5", "-0.0", "1e308", "1e999", "NaN", "Infinity", "0x1F", "1L",
)  # fmt: skip
WORDS = (
    "",
    "a",
    "T",
    "g",
    "broker-a",
    "127.0.0.1:10911",
    "*",
    "é",
    "\U0001f600",
    "null",
    "true",
    "x" * 300,
    "%RETRY%g",
)
REFERENCES = (
    "$",
    "..",
    "@",
    "$.a",
    "$.a[0]",
    "$.a[0].b",
    "$.consumerDataSet[0]",
    "$[0]",
    "$" + ".a" * 90,
    "$[999999999]",
)

PROPERTIES = (
    "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "WAIT", "TRAN_MSG", "PGROUP", "TIMER_DELIVER_MS", "POP_CK", "x", "",
)  # fmt: skip
KINDS = [kind for kind in vars(wire).values() if isinstance(kind, type)]
HEADERS = [kind for kind in KINDS if issubclass(kind, Header)]
BODIES = [kind for kind in KINDS if issubclass(kind, Body) and kind is not Body]
EXT_NAMES = sorted({name for kind in HEADERS for name in kind.__struct_encode_fields__} | set("abcdefghijklmn"))
MEMBERS = sorted({str(name) for kind in BODIES for name in kind.__struct_encode_fields__} | {"$ref", "@type", "table"})


_VERSION = '"dataVersion":{"counter":%,"stateVersion":%,"timestamp":%}'
TABLES = {
    "topics.json": '{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":%,"writeQueueNums":%,"perm":%,'
    '"topicSysFlag":%}},' + _VERSION + "}",
    "subscriptionGroup.json": '{"subscriptionGroupTable":{"g":{"groupName":"g","retryQueueNums":%,"retryMaxTimes":%,'
    '"brokerId":%,"whichBrokerWhenConsumeSlowly":%}},' + _VERSION + "}",
    "consumerOffset.json": '{"offsetTable":{"T@g":{%:%,1:%},"T":{0:1}},' + _VERSION + "}",
    "delayOffset.json": '{"offsetTable":{1:%,%:%}}',
    "timermetrics": '{"timingCount":{"T":{"count":%,"timeStamp":%}},' + _VERSION + "}",
    "messageRequestMode.json": '{"messageRequestModeMap":{"T":{"g":{"topic":"T","consumerGroup":"g","mode":"POP",'
    '"popShareQueueNum":%}}}}',
    "consumerOrderInfo.json": '{"table":{"T@g":{%:{"popTime":%,"i":%,"o":[%,%],"oc":{%:%},"cm":%}}}}',
}
"""Files of a broker's tables. %: a number."""


class Grammar:
    """Makes random texts."""

    def __init__(self, chance: random.Random, bombs: float = BOMBS) -> None:
        self.bombs = bombs
        self._chance = chance

    # JSON.

    def json(self, depth: int = 0) -> str:
        """Return a value in fastjson's dialect."""
        chance = self._chance
        drawn = chance.randrange(12 if depth < 5 else 6)
        if drawn < 2:
            return chance.choice(NUMBERS)
        if drawn < 5:
            return self.quoted(chance.choice(WORDS))
        if drawn == 5:
            return chance.choice(("null", "true", "false", "{}", "[]", '{"$ref":"$"}'))
        if drawn == 6:
            return f'{{"$ref":"{chance.choice(REFERENCES)}"}}'
        if drawn < 9:
            return "[" + ",".join(self.json(depth + 1) for _ in range(chance.randrange(4))) + "]"
        members = [f"{self.name(depth)}:{self.json(depth + 1)}" for _ in range(chance.randrange(5))]
        return "{" + chance.choice((",", ",", ",,", " , ")).join(members) + "}"

    def body(self) -> str:
        """Return an object with members of known bodies, a few of them valid."""
        chance = self._chance
        names = [str(name) for name in chance.choice(BODIES).__struct_encode_fields__] + [chance.choice(MEMBERS)]
        members = [f"{self.quoted(name)}:{self.json(1)}" for name in names if chance.random() < 0.8]
        return "{" + ",".join(members) + "}"

    def route(self) -> bytes:
        """Return a topic's route with arbitrary numbers and addresses."""
        chance = self._chance
        counts = (*NUMBERS, "4", "4", "8", "65536", "-4")
        queues = ",".join(
            f'{{"brokerName":"b{chance.randrange(3)}","perm":{chance.choice(NUMBERS[:4])},'
            f'"readQueueNums":{chance.choice(counts)},"writeQueueNums":{chance.choice(counts)}}}'
            for _ in range(chance.randrange(4))
        )
        brokers = ",".join(
            f'{{"brokerName":"b{chance.randrange(3)}","cluster":"c",'
            f'"brokerAddrs":{{"{chance.choice(NUMBERS[:6])}":{self.quoted(chance.choice(WORDS))}}}}}'
            for _ in range(chance.randrange(4))
        )
        parts = (f"{chance.choice(WORDS)}:{chance.choice((*counts, '²', ''))}" for _ in range(chance.randrange(3)))
        conf = self.quoted(";".join(parts)) if chance.random() < 0.3 else "null"
        return f'{{"orderTopicConf":{conf},"queueDatas":[{queues}],"brokerDatas":[{brokers}]}}'.encode(
            "utf-8", "surrogatepass"
        )

    def table(self, name: str) -> bytes:
        """Return the content of a table's file: whole, with any numbers, or damaged."""
        chance = self._chance
        parts = TABLES[name].split("%")
        text = "".join(part + chance.choice((*NUMBERS, "0", "4", "4", "4", "null", '"x"')) for part in parts[:-1])
        data = (text + parts[-1]).encode()
        match chance.randrange(8):
            case 0:
                return data[: chance.randrange(len(data) + 1)]
            case 1:
                return chance.choice(
                    (b"", b"{}", b"null", b"[]", bytes(90), b"\xef\xbb\xbf" + data, text.encode("utf-16"))
                )
            case 2:
                at = chance.randrange(len(data))
                return data[:at] + chance.randbytes(chance.randrange(1, 4)) + data[at + 1 :]
            case 3:
                return self.body().encode("utf-8", "surrogatepass")
            case _:
                return data

    def bomb(self) -> str:
        """Return a text whose references expand to many values."""
        chance = self._chance
        width, levels = chance.randrange(2, 9), chance.randrange(2, 60)
        outer = chance.choice(("a", "consumerDataSet", "topicConfigTable", "offsetTable"))
        parts = [f'"{outer}0":{self.json(3)}']
        for level in range(1, levels):
            references = ",".join([f'{{"$ref":"$.{outer}{level - 1}"}}'] * width)
            parts.append(f'"{outer}{level}":[{references}]')
        return "{" + ",".join(parts) + f',"{outer}":{{"$ref":"$.{outer}{levels - 1}"}}}}'

    def name(self, depth: int) -> str:
        chance = self._chance
        drawn = chance.randrange(8)
        if drawn == 0:
            return chance.choice(NUMBERS)
        if drawn == 1:
            return chance.choice(("a", "$ref", "topic", "clientID"))
        if drawn == 2:
            queue = '{"brokerName":"b","queueId":0,"topic":"t"}'
            return self.json(max(depth + 1, 4)) if chance.random() < 0.3 else queue
        return self.quoted(chance.choice(MEMBERS))

    def quoted(self, text: str) -> str:
        """Return a quoted text, sometimes with an escape."""
        chance = self._chance
        escape = chance.choice(
            ("",) * 9 + ("\\n", "\\u0001", "\\u0002", "\\x41", "\\v", "\\uD83D", "\\q", "\\", "\x00")
        )
        quote = "'" if chance.random() < 0.05 else '"'
        return f"{quote}{text}{escape}{quote}"

    # Texts.

    def properties(self) -> str:
        """Return a properties text."""
        chance = self._chance
        values = (*WORDS, *NUMBERS[:10], "a b c", "k\x01v", "0 1 2 3 0 broker-a 0 5")
        pairs = (f"{chance.choice(PROPERTIES)}\x01{chance.choice(values)}" for _ in range(chance.randrange(8)))
        return chance.choice(("\x02", "\x02", "\x02\x02", "")).join(pairs)

    def trace(self) -> str:
        """Return the body of a trace message."""
        chance = self._chance
        records = []
        for _ in range(chance.randrange(1, 6)):
            layout = chance.choice(chance.choice(list(TRACE_LAYOUTS.values())))
            odd = (*NUMBERS[:12], *WORDS, "1,2,,x", "x", "null", str(MSG_TYPE_MAX))
            plain = [chance.choice(odd) if field.kind is FieldKind.TEXT else "1" for field in layout.fields]
            texts = [text if chance.random() < 0.95 else chance.choice(odd) for text in plain]
            records.append("\x01".join([layout.record_type, *texts]) + chance.choice(("\x02", "\x02", "\x02", "")))
        return "".join(records)

    def sql(self, depth: int = 0) -> str:
        """Return a valid or almost valid SQL92 expression."""
        chance = self._chance
        if depth > 4 or chance.random() < 0.3:
            return chance.choice(("a", "price", "$x", "1", "1.5", "'eu'", "TRUE", "NULL", *NUMBERS[:14], *KEYWORDS))
        one, other = self.sql(depth + 1), self.sql(depth + 1)
        return chance.choice(
            (
                f"{one} AND {other}", f"{one} OR {other}", f"NOT {one}", f"({one})", f"a = {one}", f"a > {one}",
                f"{one} BETWEEN {other} AND 9", f"a IN ({one}, 'x')", f"a CONTAINS {one}", f"{one} IS NOT NULL",
                f"-{one}", f"{one} /* {other} */", f"{one} -- {other}", f"a LIKE {one}",
            )
        )  # fmt: skip

    def info(self) -> str:
        """Return one of the texts of popped messages, or a list of settings."""
        chance = self._chance
        items = (
            " ".join(
                chance.choice((*NUMBERS[:8], "0", "1", "qo1%2", "broker-a")) for _ in range(chance.randrange(2, 9))
            )
            for _ in range(chance.randrange(1, 5))
        )
        return chance.choice((";", ",", "\n")).join(items)

    # Bytes.

    def registration(self) -> bytes:
        """Return a compressed registration."""
        chance = self._chance
        lines = [f"T{number} 8 8 6 SINGLE_TAG" for number in range(chance.randrange(4))]
        lines = [line if chance.random() < 0.8 else line.replace("8", chance.choice(NUMBERS)) for line in lines]
        texts = ['{"counter":1,"stateVersion":0,"timestamp":2}', *lines, chance.choice(("[]", self.json(3)))]
        packed = [struct.pack(">i", len(text.encode())) + text.encode() for text in texts]
        count = len(lines) if chance.random() < 0.8 else chance.choice((-1, 0, 2**31 - 1, 1_000_000))
        plain = packed[0] + struct.pack(">i", count) + b"".join(packed[1:])
        return zlib.compress(self.pumped(plain) if chance.random() < 0.2 else plain)

    def batch(self) -> bytes:
        """Return the body of a batch of small messages."""
        chance = self._chance
        items = []
        for _ in range(chance.randrange(1, 6)):
            body, properties = chance.randbytes(chance.randrange(20)), self.properties().encode()
            size = 22 + len(body) + len(properties)
            size += chance.choice((0,) * 9 + (1, -1, 1 << 30))
            items.append(
                struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
            )
        return b"".join(items)

    def records(self) -> bytes:
        """Return stored records, as a pull's reply has them."""
        chance = self._chance
        found = []
        for _ in range(chance.randrange(1, 5)):
            kind = chance.choice(list(CompressionType))
            body = chance.choice((b"plain", compress(b"x" * chance.choice((10, 100_000)), kind), self.trace().encode()))
            sys_flag = chance.choice((0, 0, 1, 0x101, 0x201, 0x301, 0x701, kind.sys_flag))
            if chance.random() < self.bombs:
                body, sys_flag = bomb(kind), kind.sys_flag
            found.append(
                encode_record(
                    chance.choice(("T", "t" * 200)),
                    body,
                    self.properties().encode(),
                    queue_id=0,
                    queue_offset=chance.choice((0, -1, 2**63 - 1)),
                    physical_offset=chance.choice((0, 2**62)),
                    born_timestamp_ms=0,
                    born_host=bytes(chance.choice((8, 20))),
                    store_timestamp_ms=0,
                    store_host=bytes(8),
                    sys_flag=sys_flag,
                )
            )
        return b"".join(found)

    def any_body(self) -> bytes:
        """Return a body of any kind."""
        chance = self._chance
        makers: Sequence[Callable[[], str | bytes]] = (
            self.body, self.body, self.body, self.bomb, self.json, self.batch, self.records, self.registration,
            self.trace, self.info, self.properties, self.sql,
        )  # fmt: skip
        made = chance.choice(makers)()
        data = made.encode("utf-8", "surrogatepass") if isinstance(made, str) else made
        return self.pumped(data) if chance.random() < 0.05 else data

    def value(self) -> str:
        """Return the value of an ext field."""
        chance = self._chance
        makers: Sequence[Callable[[], str]] = (
            self.properties, self.sql, self.info, self.json,
            lambda: chance.choice(WORDS), lambda: chance.choice(NUMBERS),
        )  # fmt: skip
        text = chance.choice(makers)()
        return self.pumped(text.encode(), 60_000).decode("utf-8", "replace") if chance.random() < 0.02 else text

    def ext(self) -> dict[str, str]:
        """Return ext fields that nearly match some request."""
        chance = self._chance
        ext: dict[str, str] = {}
        for name in chance.choice(HEADERS).__struct_encode_fields__:
            ext[name] = chance.choice(("0", "1", "T", "g", "true", "broker-a", "127.0.0.1:10911"))
        for _ in range(chance.randrange(4)):
            ext[chance.choice(EXT_NAMES)] = self.value()
        return ext

    def pumped(self, data: bytes, size_max: int = PUMPED_SIZE_MAX) -> bytes:
        """Repeat a part of data until it has thousands of bytes."""
        chance = self._chance
        start = chance.randrange(len(data) + 1)
        part = data[start : start + chance.choice((1, 1, 2, 3, 8, 40))] or b","
        times = chance.choice((1_000, 20_000, size_max)) // len(part)
        return data[:start] + part * times + data[start + len(part) :]


@cache
def bomb(kind: CompressionType) -> bytes:
    """Return a body that expands to BOMB_SIZE zeros, and does not declare its size if the format allows that."""
    plain = bytes(BOMB_SIZE)
    if kind is CompressionType.LZ4:
        return bytes(lz4.frame.compress(plain, store_size=False))
    if kind is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    return compress(plain, kind)
