"""Text from outside: control and invisible characters are escaped, and all others stay."""

import json
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import visible, visible_json, visible_lines

HOSTILE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
ANY = st.text(st.characters(codec=None))


def hostile(text: str) -> set[str]:
    return {character for character in text if unicodedata.category(character) in HOSTILE}


def test_every_hostile_character_is_written_as_its_escape() -> None:
    """All such characters of Unicode, by category, and those that are invisible for another reason."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in HOSTILE or character in "\u3164\u115f\u034f\U000e0100":
            assert visible(character).isascii()
            assert len(visible(character)) >= 2


def test_escapes_read_as_pythons() -> None:
    assert visible("a\x1b[2J\r\n\t\x9b\u202eb\u200b\U000e0041\ud800") == (
        "a\\x1b[2J\\x0d\\n\\t\\x9b\\u202eb\\u200b\\U000e0041\\ud800"
    )
    assert visible("订单 ❤️ ñ C:\\x [red]") == "订单 ❤️ ñ C:\\x [red]"


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
