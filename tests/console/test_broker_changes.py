"""What the pages say of a change of the master, in both languages."""

from __future__ import annotations

from datetime import UTC
from typing import cast

import pytest

from mqtrail.answers import BrokerChange
from mqtrail.console.frame import PageReader
from mqtrail.console.looks import moment
from mqtrail.console.message import change_words
from mqtrail.console.texts import TEXTS, Language

BECAME = BrokerChange(
    at_ms=5_000,
    broker="broker-a",
    event="BECAME_MASTER",
    broker_id="3",
    address="10.0.0.3:10911",
    epoch=5,
    reason="connection_closed",
    before_id="1",
    before_address="10.0.0.1:10911",
    before_epoch=4,
    before_until_ms=4_900,
    from_offset=77,
    to_offset=None,
    detail="",
    evidence="trace:broker-a/0@1#0",
)


class Reader:
    """Says texts in one language."""

    def __init__(self, place: int) -> None:
        self._place = place

    def say(self, name: str, **values: object) -> str:
        return TEXTS[name][self._place].format(**values)

    def moment(self, at_ms: int | None) -> str:
        return moment(at_ms, UTC)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        (Language.EN, ("Epoch 5; ", "Master before: 10.0.0.1:10911 [1], known as master until 1970-01-01")),
        (Language.ZH, ("任期 5; ", "此前主节点的连接已关闭", "此前的主节点: 10.0.0.1:10911 [1], 直到 1970-01-01")),
    ],
)
def test_who_was_master_before(language: Language, words: tuple[str, ...]) -> None:
    """With the reason of the election in words, and until when the master before was known."""
    reader = cast(PageReader, Reader(list(Language).index(language)))
    said = change_words(reader, BECAME)
    assert all(one in said for one in words), said
