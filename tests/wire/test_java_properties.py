"""Java's .properties files, by the rules of Properties.load."""

import pytest

from mqtrail.wire import read_properties


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
    ],
)
def test_reads_as_java_does(text: str, found: list[tuple[int, str, str]]) -> None:
    """Separators, comments, continued lines and escapes."""
    assert read_properties(text) == found
