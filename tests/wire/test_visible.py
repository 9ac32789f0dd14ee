"""Text from outside: control and invisible characters are escaped, and all others stay."""

import json
import sys
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import visible, visible_block, visible_json, visible_lines

HOSTILE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# DerivedCoreProperties.txt of Unicode 16, Default_Ignorable_Code_Point: (first, last)
IGNORABLE = [
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
]
IGNORED = {chr(code) for first, last in IGNORABLE for code in range(first, last + 1)}
ANY = st.text(st.characters(codec=None))


def hostile(text: str) -> set[str]:
    return {character for character in text if is_hostile(character)}


def is_hostile(character: str) -> bool:
    return character in IGNORED or unicodedata.category(character) in HOSTILE


def test_every_hostile_character_is_written_as_its_escape() -> None:
    """All such characters of Unicode and no others: those of Unicode 15 and 16 that this Python does not know too."""
    newer = set(map(chr, range(0x13439, 0x13440)))
    harmless = []
    for character in map(chr, range(sys.maxunicode + 1)):
        if is_hostile(character) or character in newer:
            shown = visible(character)
            assert shown.isascii()
            assert len(shown) >= 2
        else:
            harmless.append(character)
    assert visible("".join(harmless)) == "".join(harmless)


def test_escapes_read_as_pythons() -> None:
    assert visible("a\x1b[2J\r\n\t\x9b\u202eb\u200b\U000e0041\ud800") == (
        "a\\x1b[2J\\x0d\\n\\t\\x9b\\u202eb\\u200b\\U000e0041\\ud800"
    )
    assert visible("订单 ❤ ñ C:\\x [red]") == "订单 ❤ ñ C:\\x [red]"
    assert visible("❤\ufe0f orders\u180b") == "❤\\ufe0f orders\\u180b"


@pytest.mark.parametrize("text", ["\x00", "\u202ea", "\n"])
def test_a_large_body_of_control_characters_is_escaped_at_once(text: str) -> None:
    """In the memory of the result, not of one match after the other, which takes ten times as long, too."""
    text *= 20_000
    for show in (visible, visible_lines, visible_block, visible_json):
        size = len(show(text))
        tracemalloc.start()
        try:
            show(text)
            assert tracemalloc.get_traced_memory()[1] < 4 * size
        finally:
            tracemalloc.stop()


@given(ANY)
def test_nothing_hostile_comes_through(text: str) -> None:
    """A second call changes nothing, and lines stay lines."""
    assert not hostile(visible(text))
    assert visible(visible(text)) == visible(text)
    assert hostile(visible_lines(text)) <= {"\n"}
    assert visible_lines(text).count("\n") == text.count("\n")
    visible(text).encode()


@given(st.recursive(ANY, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3)))
def test_json_means_the_same(value: object) -> None:
    """Each escape is valid JSON, also of characters beyond 16 bits."""
    text = visible_json(json.dumps(value, ensure_ascii=False))
    assert not hostile(text)
    text.encode()
    assert json.loads(text) == json.loads(json.dumps(value))
