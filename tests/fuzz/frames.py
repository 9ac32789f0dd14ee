"""Frames: recorded ones of Apache's peers, with random changes.

A mutation leaves most of a frame valid; otherwise all would fail at the first check. It replaces a field's value with
another field's, the limit of a number, a text that is too long, a text that is not a number, or JSON; it changes the
code; it cuts a body or changes some of its bytes. Sometimes it changes the frame's own bytes, or all of them. Other
frames are made by grammar: any request code with fields and a body of any kind (grammar.py), as JSON, as fastjson's
dialect or binary.
"""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

from mqtrail.wire import RemotingCommand, RemotingError, RequestCode, SerializeType, encode_command

from .grammar import BOMBS, Grammar

GOLDEN = Path(__file__).parents[1] / "golden" / "frames.jsonl"
EDGES = (
    "", "0", "-1", "1", "00", "+1", " 1", "1.5", "1e3", "2147483647", "2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 400, "true", "TRUE", "null", "NaN",
    "*", "TagA || TagB", "a > 1 AND", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "..", "../../etc", "a/b", "a\x00b", "\x01", "\x02", "A\x01B\x02",
    "DELAY\x0199\x02", "TRAN_MSG\x01true\x02", "TIMER_DELIVER_MS\x01" + "9" * 30 + "\x02", "é", "\U0001f600", "\ud800",
    "x" * 300, "y" * 70_000, "[]", "{}", '{"a":', "0 0 0 0 0 0 0 0",
)  # fmt: skip
CODES = [int(code) for code in RequestCode]


def _frame(header: bytes, body: bytes, kind: int) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + bytes((kind,))
        + len(header).to_bytes(3, "big")
        + header
        + body
    )


class FrameMaker:
    """Makes frames for one kind of server."""

    def __init__(self, chance: random.Random, to: str, bombs: float = BOMBS) -> None:
        """to: "broker" or "namesrv", or "client" for replies made by grammar alone."""
        self._chance = chance
        self._grammar = Grammar(chance, bombs)
        self._json: list[tuple[dict[str, Any], bytes]] = []
        self._binary: list[tuple[bytes, bytes]] = []
        for line in GOLDEN.read_text().splitlines():
            sample = json.loads(line)
            if not sample["direction"].endswith(f">{to}"):
                continue
            body = bytes.fromhex(sample["body_hex"])
            if sample["serialize"] == "JSON":
                self._json.append((json.loads(sample["header"]), body))
            else:
                self._binary.append((bytes.fromhex(sample["header_hex"]), body))
        self._values = sorted({str(v) for header, _ in self._json for v in (header.get("extFields") or {}).values()})
        self._names = sorted({name for header, _ in self._json for name in header.get("extFields") or {}})

    def next(self) -> bytes:
        """Return one frame, usually complete by its own lengths."""
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.02:
            return chance.randbytes(chance.randrange(64))
        if drawn < 0.04:
            return _frame(chance.randbytes(chance.randrange(64)), b"", chance.choice((0, 0, 1, 2, 255)))
        if drawn < 0.30:
            return self.made(chance.choice(CODES))
        if drawn < 0.45 and self._binary:
            header, body = chance.choice(self._binary)
            frame = _frame(self._bytes(header) if chance.random() < 0.5 else header, self._body(body), 1)
        else:
            header_json, body = chance.choice(self._json)
            frame = _frame(self._header(header_json), self._body(body), 0)
        return self._bytes(frame) if chance.random() < 0.03 else frame

    def made(self, code: int, flag: int = 0) -> bytes:
        """Return a frame made by grammar."""
        chance, grammar = self._chance, self._grammar
        ext = grammar.ext()
        body = grammar.any_body() if chance.random() < 0.7 else b""
        drawn = chance.random()
        if drawn < 0.4 and code <= 32_767:
            command = RemotingCommand(code, ext, body, flag=flag, serialize=SerializeType.ROCKETMQ)
            with contextlib.suppress(RemotingError, UnicodeEncodeError):
                return encode_command(command)
        if drawn < 0.7:
            members = ",".join(f"{json.dumps(name)}:{grammar.json(3)}" for name in ext)
            header = f'{{"code":{code},"flag":{flag},"extFields":{{{members}}},"opaque":{grammar.json(5)}}}'
        else:
            header = json.dumps({"code": code, "flag": flag, "extFields": ext, "opaque": 1, "version": 479})
        data = header.encode("utf-8", "surrogatepass")
        if chance.random() < 0.02:
            data = grammar.pumped(data)
        return _frame(data, body, 0)

    def _header(self, header: dict[str, Any]) -> bytes:
        chance = self._chance
        header = dict(header)
        ext = dict(header.get("extFields") or {})
        for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
            name = chance.choice(list(ext) or ["x"])
            match chance.randrange(8):
                case 0:
                    ext.pop(name, None)
                case 1:
                    ext[chance.choice(self._names)] = chance.choice(self._values)
                case 2:
                    ext[name] = chance.choice(self._values)
                case 3:
                    header["code"] = chance.choice(CODES) if chance.random() < 0.9 else chance.randrange(-5, 70_000)
                case 4:
                    field = chance.choice(
                        ("flag", "opaque", "version", "language", "remark", "serializeTypeCurrentRPC")
                    )
                    header[field] = chance.choice((0, 1, 2, 3, -1, 2**31 - 1, 2**31, "JAVA", "GO", "x", None, [], {}))
                case _:
                    ext[name] = chance.choice(EDGES)
        header["extFields"] = ext if chance.random() < 0.99 else chance.choice((None, [], "x", {"a": 1}))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=chance.random() < 0.5)
        return text.encode("utf-8", "surrogatepass")

    def _body(self, body: bytes) -> bytes:
        chance = self._chance
        match chance.randrange(10):
            case 0:
                return body[: chance.randrange(len(body) + 1)]
            case 1:
                return self._bytes(body)
            case 2:
                return chance.randbytes(chance.randrange(40))
            case 3:
                return chance.choice((b"", b"{}", b"[]", b"null", b"[" * 5_000, b'{"a":' * 3_000, b"\xff\xfe", b"0"))
            case _:
                return body

    def _bytes(self, data: bytes) -> bytes:
        """Change, drop or add some bytes."""
        chance, changed = self._chance, bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(changed) + 1)
            match chance.randrange(3):
                case 0 if at < len(changed):
                    changed[at] = chance.randrange(256)
                case 1:
                    del changed[at : at + chance.randrange(1, 9)]
                case _:
                    changed[at:at] = chance.randbytes(chance.randrange(1, 9))
        return bytes(changed)
