"""Recorded frames for the wire's tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from mqtrail.wire import Frame, SerializeType

GOLDEN = Path(__file__).parents[1] / "golden" / "frames.jsonl"


class RecordedFrame:
    """One line of frames.jsonl: the frame, and the recorder's facts about it."""

    def __init__(self, line: str) -> None:
        self.facts: dict[str, Any] = json.loads(line)
        binary = "header_hex" in self.facts
        header = bytes.fromhex(self.facts["header_hex"]) if binary else self.facts["header"].encode()
        self.frame = Frame(SerializeType.ROCKETMQ if binary else SerializeType.JSON, header, self.body)

    @property
    def body(self) -> bytes:
        return bytes.fromhex(self.facts["body_hex"])

    @property
    def is_reply(self) -> bool:
        return bool(self.facts["kind"] == "reply")

    @property
    def request_code(self) -> int:
        """The code of the request; for a reply, that of its request."""
        return int(self.facts.get("request_code", self.facts["code"]))


@pytest.fixture(scope="session")
def recorded() -> list[RecordedFrame]:
    return [RecordedFrame(line) for line in GOLDEN.read_text().splitlines()]
