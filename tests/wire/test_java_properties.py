"""Java's .properties files, by the rules of Properties.load."""

import time
import tracemalloc

import pytest

from mqtrail.wire import properties_of, read_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", [(1, "a", "b")]),
        ("  a = b  ", [(1, "a", "b")]),
        ("a:b\na b\n", [(1, "a", "b"), (2, "a", "b")]),
        ("# a=b\n! a=b\n\n a=b", [(4, "a", "b")]),
        ("a=b,\\\n   c\nd=e", [(1, "a", "b,c"), (3, "d", "e")]),
        ("a=b\\\\\nc=d", [(1, "a", "b\\"), (2, "c", "d")]),
        (r"a\=b=c\:d", [(1, "a=b", "c:d")]),
        (r"a=\u00e9\t\x", [(1, "a", "é\tx")]),
        ("a", [(1, "a", "")]),
        ("a=\\", [(1, "a", "\\")]),
        ("", []),
        ("a=b\r\nc=d\re=f", [(1, "a", "b"), (2, "c", "d"), (3, "e", "f")]),
        ("a=b\u2028aclEnable=false\x85c=d", [(1, "a", "b\u2028aclEnable=false\x85c=d")]),
    ],
)
def test_reads_as_java_does(text: str, found: list[tuple[int, str, str]]) -> None:
    """Separators, comments, continued lines and escapes."""
    assert read_properties(text) == found


def test_escaped_halves_of_a_pair() -> None:
    """Two surrogates become one character; a lone one has no UTF-8, so it is replaced."""
    assert properties_of("a=\\uD83D\\uDE00\nb=\\uD83D") == {"a": "😀", "b": "�"}


def test_many_continued_lines_are_read_in_one_go() -> None:
    """A line with many continuations is joined once, at its end."""
    count = 200_000
    before_s = time.process_time()
    assert properties_of("k=" + "a\\\n" * count + "b") == {"k": "a" * count + "b"}
    assert time.process_time() - before_s < 5


@pytest.mark.parametrize("part", ["x", "\\x", "a\\x"])
def test_a_long_key_takes_little_memory(part: str) -> None:
    """A request of a settings change may have a body of 256 KiB, and all of it may be one key."""
    text = part * 100_000
    tracemalloc.start()
    try:
        [(key, value)] = properties_of(text).items()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (key, value) == (text.replace("\\", ""), "")
    assert peak < 32 * len(text)
